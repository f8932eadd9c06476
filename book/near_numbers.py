"""Numbers that two machines round differently count as equal when notebooks are run again.

Another processor adds up in another order.  A score of 37.4999 here is 37.5001 there, and one
prints 37 where the other prints 38.  No rounding helps: there is always a value on the edge.  So a
number may differ by one unit of its last printed place, and by no more.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

__all__ = ["settle_outputs", "settle_text", "without_bars"]

NUMBER = re.compile(
    r"( *)(?<![\w.])(?<!\w-)([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.]*\d)"
)

BAR = re.compile(r"\d+%\|.*\[\d+:\d+<|\d+it \[")  # as tqdm writes it


def settle_text(got: str, reference: str) -> str:
    """Give ``got``, with the reference's number in place of each one that is near to it.

    Parameters
    ----------
    got, reference : str
        What a cell printed now, and what is stored.

    Returns
    -------
    str
        ``got`` itself where more than numbers differs.

    Examples
    --------
    >>> settle_text("score 37, loss 0.52", "score 38, loss 0.51")
    'score 38, loss 0.51'
    >>> settle_text("score 37, loss 0.52", "score 39, loss 0.54")
    'score 37, loss 0.52'
    >>> settle_text("10 | 1", " 9 | 1")
    ' 9 | 1'
    """
    between, ours = NUMBER.split(got)[::3], list(NUMBER.finditer(got))
    if between != NUMBER.split(reference)[::3]:
        return got
    settled = [between[0]]
    for mine, theirs, rest in zip(ours, NUMBER.finditer(reference), between[1:], strict=True):
        settled += [theirs[0] if _near(mine, theirs) else mine[0], rest]
    return "".join(settled)


def without_bars(outputs: list[Any]) -> list[Any]:
    """Leave out progress bars: they are shown where something has to be made a first time.

    Examples
    --------
    >>> bar = {"data": {"text/plain": "loading:   0%|          | 0/5 [00:00<?, ?it/s]"}}
    >>> table = {"data": {"text/plain": "share 10%"}}
    >>> without_bars([bar, table]) == [table]
    True
    """
    return [one for one in outputs if not BAR.search(one.get("data", {}).get("text/plain", ""))]


def settle_outputs(got: list[Any], reference: list[Any]) -> list[Any]:
    """Settle all text of a cell's outputs (nbformat's), where both have the same outputs."""
    if len(got) == len(reference):
        for mine, theirs in zip(got, reference, strict=True):
            _settle(mine, theirs)
    return got


def _settle(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    for key, value in mine.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            _settle(value, other)
        elif isinstance(value, str) and isinstance(other, str):
            mine[key] = settle_text(value, other)


def _near(mine: re.Match[str], theirs: re.Match[str]) -> bool:
    # Numbers are padded to a width, or not padded at all.
    if mine[1] != theirs[1] and len(mine[0]) != len(theirs[0]):
        return False
    a, b = (Decimal(one[2].replace(",", "")) for one in (mine, theirs))
    unit = max(int(x.as_tuple().exponent) for x in (a, b))
    return abs(a - b) <= Decimal(1).scaleb(unit)
