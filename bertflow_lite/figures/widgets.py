"""Explorers for a running notebook: ipywidgets over functions of the package, with no logic.

They do nothing in a page without a kernel; there, a Plotly figure stands in their place.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.comparison import PairComparer
from bertflow_lite.measures.scores import score_sts


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


def explore_scores(
    pairs: SentencePairs,
    encode: Callable[[str, str], Any],
    models: Mapping[str, Sequence[str]],
    calibrators: Mapping[str, Callable[[], Any]],
) -> Any:
    """Choose model, layers and calibrator, and watch the score on the pairs that are fitted on.

    ``encode(model, layers)`` gives the embeddings of ``pairs.sentences``.  `models` names the layer
    choices of each; each of the calibrators makes a new one, or None for raw.
    """
    widgets = _ipywidgets()
    model = widgets.Dropdown(options=list(models), description="model")
    layers = widgets.Dropdown(options=list(models[model.value]), description="layers")
    calibrator = widgets.Dropdown(options=list(calibrators), description="calibrate")
    out = widgets.HTML()
    seen: list[tuple[str, str, str, str]] = []

    def update(_: Any = None) -> None:
        x = encode(model.value, layers.value)
        made = calibrators[calibrator.value]()
        z = x if made is None else made.fit_transform(x)
        score = f"{score_sts(pairs, z).all:.1f}"
        seen.insert(0, (model.value, layers.value, calibrator.value, score))
        del seen[8:]
        out.value = _table(("model", "layers", "calibrator", "Spearman x 100"), seen)

    def change_model(_: Any) -> None:
        # Setting the options also sets the value, which would call `update` once more.
        layers.unobserve(update, names="value")
        layers.options = list(models[model.value])
        layers.observe(update, names="value")
        update()

    model.observe(change_model, names="value")
    layers.observe(update, names="value")
    calibrator.observe(update, names="value")
    update()
    return widgets.VBox([widgets.HBox([model, layers, calibrator]), out])


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
