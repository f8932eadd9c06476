"""How far a training is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tqdm.auto import tqdm

__all__ = ["Progress"]

_PAUSE = 60.0
"""Seconds between two lines, where no snapshot brings one."""


class _Run(Protocol):
    step: int
    tokens: int
    seconds: float
    running: float


class Progress:
    """Tells how far a run is.

    Parameters
    ----------
    run : TrainingRun
        Its ``step``, ``tokens``, ``seconds`` and ``running`` (loss) are shown.
    tokens : float, optional
        That are wanted in all; None where the run ends by the clock.
    bar : bool
        Show a progress bar.
    say : callable, optional
        Takes a line of text, after every snapshot and once a minute.
    """

    def __init__(
        self, run: _Run, tokens: float | None, bar: bool, say: Callable[[str], None] | None
    ) -> None:
        self._run, self._say, self._said = run, say, time.monotonic()
        self._bar = tqdm(
            total=None if tokens is None else int(tokens), unit="tok", unit_scale=True,
            initial=run.tokens, disable=not bar,
        )  # fmt: skip

    def update(self, pieces: int, share: float, snapshot: bool) -> None:
        """Take note of a step.

        Parameters
        ----------
        pieces : int
            That it saw.
        share : float
            Of the run that is over.
        snapshot : bool
            Whether the model was kept after it.
        """
        run = self._run
        self._bar.update(pieces)
        self._bar.set_postfix(loss=f"{run.running:.3f}", step=run.step)
        if self._say is not None and (snapshot or time.monotonic() - self._said >= _PAUSE):
            self._said = time.monotonic()
            rate = run.tokens / max(run.seconds, 1e-9)
            self._say(
                f"step {run.step:,}: {run.tokens:,} tokens ({min(share, 1):.0%}), "
                f"loss {run.running:.3f}, {rate:,.0f} tokens a second"
            )

    def close(self) -> None:
        """End the bar, where there is one."""
        self._bar.close()
