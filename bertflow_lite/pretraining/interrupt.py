"""Stopping between two steps rather than in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["stop_requested"]


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Note Ctrl-C and SIGTERM instead of acting at once: a step is never left half done.

    Yields
    ------
    threading.Event
        Set when the process was asked to stop.  Outside the main thread it never is.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda *_: event.set()) for kind in kinds]
    try:
        yield event
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
