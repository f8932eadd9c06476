"""The explorer of a running notebook: ipywidgets over functions of the package, with no logic.

It does nothing in a page without a kernel; there, a Plotly figure stands in its place.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from bertflow_lite.measures.comparison import PairComparer


def explore_pairs(
    comparer: PairComparer,
    sentence1: str = "The senator accused the governor.",
    sentence2: str = "The governor accused the senator.",
) -> Any:
    """Type two sentences and see their cosine raw and calibrated.

    Gives an `ipywidgets.VBox`, which shows itself as the last value of a cell.
    """
    widgets = _ipywidgets()
    wide = widgets.Layout(width="95%")
    one = widgets.Text(value=sentence1, description="first", layout=wide, continuous_update=False)
    two = widgets.Text(value=sentence2, description="second", layout=wide, continuous_update=False)
    out = widgets.HTML()

    def update(_: Any = None) -> None:
        try:
            rows = [
                (found.space, f"{found.cosine:.2f}", f"{found.percentile:.0f} %")
                for found in comparer.compare(one.value, two.value)
            ]
        except ValueError as error:
            out.value = f"<p>{html.escape(str(error))}</p>"
            return
        out.value = _table(("space", "cosine", "higher than ... of random pairs"), rows)

    one.observe(update, names="value")
    two.observe(update, names="value")
    update()
    return widgets.VBox([one, two, out])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag} style='padding:0 1em'>{html.escape(c)}</{tag}>" for c in cells)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _ipywidgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ImportError(
            "the explorers need ipywidgets: pip install ipywidgets, then restart the kernel."
        ) from None
    return ipywidgets
