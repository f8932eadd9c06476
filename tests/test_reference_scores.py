"""Scores on the real sets against published numbers and the project's own aims.

They need the real STS data and the packaged models, and about three minutes on two cores.
"""

from pathlib import Path

import numpy as np
import pytest

import bertflow_lite as bf

pytestmark = [pytest.mark.data, pytest.mark.slow]

# MTEB's published cosine Spearman of all-MiniLM-L6-v2, "all"; SICK-R over all its pairs there,
# and over its test split, which the paper's tables use.
MTEB = [
    ("sts12", None, 72.37),
    ("sts13", None, 80.60),
    ("sts14", None, 75.59),
    ("sts15", None, 85.39),
    ("sts16", None, 78.99),
    ("stsb", None, 82.03),
    ("sick-r", "all", 77.58),
    ("sick-r", "test", 77.15),
]


@pytest.fixture(scope="module")
def minilm():
    """MiniLM at MTEB's maximum length; layers 4 and last come from one pass."""
    return bf.load_encoder("minilm", max_length=256)


@pytest.mark.parametrize(("name", "split", "published"), MTEB)
def test_minilm_meets_mteb(name, split, published, real_data: Path, minilm) -> None:
    pairs = bf.load_sts(name, split)
    embeddings = minilm.encode(pairs.sentences, layers=["last", 4])["last"]
    assert bf.score_sts(pairs, embeddings).all == pytest.approx(published, abs=0.02)


def test_flow_lifts_an_inner_block(real_data: Path, minilm) -> None:
    test, target = bf.load_sts("stsb"), bf.load_sts("stsb", "all")
    embeddings = minilm.encode(test.sentences, layers=["last", 4])["4"]
    fitted = minilm.encode(target.sentences, layers=["last", 4])["4"]
    flow = bf.FlowCalibrator(random_state=0).fit(fitted)
    assert bf.score_sts(test, embeddings).all == pytest.approx(59.6, abs=0.05)
    assert bf.score_sts(test, flow.transform(embeddings)).all >= 69


def test_flow_on_the_tuned_layer_is_finite_and_close_to_raw(real_data: Path, minilm) -> None:
    pairs = bf.load_sts("stsb")
    embeddings = minilm.encode(pairs.sentences, layers=["last", 4])["last"]
    with pytest.warns(UserWarning, match="127, 223, 319"):
        latent = bf.FlowCalibrator(random_state=0).fit_transform(embeddings)
    assert np.isfinite(latent).all()
    raw, calibrated = bf.score_sts(pairs, embeddings).all, bf.score_sts(pairs, latent).all
    assert abs(raw - calibrated) < 3


def test_flow_lifts_a_language_model(real_data: Path) -> None:
    """Fitted on the test sentences alone, to spare the time of encoding all splits."""
    pairs = bf.load_sts("stsb")
    embeddings = bf.load_encoder("smollm2").encode(pairs.sentences, layers="last2avg")
    latent = bf.FlowCalibrator(random_state=0).fit_transform(embeddings)
    assert bf.score_sts(pairs, embeddings).all < 20
    assert bf.score_sts(pairs, latent).all > 50


def test_stored_runs_can_be_made_again(real_data: Path, minilm) -> None:
    """A sample of the stored run, recomputed: raw, standardized and whitened need no seed."""
    rows = bf.load_run("sts", "minilm")["results"]
    encoder = bf.load_encoder("minilm")
    pairs = bf.load_sts("sts16")
    embeddings = encoder.encode(pairs.sentences, layers=4)
    for name in ("none", "sn", "whiten"):
        (stored,) = [
            r for r in rows if (r["data"], r["layers"], r["calibrator"]) == ("sts16", "4", name)
        ]
        calibrator = bf.make_calibrator(name)
        z = embeddings if calibrator is None else calibrator.fit_transform(embeddings)
        score = bf.score_sts(pairs, z)
        assert score.all == pytest.approx(stored["all"], abs=0.02)
        assert score.wmean == pytest.approx(stored["wmean"], abs=0.02)
