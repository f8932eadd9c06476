import numpy as np
import pytest

from bertflow_lite import Encoder, FlowCalibrator, Standardizer, Whitener, load_sts, make_calibrator
from bertflow_lite.measures.diagnosis import diagnose, directions_to_learn


def cone(n=600, dim=12, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    x[:, 0] = 20 + rng.normal(size=n)
    return x.astype(np.float32)


def test_a_cone_is_seen_and_repaired():
    found = diagnose(cone(), Standardizer())
    assert found.mean_cosine > 0.9
    assert abs(found.mean_cosine_calibrated) < 0.05
    assert found.loudest > 0.9
    assert "cannot tell from the space alone" in found.advice[0]
    assert "hundred rated pairs" in found.advice[0] and "by rarity first" in found.advice[0]
    assert "gain" not in " ".join(found.advice)  # a cone is no promise
    assert "cannot be known without ratings" in found.advice[-1]


def test_a_round_space_is_left_alone():
    x = np.random.default_rng(0).normal(size=(600, 12)).astype(np.float32)
    found = diagnose(x, Standardizer())
    assert abs(found.mean_cosine) < 0.05
    assert found.agreement > 0.98 and found.kept_neighbors > 0.8
    assert "spread out already" in found.advice[0] and "Leave it as it is" in found.advice[0]
    assert "cannot tell" not in found.advice[0]


def test_few_sentences_are_unsteady():
    x = cone(n=40, dim=30)
    found = diagnose(x, Whitener())
    assert found.steadiness < 0.5
    assert any("few for 30 dimensions" in line for line in found.advice)
    assert any("different halves" in line for line in found.advice)


def test_dead_dimensions_and_repeats_are_counted():
    x = cone()
    x[:, 5] = 1.0
    found = diagnose(np.concatenate([x, x]), Standardizer())
    assert found.live == 11 and found.n == 600
    assert any("1 of 12 dimensions" in line for line in found.advice)


def test_the_calibrator_given_stays_unfitted():
    calibrator = FlowCalibrator()
    one = diagnose(cone(200), calibrator)
    assert not hasattr(calibrator, "flow_")
    assert one == diagnose(cone(200), calibrator)


def test_a_bad_row_is_named_as_it_was_given():
    x = cone()
    x[7, 3] = np.nan
    with pytest.raises(ValueError, match="Row 7 of the embeddings"):
        diagnose(x, Standardizer())
    with pytest.raises(ValueError, match="random_state is -1"):
        diagnose(cone(), Standardizer(), random_state=-1)


@pytest.mark.parametrize(
    ("name", "directions"),
    [("sn", 0), ("natsv:3", 0), ("whiten", 12), ("whiten:4", 4), ("flow", 12), ("sn+whiten:5", 5)],
)
def test_directions_to_learn(name, directions):
    assert directions_to_learn(make_calibrator(name), 12) == directions


def test_too_few():
    with pytest.raises(ValueError, match="24 or more"):
        diagnose(np.ones((100, 4)), Standardizer())


def test_real_sentences(minilm):
    sentences = load_sts("mini-sts").sentences
    by_layers = Encoder(minilm).encode(sentences, ["last", 4])
    tuned = diagnose(by_layers["last"], Standardizer())
    inner = diagnose(by_layers["4"], Standardizer())
    assert tuned.mean_cosine < 0.1 < 0.4 < inner.mean_cosine
    assert inner.iso_score_calibrated > inner.iso_score
