"""FlowCalibrator as a user meets it, and calibrators by name."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import PRESETS, FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.export.pipeline import load, save
from bertflow_lite.train import NonFiniteLossError


def embeddings(n: int = 300, dim: int = 10, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


def small(**changes) -> FlowCalibrator:
    return FlowCalibrator(**{"width": 8, "device": "cpu", **changes})


@pytest.mark.parametrize(("dtype", "within"), [(np.float32, 1e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_inverse_gives_the_embeddings_back(preset, dtype, within):
    # Not narrow: without data, the released code's first scales are wild in few dimensions.
    x = embeddings(dim=192, dtype=dtype)
    flow = FlowCalibrator.from_preset(preset, device="cpu").fit(x)
    z = flow.transform(x)
    assert z.shape == x.shape and z.dtype == dtype
    assert_allclose(flow.inverse_transform(z), x, rtol=0, atol=within * np.abs(x).max())


def test_presets_say_what_the_paper_and_its_code_do():
    paper, code = FlowCalibrator.from_preset("paper"), FlowCalibrator.from_preset("released-code")
    assert (paper.levels, paper.depth, paper.width, paper.permutation) == (2, 3, 32, "random")
    assert (paper.data_init, paper.epochs, paper.learning_rate) == (True, 1, 1e-3)
    assert (code.levels, code.depth, code.width, code.permutation) == (3, 3, 32, "reverse")
    assert (code.data_init, code.optimizer) == (False, "released-code")
    assert FlowCalibrator.from_preset("paper", levels=5).levels == 5


def test_a_misspelt_preset_offers_the_closest():
    with pytest.raises(ValueError, match=r"there are paper.*Did you mean 'released-code'"):
        FlowCalibrator.from_preset("released_code")


def test_scores_are_log_densities_and_bits_are_their_mean():
    x = embeddings()
    x[:, 4] = 2.5
    with pytest.warns(DeadDimensionWarning):
        flow = small().fit(x)
    scores = flow.score_samples(x)
    with torch.no_grad():
        expected = flow.flow_.log_prob(torch.from_numpy(x[:, flow.live_]))
    assert_allclose(scores, expected, rtol=1e-5)
    assert flow.score(x) == pytest.approx(scores.mean())
    assert flow.bits_per_dim(x) == pytest.approx(-scores.mean() / (9 * math.log(2)), rel=1e-5)
    assert flow.score(x) > flow.score(x + 20)


def test_random_state_decides_the_fit_and_clone_keeps_it():
    x = embeddings()
    first = small(random_state=3).fit(x)
    before = torch.get_rng_state()
    again = clone(first).fit(x)
    assert torch.equal(before, torch.get_rng_state())
    assert_array_equal(first.transform(x), again.transform(x))
    assert_array_equal(first.transform(x), small(random_state=np.int64(3)).fit(x).transform(x))
    assert not np.allclose(first.transform(x), small(random_state=4).fit(x).transform(x))


def test_transform_does_not_depend_on_the_other_rows(monkeypatch):
    x = embeddings()
    flow = small().fit(x)
    whole = flow.transform(x)
    monkeypatch.setattr("bertflow_lite.calibrators.flow_calibrator.TRANSFORM_ROWS", 7)
    assert_allclose(flow.transform(x), whole, atol=1e-5)
    assert_allclose(flow.transform(x[5:6]), whole[5:6], atol=1e-5)


def test_pickling_keeps_the_map():
    x = embeddings()
    flow = small().fit(x)
    assert_array_equal(pickle.loads(pickle.dumps(flow)).transform(x), flow.transform(x))


def test_data_init_starts_near_the_optimum_and_its_absence_does_not():
    x = embeddings()
    with_data, without = small().fit(x), small(data_init=False).fit(x)
    assert with_data.history_.loss[0] + 1 < without.history_.loss[0]
    assert abs(small(epochs=0).fit(x).transform(x).mean()) < 1e-5


def test_init_rows_limits_what_the_initialisation_sees():
    x = embeddings()
    few = small(epochs=0, init_rows=20).fit(x).transform(x)
    every = small(epochs=0).fit(x).transform(x)
    assert 0.01 < np.abs(few.mean(axis=0)).max() < 1.5
    assert np.abs(every.mean(axis=0)).max() < 1e-4


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({}, 9), ({"epochs": 3}, 27), ({"min_steps": 10}, 18), ({"batch_size": 1000}, 1),
     ({"epochs": 0, "min_steps": 10}, 0)],
)  # fmt: skip
def test_number_of_steps(changes, steps):
    assert small(**changes).fit(embeddings()).history_.steps == steps


@pytest.mark.parametrize("dim", [2, 3, 5, 17])
@pytest.mark.parametrize("levels", [1, 4])
def test_odd_and_tiny_widths(dim, levels):
    x = embeddings(dim=dim)
    flow = small(levels=levels).fit(x)
    assert_allclose(flow.inverse_transform(flow.transform(x)), x, atol=1e-4)


def test_two_rows_are_enough():
    x = embeddings(n=2)
    flow = small().fit(x)
    assert_allclose(flow.inverse_transform(flow.transform(x)), x, atol=1e-4)


def test_one_live_dimension_is_not_enough():
    x = np.full((20, 3), 0.5)
    x[:, 1] = np.arange(20)
    with (
        pytest.warns(DeadDimensionWarning),
        pytest.raises(ValueError, match="only 1 of 3 dimensions"),
    ):
        small().fit(x)


@pytest.mark.parametrize("method", ["transform", "inverse_transform", "score_samples"])
def test_another_width_is_refused(method):
    flow = small().fit(embeddings())
    with pytest.raises(ValueError, match="X has 9 features, but FlowCalibrator is expecting 10"):
        getattr(flow, method)(embeddings()[:, :9])


def test_a_row_that_overflows_is_named():
    flow = small().fit(embeddings())
    far = embeddings()[:3]
    far[1] = 3e38
    with pytest.warns(RuntimeWarning, match="row 1 maps to a non-finite value"):
        flow.transform(far)


def test_divergence_is_an_error():
    with pytest.raises(NonFiniteLossError, match="at step"):
        small(learning_rate=1e4).fit(embeddings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        ({"init_rows": 1}, "init_rows is 1; it must be 2 or more"),
        ({"epochs": -1}, "epochs is -1"),
        ({"min_steps": -1}, "min_steps is -1"),
        ({"levels": 0}, "levels is 0"),
        ({"permutation": "shuffle"}, "'shuffle'"),
        ({"optimizer": "sgd"}, "'sgd'"),
        ({"learning_rate": -1.0}, "learning_rate -1.0"),
        ({"learning_rate": "x"}, "learning_rate is 'x', of type str; it must be a number"),
        ({"noise": "1"}, "noise is '1', of type str"),
        ({"levels": 2.0}, "levels is 2.0, of type float; it must be a whole number: give an int"),
        ({"width": True}, "width is True, of type bool"),
        ({"init_rows": 4096.0}, "init_rows is 4096.0"),
        ({"batch_size": 32.0}, "batch_size is 32.0"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"min_steps": None}, "min_steps is None"),
        ({"actnorm": 1}, "actnorm is 1, of type int; it must be True or False"),
        ({"coupling": 1}, "coupling is 1"),
        ({"data_init": "no"}, "data_init is 'no'"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0; it must be a number more than 0, or N"),
        ({"max_grad_norm": 0}, "max_grad_norm is 0;"),
        ({"max_grad_norm": math.nan}, "max_grad_norm is nan"),
        ({"max_grad_norm": "1"}, "max_grad_norm is '1'"),
        ({"random_state": 1.5}, "random_state is 1.5, of type float; it must be a whole number"),
        ({"random_state": "a"}, "random_state is 'a'"),
        ({"random_state": True}, "random_state is True"),
    ],
)
def test_bad_settings_are_named_at_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes).fit(embeddings())


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("sn", Standardizer, {}),
        ("natsv", TopDirectionRemover, {"k": 1}),
        ("natsv:3", TopDirectionRemover, {"k": 3}),
        ("whiten", Whitener, {"n_components": None}),
        ("whiten:64", Whitener, {"n_components": 64}),
        ("flow", FlowCalibrator, {"levels": 2, "random_state": 5, "progress": True}),
        ("flow:released-code", FlowCalibrator, {"levels": 3, "permutation": "reverse"}),
    ],
)
def test_make_calibrator_by_name(name, kind, settings):
    made = make_calibrator(name, random_state=5, progress=True)
    assert type(made) is kind
    assert settings.items() <= made.get_params().items()


def test_make_calibrator_joins_with_plus_and_leaves_none_out():
    assert make_calibrator("none") is None and make_calibrator("none+none") is None
    both = make_calibrator("sn+natsv:2+none")
    assert [type(step) for _, step in both.steps] == [Standardizer, TopDirectionRemover]
    assert both.fit_transform(embeddings()).shape == (300, 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flwo", "no calibrator 'flwo'.*Did you mean 'flow'"),
        ("", "no calibrator ''; there are none, sn"),
        ("sn:3", "no calibrator 'sn:3'"),
        ("whiten:many", "'whiten:many': 'many' is not a whole number"),
        ("flow:papr", "Did you mean 'paper'"),
        ("sn+x", "no calibrator 'x'"),
    ],
)
def test_make_calibrator_names_what_it_does_not_know(name, message):
    with pytest.raises(ValueError, match=message):
        make_calibrator(name)


def test_the_dead_dimensions_of_minilms_last_layer_do_no_harm(minilm):
    sentences = load_sts("mini-sts").sentences[:100]
    x = Encoder(minilm).encode(sentences, "last")
    with pytest.warns(DeadDimensionWarning, match="3 of 384 dimensions"):
        flow = small().fit(x)
    z = flow.transform(x)
    assert np.isfinite(z).all() and np.abs(z).max() < 20
    assert_allclose(flow.inverse_transform(z), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [lambda: None, lambda: np.random.default_rng(5), lambda: np.random.RandomState(5)],
    ids=["none", "generator", "random-state"],
)
def test_random_state_as_scikit_learn_takes_it(make, tmp_path):
    x = embeddings()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = small(random_state=make()).fit(x)
    after = np.random.get_state()[1]  # noqa: NPY002
    assert_array_equal(after, before)  # the global state is not touched
    assert_array_equal(small(random_state=first.seed_).fit_transform(x), first.transform(x))
    second = small(random_state=make()).fit(x)
    assert (first.seed_ == second.seed_) == (make() is not None)
    loaded = load(save(first, tmp_path / "c.safetensors"))  # what is saved can be repeated
    assert loaded.random_state == loaded.seed_ == first.seed_
    assert_array_equal(loaded.fit(x).transform(x), first.transform(x))


def test_numpys_truth_values_and_numbers_are_settings(tmp_path):
    x = embeddings()
    flow = small(coupling=np.bool_(True), noise=np.float32(0.5), depth=np.int64(2)).fit(x)
    loaded = load(save(flow, tmp_path / "c.safetensors"))
    assert_array_equal(loaded.transform(x), flow.transform(x))
    assert loaded.coupling is True
