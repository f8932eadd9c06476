"""Figures: what the renderer emits, descriptions, sliders, the look."""

import json
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from bertflow_lite.figures import plots


@pytest.fixture(autouse=True)
def _plotly_defaults() -> Iterator[None]:
    renderer, template = pio.renderers.default, pio.templates.default
    plots.use_book_renderer()
    yield
    pio.renderers.default, pio.templates.default = renderer, template


def figure(title: str = "A title") -> go.Figure:
    return go.Figure(go.Scatter(x=[1, 2, 3], y=[3, 1, 2]), {"title": {"text": title}})


def bundle(fig: go.Figure) -> dict[str, Any]:
    return dict(pio.renderers[plots.RENDERER].to_mimebundle(fig.to_dict()))


def test_renderer_emits_json_and_html_without_the_library() -> None:
    out = bundle(figure())
    assert set(out) == {"application/vnd.plotly.v1+json", "text/html"}
    json.dumps(out)
    assert len(out["text/html"]) < 20_000


def test_equal_figures_give_equal_bytes_and_others_do_not() -> None:
    assert bundle(figure()) == bundle(figure())
    assert bundle(figure())["text/html"] != bundle(figure("Another"))["text/html"]


def test_text_in_a_figure_cannot_end_its_script() -> None:
    assert bundle(figure("</script><b>"))["text/html"].count("</script>") == 1


def test_description_is_escaped_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[go.Figure] = []
    monkeypatch.setattr(go.Figure, "show", lambda fig: shown.append(fig))
    plots.show(figure(), alt='Points with "quotes" & <signs>.')
    html = bundle(shown[0])["text/html"]
    assert 'aria-label="Points with &quot;quotes&quot; &amp; &lt;signs&gt;."' in html
    assert shown[0].layout.meta["alt"].startswith("Points")


@pytest.mark.parametrize("alt", [None, "", "  "])
def test_figure_without_description_is_refused(alt: str | None) -> None:
    with pytest.raises(ValueError, match="no description"):
        plots.show(figure(), alt=alt)


def test_renderer_falls_back_to_the_title() -> None:
    assert 'aria-label="A title"' in bundle(figure())["text/html"]


def test_slider_shows_one_group_at_a_time() -> None:
    fig = go.Figure([go.Scatter(y=[k]) for k in range(6)])
    plots.add_slider(fig, ["a", "b", "c"], active=1)
    assert [trace.visible for trace in fig.data] == [False, False, True, True, False, False]
    last = fig.layout.sliders[0].steps[2].args[0]["visible"]
    assert list(last) == [False, False, False, False, True, True]


@pytest.mark.parametrize("labels", [[], ["a", "b", "c", "d"]])
def test_slider_needs_groups_of_equal_size(labels: list[str]) -> None:
    fig = go.Figure([go.Scatter(y=[k]) for k in range(6)])
    with pytest.raises(ValueError, match="6 traces cannot be split"):
        plots.add_slider(fig, labels)


def luminance(color: str) -> float:
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_can_be_read_on_white_and_on_black() -> None:
    ink = luminance(pio.templates[plots.RENDERER].layout.font.color)
    assert 1.05 / (ink + 0.05) > 3.9
    assert (ink + 0.05) / (luminance("#121212") + 0.05) > 3.9
