"""The flow that trains in the page is the package's flow, and its playground can be used."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import film
import looks
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from bertflow_lite.flow import ActNorm, CouplingNetwork, Glow, Permutation, standard_normal_log_prob
from bertflow_lite.train import train_flow

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "book" / "static"
PARTS = ("random", "layers", "network", "model", "train", "points")
PAGE = "book/05_flows.html"
pytestmark = [pytest.mark.book, pytest.mark.browser]


class AffineCoupling(nn.Module):
    """Chapter 5's affine coupling, around the package's network: log-scales first, then shifts."""

    def __init__(self, dim: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.kept = (dim + 1) // 2
        self.network = CouplingNetwork(self.kept, 2 * (dim - self.kept), width, generator)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        u1, u2 = u[:, : self.kept], u[:, self.kept :]
        log_scale, shift = self.network(u1).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        return torch.cat([u1, u2 * log_scale.exp() + shift], dim=1), log_scale.sum(dim=1)

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        self.network.initialize(sample[:, : self.kept])


class AffineFlow(nn.Module):
    """The same steps as `Glow`, with affine couplings."""

    def __init__(self, dim: int, depth: int, width: int, actnorm: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.dim = dim
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.extend([ActNorm(dim, generator)] if actnorm else [])
            self.layers.append(Permutation(dim, "reverse", generator))
            self.layers.append(AffineCoupling(dim, width, generator))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        log_det = u.new_zeros(len(u))
        for layer in self.layers:
            u, change = layer(u)
            log_det = log_det + change
        return u, log_det

    def log_prob(self, u: Tensor) -> Tensor:
        z, log_det = self(u)
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        for layer in self.layers:
            if isinstance(layer, (ActNorm, AffineCoupling)):
                layer.initialize(sample)
            sample = layer(sample)[0]


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    """An empty page with the flow's scripts, and no playground."""
    page = chromium.new_page()
    for part in PARTS:
        page.add_script_tag(path=STATIC / f"flow_{part}.js")
    yield page
    page.close()


def settings(coupling: str, actnorm: bool, dim: int = 2, depth: int = 4, width: int = 7) -> dict:
    return {
        "dim": dim, "depth": depth, "width": width, "coupling": coupling, "actnorm": actnorm,
        "permutation": "reverse",
    }  # fmt: skip


def python_flow(chosen: dict) -> Any:
    if chosen["coupling"] == "additive":
        return Glow(
            chosen["dim"], 1, chosen["depth"], chosen["width"], "reverse", actnorm=chosen["actnorm"]
        ).double()
    size = chosen["dim"], chosen["depth"], chosen["width"]
    return AffineFlow(*size, chosen["actnorm"]).double()


def data(n: int, dim: int = 2, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=draw, dtype=torch.float64)
    x[:, -1] += x[:, 0].square() - 0.5
    return x


def shaken(flow: Any, sample: Tensor) -> Any:
    """Start from the data, then move every weight, so that each layer does something."""
    flow.initialize(sample)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in flow.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return flow


def flat(tensors: Any) -> list[list[float]]:
    return [tensor.detach().flatten().tolist() for tensor in tensors]


MAKE = """
  const model = new bertflowFlow.Flow(settings);
  if (weights) model.setParameters(weights);
  const u = Float64Array.from(points);
  const lists = arrays => Array.from(arrays, array => Array.from(array));
"""

CASES = [
    ("additive", True, 2), ("additive", False, 2), ("affine", True, 2), ("affine", False, 2),
    ("additive", True, 5), ("affine", True, 5),
]  # fmt: skip


@pytest.mark.parametrize(("coupling", "actnorm", "dim"), CASES)
def test_latents_densities_and_gradients_are_those_of_torch(
    coupling: str, actnorm: bool, dim: int, page: Any
) -> None:
    chosen, u = settings(coupling, actnorm, dim), data(40, dim)
    flow = shaken(python_flow(chosen), u)
    u.requires_grad_()
    z, _ = flow(u)
    log_p = flow.log_prob(u)
    loss = -log_p.mean() / (dim * math.log(2))
    loss.backward()
    got = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          const {{z}} = model.forward(u), {{loss, du}} = model.lossAndGradient(u);
          return {{z: Array.from(z), back: Array.from(model.inverse(z)), loss: loss,
                   logProb: Array.from(model.logProb(u)), du: Array.from(du),
                   gradients: lists(model.gradients), bits: model.bits(u)}};
        }}""",
        [chosen, flat(flow.parameters()), u.flatten().tolist()],
    )
    tight = {"atol": 1e-5, "rtol": 1e-9}
    assert_allclose(got["z"], z.detach().flatten(), **tight)
    assert_allclose(got["logProb"], log_p.detach(), **tight)
    assert_allclose(got["back"], u.detach().flatten(), **tight)
    assert_allclose(got["loss"], loss.item(), **tight)
    assert_allclose(got["bits"], loss.item(), **tight)
    assert_allclose(got["du"], u.grad.flatten(), **tight)
    wanted = flat(weight.grad for weight in flow.parameters())
    assert len(got["gradients"]) == len(wanted)
    for mine, theirs in zip(got["gradients"], wanted, strict=True):
        assert_allclose(mine, theirs, **tight)
        assert np.abs(theirs).max() > 1e-6, "a weight that does nothing would pass any test"


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_gradients_are_those_of_finite_differences(coupling: str, page: Any) -> None:
    chosen, u = settings(coupling, True, depth=2, width=5), data(30)
    flow = shaken(python_flow(chosen), u)
    pairs = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          model.lossAndGradient(u);
          const gradients = lists(model.gradients), step = 1e-6, pairs = [];
          model.parameters.forEach((array, p) => array.forEach((value, k) => {{
            array[k] = value + step;
            const above = model.bits(u);
            array[k] = value - step;
            const below = model.bits(u);
            array[k] = value;
            pairs.push([gradients[p][k], (above - below) / (2 * step)]);
          }}));
          return pairs;
        }}""",
        [chosen, flat(flow.parameters()), u.flatten().tolist()],
    )
    assert len(pairs) == sum(weight.numel() for weight in flow.parameters())
    by_hand, measured = np.array(pairs).T
    assert_allclose(by_hand, measured, atol=2e-6)


@pytest.mark.parametrize(("coupling", "actnorm"), [case[:2] for case in CASES[:4]])
def test_the_start_from_the_data_is_the_same(coupling: str, actnorm: bool, page: Any) -> None:
    chosen, u = settings(coupling, actnorm), data(200)
    flow = python_flow(chosen)
    weights = flat(flow.parameters())
    flow.initialize(u)
    got = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          model.initialize(u);
          return lists(model.parameters);
        }}""",
        [chosen, weights, u.flatten().tolist()],
    )
    for mine, theirs in zip(got, flat(flow.parameters()), strict=True):
        assert_allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("learning_rate", [1e-3, 0.05])
def test_the_same_start_and_batches_give_the_same_curve(learning_rate: float, page: Any) -> None:
    chosen, u = settings("additive", True), data(256)
    flow = python_flow(chosen)
    flow.initialize(u)
    start = flat(flow.parameters())
    batches = [u[k % 4 :: 4] for k in range(60)]
    history = train_flow(flow, lambda epoch: iter(batches), learning_rate=learning_rate)
    got = page.evaluate(
        f"""([settings, weights, points, batches, learningRate]) => {{ {MAKE}
          const trainer = new bertflowFlow.Trainer(model, {{learningRate: learningRate}});
          const losses = batches.map(batch => trainer.step(Float64Array.from(batch)));
          return {{losses: losses, weights: lists(model.parameters)}};
        }}""",
        [chosen, start, u.flatten().tolist(), flat(batches), learning_rate],
    )
    assert_allclose(got["losses"], history.loss, atol=1e-5)
    assert history.loss[-1] < history.loss[0] - 0.05
    for mine, theirs in zip(got["weights"], flat(flow.parameters()), strict=True):
        assert_allclose(mine, theirs, atol=1e-5)


def test_batches_are_passes_over_the_data(page: Any) -> None:
    passes = page.evaluate(
        """() => {
          const model = new bertflowFlow.Flow({depth: 1, width: 2, coupling: "additive"});
          const trainer = new bertflowFlow.Trainer(model, {batchSize: 4, seed: 3});
          const data = Float64Array.from({length: 20}, (_, k) => k >> 1);
          return [1, 2].map(() => [1, 2].flatMap(() => Array.from(trainer.nextBatch(data))));
        }"""
    )
    for rows in passes:
        assert len(rows) == 16
        assert len(set(rows[::2])) == 8, "no point twice in a pass, and a rest is left out"
        assert rows[::2] == rows[1::2]
    assert passes[0] != passes[1]


def test_a_loss_that_is_no_number_leaves_the_weights_alone(page: Any) -> None:
    before, after, message = page.evaluate(
        """() => {
          const model = new bertflowFlow.Flow({depth: 2, width: 3, coupling: "affine"});
          const trainer = new bertflowFlow.Trainer(model, {learningRate: 0.1});
          const before = model.parameters.map(array => Array.from(array));
          let message = "";
          try { trainer.step(Float64Array.of(NaN, 1, 2, 3)); } catch (e) { message = e.message; }
          return [before, model.parameters.map(array => Array.from(array)), message];
        }"""
    )
    assert before == after
    assert "no longer a number" in message


def test_random_numbers_are_what_they_should_be(page: Any) -> None:
    normal, uniform, order, again, other = page.evaluate(
        """() => {
          const draw = (seed, kind) => { const r = bertflowFlow.random(seed);
            return Array.from({length: 20000}, () => r[kind]()); };
          return [draw(0, "normal"), draw(0, "uniform"), bertflowFlow.random(2).order(50),
                  draw(0, "normal").slice(0, 5), draw(1, "normal").slice(0, 5)];
        }"""
    )
    assert_allclose([np.mean(normal), np.std(normal)], [0, 1], atol=0.03)
    assert_allclose(np.mean(np.abs(normal) < 1), 0.683, atol=0.015)
    assert min(uniform) >= 0
    assert max(uniform) < 1
    assert_allclose(np.histogram(uniform, 10, (0, 1))[0] / 20000, 0.1, atol=0.01)
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.03
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert again == normal[:5]
    assert other != again


def test_the_lines_of_the_simple_models_are_right(page: Any) -> None:
    u = data(300)
    got = page.evaluate(
        "points => bertflowFlow.gaussianBits(Float64Array.from(points))", u.flatten().tolist()
    )
    for name, covariance in (
        ("diagonal", torch.diag(u.var(dim=0, correction=0))),
        ("whitening", torch.cov(u.T, correction=0)),
    ):
        normal = torch.distributions.MultivariateNormal(u.mean(dim=0), covariance)
        assert_allclose(got[name], -normal.log_prob(u).mean() / (2 * math.log(2)), atol=1e-9)
    assert got["whitening"] <= got["diagonal"]


def test_shapes_are_in_two_groups_and_in_view(page: Any) -> None:
    shapes = page.evaluate(
        """() => bertflowFlow.shapes.map(shape => {
          const {points, groups} = bertflowFlow.points(shape, 400, 1);
          return [shape, Array.from(points), groups];
        })"""
    )
    assert [shape for shape, *_ in shapes] == ["two moons", "rings", "spiral", "two clouds"]
    for shape, points, groups in shapes:
        assert len(points) == 800, shape
        assert sum(groups) == 200, shape
        assert np.abs(points).max() < 4, shape


# What follows looks at the playground in the built chapter.

PLAY = "#flow-playground .flow-play"
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
STATE = """() => { const p = bertflowFlow.playground; return {
  step: p.state.trainer.steps, bits: p.state.bits, running: p.running, frames: p.frames,
  points: p.state.groups.length, ready: p.state.ready, curve: p.state.curve,
  spoken: p.spoken.textContent, numbers: p.numbers.textContent}; }"""


# The chapter but for its playground, and the libraries that draw what is left out.
REST = re.compile(
    r"(<article.*?>).*(<div id=.flow-playground.>.*?</noscript>\s*</div>).*(?=</article>)", re.S
)
LIBRARIES = re.compile(r"[^ \"]*/(?:plotly\.min|fontawesome|tex-chtml)\.js[^ \"]*")


@pytest.fixture(scope="module")
def alone(site: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the address of chapter 5 with nothing but its playground, far from both ends."""
    text = (site / PAGE).read_text(encoding="utf-8")
    far = '<div style="height: 3000px"></div>'
    text, cut = REST.subn(rf"\1{far}\2{far}", text)
    text, left_out = LIBRARIES.subn("../is-not-there.js", text)
    assert (cut, left_out) == (1, 3)
    text = text.replace("../_static/", f"{(site / '_static').as_uri()}/")
    path = tmp_path_factory.mktemp("playground") / "alone.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def playground(alone: str, chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open the playground alone; the test of how it is built opens the whole chapter."""
    opened = []

    def open_page(**settings: Any) -> Any:
        page = chromium.new_page(viewport={"width": 1280, "height": 900}, **settings)
        opened.append(page)
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(alone, wait_until="load")
        page.add_style_tag(content="html { scroll-behavior: auto !important; }")
        in_view(page)
        page.wait_for_function("() => window.bertflowFlow.playground")
        return page

    yield open_page
    for page in opened:
        complaints = page.complaints
        page.close()
        assert not complaints


# A playground that goes on would have made steps meanwhile.
SOME_FRAMES = """() => new Promise(done => {
  let left = 6;
  const next = () => left-- ? requestAnimationFrame(next) : done(true);
  next();
})"""


def in_view(page: Any) -> None:
    page.evaluate(
        "() => document.querySelector('#flow-playground').scrollIntoView({behavior: 'instant'})"
    )


def until(page: Any, condition: str) -> dict:
    """Wait until something holds for the playground `p`; give its state."""
    page.wait_for_function(f"() => {{ const p = bertflowFlow.playground; return {condition}; }}")
    return page.evaluate(STATE)


def picture(page: Any, name: str) -> str:
    return page.evaluate(f"() => bertflowFlow.playground.canvases.{name}.toDataURL()")


def wrong(page: Any) -> list[tuple[str, list[str]]]:
    """Give all that axe has to say about the playground."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, context="#flow-playground").response["violations"]
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def test_it_is_built_only_when_it_comes_near(site: Path, chromium: Any) -> None:
    """In the whole chapter, where it fits in, too."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / PAGE).as_uri(), wait_until="load")
    page.wait_for_function("() => document.querySelector('.plotly-graph-div .main-svg')")
    assert page.evaluate("() => typeof bertflowFlow.playground") == "undefined"
    in_view(page)
    page.wait_for_function("() => bertflowFlow.playground")
    assert not wrong(page)
    for width in (1280, 400):
        looks.show(page, width=width)
        assert page.evaluate(OVERFLOW) <= 0, width
    page.close()


def test_play_trains_and_pause_stops(playground: Callable[..., Any]) -> None:
    page = playground()
    before = page.evaluate(STATE)
    pictures = {name: picture(page, name) for name in ("data", "latent", "samples", "curve")}
    assert before["step"] == 0
    assert not before["running"]
    page.click(PLAY)
    assert page.inner_text(PLAY) == "Pause"
    until(page, "p.state.trainer.steps >= 40")
    page.click(PLAY)
    after = page.evaluate(STATE)
    assert page.inner_text(PLAY) == "Play"
    assert after["spoken"] == "Paused."
    assert after["step"] >= 40
    assert after["curve"][-1]["step"] == after["step"]
    assert after["bits"] < before["bits"]
    assert f"Step {after['step']}" in page.inner_text(".flow-numbers")
    for name, drawn in pictures.items():
        assert picture(page, name) != drawn, name
    page.evaluate(SOME_FRAMES)
    assert page.evaluate(STATE) == after


def test_step_makes_one_step_and_again_another_flow(playground: Callable[..., Any]) -> None:
    page = playground()
    first = picture(page, "data")
    page.click(".flow-step")
    assert page.evaluate(STATE)["step"] == 1
    page.click(".flow-again")
    assert page.evaluate(STATE)["step"] == 0
    assert page.evaluate("() => bertflowFlow.playground.state.settings.seed") == 1
    assert picture(page, "data") != first


def test_it_stops_by_itself(playground: Callable[..., Any]) -> None:
    page = playground()
    page.click(PLAY)
    page.evaluate("() => { bertflowFlow.playground.left = 10; }")
    after = until(page, "!p.running")
    assert "by itself" in after["spoken"]
    page.click(PLAY)
    until(page, f"p.state.trainer.steps > {after['step']}")


def test_leaving_the_page_or_its_place_stops_it(playground: Callable[..., Any]) -> None:
    page = playground()
    page.click(PLAY)
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); delete document.hidden; }"
    )
    assert "the page was left" in page.evaluate(STATE)["spoken"]
    page.click(PLAY)
    assert page.evaluate(STATE)["running"]
    page.evaluate("() => scrollTo({top: 0, behavior: 'instant'})")
    assert "out of sight" in until(page, "!p.running")["spoken"]


def test_who_wants_less_motion_sees_no_film(playground: Callable[..., Any]) -> None:
    page = playground(reduced_motion="reduce")
    page.evaluate(
        """() => { const pictures = bertflowFlow.playground.pictures, draw = pictures.draw;
          window.drawn = 0;
          pictures.draw = function (...given) { window.drawn += 1; draw.apply(this, given); }; }"""
    )
    page.click(PLAY)
    page.evaluate("() => { bertflowFlow.playground.left = 100; }")
    after = until(page, "!p.running")
    assert after["step"] >= 100
    assert page.evaluate("() => window.drawn") <= 2
    assert "by itself" in after["spoken"]


def test_every_choice_makes_a_flow_that_trains(playground: Callable[..., Any]) -> None:
    page = playground()
    for name, values in page.evaluate(
        """() => Array.from(document.querySelectorAll('#flow-playground select'),
          select => [select.name, Array.from(select.options, option => option.value)])"""
    ):
        assert len(values) > 1
        for value in values:
            if value == "your own":
                continue
            page.select_option(f"#flow-playground [name={name}]", value)
            page.click(".flow-step")
            found = page.evaluate(STATE)
            assert found["step"] == (1 if name != "learningRate" else found["step"])
            assert math.isfinite(found["bits"]), (name, value)
        page.select_option(f"#flow-playground [name={name}]", values[0])


def test_a_loss_that_explodes_is_said(playground: Callable[..., Any]) -> None:
    page = playground()
    page.evaluate("() => { bertflowFlow.playground.state.settings.learningRate = 1e9; }")
    page.click(PLAY)
    after = until(page, "!p.running")
    assert "no longer a number" in after["spoken"]
    assert page.is_disabled(PLAY)
    assert "NaN" not in page.inner_text("#flow-playground")
    page.evaluate("() => { bertflowFlow.playground.state.settings.learningRate = 0.002; }")
    page.click(".flow-again")
    assert page.is_enabled(PLAY)


def test_points_can_be_drawn_with_the_mouse(playground: Callable[..., Any]) -> None:
    page = playground()
    page.select_option("[name=shape]", "your own")
    empty = page.evaluate(STATE)
    assert empty["points"] == 0
    assert "Draw at least 20 points" in empty["spoken"]
    assert "NaN" not in page.inner_text("#flow-playground")
    assert page.is_disabled(PLAY)
    canvas = page.locator(".flow-data canvas")
    canvas.evaluate("canvas => canvas.scrollIntoView({block: 'center'})")
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] + 40, steps=12)
    page.mouse.up()
    drawn = page.evaluate(STATE)
    assert drawn["points"] >= 20
    first = page.evaluate("() => Array.from(bertflowFlow.playground.state.points.slice(0, 2))")
    assert_allclose(first, [0, 0], atol=0.4)
    page.click(PLAY)
    until(page, "p.state.trainer.steps >= 10")
    page.click(PLAY)
    page.click(".flow-clear")
    assert page.evaluate(STATE)["points"] == 0


def test_everything_can_be_done_with_the_keyboard(playground: Callable[..., Any]) -> None:
    page = playground()
    page.focus("[name=shape]")
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.name || "
                                     "document.activeElement.className"))  # fmt: skip
    assert reached == [
        "coupling", "actnorm", "depth", "width", "learningRate",
        "flow-play", "flow-step", "flow-again",
    ]  # fmt: skip
    page.focus(PLAY)
    page.keyboard.press("Enter")
    until(page, "p.running && p.state.trainer.steps > 2")
    page.keyboard.press("Enter")
    assert not page.evaluate(STATE)["running"]

    page.select_option("[name=shape]", "your own")
    page.focus(".flow-data canvas")
    page.locator(".flow-data canvas").evaluate("canvas => canvas.scrollIntoView({block: 'center'})")
    top = page.evaluate("() => scrollY")
    for key in ("Space", "ArrowRight", "ArrowRight", "ArrowUp", "Space", "Enter", "Space"):
        page.keyboard.press(key)
    found = page.evaluate(STATE)
    assert found["points"] == 24
    assert found["ready"]
    assert page.evaluate("() => scrollY") == top, "keys that draw do not scroll"
    assert page.evaluate("() => bertflowFlow.playground.cross") == [0.5, 0.25]
    assert page.evaluate("() => new Set(bertflowFlow.playground.state.groups).size") == 2


def test_it_is_accessible_and_fits(playground: Callable[..., Any]) -> None:
    page = playground()
    for width, theme in ((1280, "light"), (1280, "dark"), (400, "light")):
        looks.show(page, width=width, theme=theme)
        for shape in ("two moons", "your own"):
            page.select_option("[name=shape]", shape)
            assert not wrong(page), (width, theme, shape)
            assert page.evaluate(OVERFLOW) <= 0, (width, theme, shape)
        for canvas in page.locator("#flow-playground canvas").all():
            assert len(canvas.get_attribute("aria-label")) > 20
            box = canvas.bounding_box()
            assert box["x"] >= 0, (width, theme)
            assert box["x"] + box["width"] <= width, (width, theme)


def test_pictures_follow_the_theme(playground: Callable[..., Any]) -> None:
    page = playground()
    light = picture(page, "curve")
    page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
    page.wait_for_function(
        "light => bertflowFlow.playground.canvases.curve.toDataURL() !== light", arg=light
    )


def test_a_print_has_the_pictures_and_no_buttons(playground: Callable[..., Any]) -> None:
    page = playground()
    page.click(PLAY)
    page.pdf()
    assert not page.evaluate(STATE)["running"]
    page.emulate_media(media="print")
    assert not page.is_visible(PLAY)
    assert page.is_visible(".flow-latent canvas")


def test_without_javascript_the_film_stands_there(site: Path, chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / PAGE).as_uri(), wait_until="load")
    strip = page.locator("#flow-playground img")
    assert strip.is_visible()
    assert strip.bounding_box()["height"] > 100
    assert len(strip.get_attribute("alt")) > 50
    assert page.locator("#flow-playground :is(button, select, canvas)").count() == 0
    context.close()


def test_the_strip_shows_the_points_of_the_stored_film() -> None:
    svg = film.strip(ROOT / "book" / "05_flows.ipynb")
    assert [re.search(r"step (\d+)", part)[1] for part in svg.split("<g ")[1:]] == list(film.STEPS)
    counts = [part.count("h0") for part in svg.split("<g ")[1:]]
    assert min(counts) > 0.97 * 750
    assert max(counts) <= 750
    assert len({part.partition("<path")[2] for part in svg.split("<g ")[1:]}) == 4


def test_a_notebook_without_the_film_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.ipynb"
    path.write_text(json.dumps({"cells": [{"source": []}]}), encoding="utf-8")
    with pytest.raises(LookupError, match=r"other\.ipynb has no figure called"):
        film.strip(path)


def test_the_limits_that_the_chapter_names_are_right(page: Any) -> None:
    """The two clouds: how few bits a flow can reach that stretches nothing, or all by one factor.

    Such a flow keeps areas. At best it lays the plane round the origin by density, the densest
    first; a point then lies at the radius of a disc as large as all that is denser.
    """
    points, groups = page.evaluate(
        """() => { const {points, groups} = bertflowFlow.points("two clouds", 20000, 3);
          return [Array.from(points), groups]; }"""
    )
    u, group = np.reshape(points, (-1, 2)), np.array(groups)
    middles = [(-1.6, -0.8), (1.2, 0.4)]
    spreads = [0.15, 0.7]
    for k in (0, 1):
        assert_allclose(u[group == k].mean(axis=0), middles[k], atol=0.03)
        assert_allclose(u[group == k].std(axis=0), spreads[k], rtol=0.03)

    def density(x: np.ndarray) -> np.ndarray:
        squares = [np.square(x - middle).sum(axis=1) for middle in middles]
        parts = [
            np.exp(-square / (2 * s**2)) / (4 * np.pi * s**2)
            for square, s in zip(squares, spreads, strict=True)
        ]
        return np.sum(parts, axis=0)

    axis = np.linspace(-6, 6, 1200)
    levels = np.sort(-density(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)))
    area = np.searchsorted(levels, -density(u)) * (axis[1] - axis[0]) ** 2
    square = (area / np.pi).mean()
    nats = [
        -np.log(density(u)).mean(),
        np.log(2 * np.pi) + square / 2,
        np.log(2 * np.pi) + 1 + np.log(square / 2),  # scaled by what is best
    ]
    text = (ROOT / "book" / "05_flows.md").read_text(encoding="utf-8")
    named = re.search(
        r"never below (\d\.\d+).*?never below (\d\.\d+).*?is (\d\.\d+) bits", text, re.S
    )
    alone, scaled, best = (float(number) for number in named.groups())
    assert_allclose([best, alone, scaled], np.array(nats) / (2 * math.log(2)), atol=0.02)
