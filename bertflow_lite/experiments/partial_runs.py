"""What an interrupted experiment had finished, so that the next start goes on from there."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bertflow_lite.paths import cache_dir
from bertflow_lite.runs import write_json

__all__ = ["Keep", "KeptResults", "no_keep"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Keep(Protocol):
    """A function that computes a part of an experiment, unless it was computed before."""

    def __call__(self, key: str, compute: Callable[[], T], /) -> T:
        """Give the value of the part named ``key``."""
        ...


def no_keep(key: str, compute: Callable[[], T], /) -> T:
    """Compute, and keep nothing."""
    return compute()


class KeptResults:
    """Finished parts of one experiment, in a file of the cache folder until it is complete.

    The file is written whole after each part (to a file beside it, then renamed), so a process
    that is stopped or killed loses the part it was at and nothing else.  Where the cache cannot
    be written, a warning says so and the work goes on.

    Parameters
    ----------
    experiment : str
        Its name, for instance ``"table2"``.
    settings : dict
        All that the numbers depend on, as JSON can hold it: encoder fingerprint, seeds, layers,
        data, versions.  Other settings mean another file.
    folder : Path, optional
        Default: ``partial`` in the cache folder.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> KeptResults("demo", {"seed": 0}, folder)("a", lambda: 1)
    1
    >>> again = KeptResults("demo", {"seed": 0}, folder)
    >>> again("a", lambda: 2), again.found
    (1, 1)
    >>> again.remove()
    """

    def __init__(
        self, experiment: str, settings: dict[str, Any], folder: Path | None = None
    ) -> None:
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = (folder or cache_dir() / "partial") / f"{experiment}-{digest}.json"
        self._parts: dict[str, Any] = {}
        self._writable = True
        self._before = (0.0, 0.0)
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["settings"] == settings:
                self._parts = dict(content["parts"])
                self._before = (float(content["seconds"]), float(content["cpu_seconds"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s): starting anew", self.path.name, error)
        self._settings = settings
        self._started = (time.perf_counter(), time.process_time())
        self.found = len(self._parts)

    def __call__(self, key: str, compute: Callable[[], T], /) -> T:
        """Give the part's value: from the file, or computed now and put there."""
        if key not in self._parts:
            # As JSON gives it back, so that a first run and a resumed one have the same values.
            self._parts[key] = json.loads(json.dumps(compute(), allow_nan=False))
            self._write()
        value: T = self._parts[key]
        return value

    @property
    def seconds(self) -> float:
        """Wall time so far; of interrupted starts, up to their last finished part."""
        return self._before[0] + time.perf_counter() - self._started[0]

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this process, all threads together, counted as `seconds` is.

        On a machine that others use too, it says better how much work the experiment is.
        """
        return self._before[1] + time.process_time() - self._started[1]

    def remove(self) -> None:
        """Forget everything: the experiment is complete, or is to start anew."""
        self._parts, self.found, self._before = {}, 0, (0.0, 0.0)
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self._writable:
            return
        try:
            content = {
                "settings": self._settings,
                "seconds": self.seconds,
                "cpu_seconds": self.cpu_seconds,
                "parts": self._parts,
            }
            write_json(self.path, content)
        except OSError as error:
            self._writable = False
            logger.warning(
                "%s cannot be written (%s): an interruption would lose finished rows",
                self.path.name,
                error,
            )
