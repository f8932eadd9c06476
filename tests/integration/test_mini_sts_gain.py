"""The book's live example: the flow on smollm2's embeddings of mini-sts, with three seeds."""

import numpy as np
import pytest

import bertflow_lite as bf
from bertflow_lite.encoders.models import PACKAGED_MODELS


@pytest.mark.thorough  # test_readme has the first seed, and chapter 6 all three, to a digit
@pytest.mark.skipif(PACKAGED_MODELS["smollm2"].path() is None, reason="smollm2 is not installed")
def test_flow_gains_fifteen_points_on_mini_sts() -> None:
    pairs = bf.load_sts("mini-sts")
    raw = bf.load_encoder("smollm2").encode(pairs.sentences, layers="last2avg")
    scores = [
        bf.score_sts(pairs, bf.FlowCalibrator(random_state=seed).fit_transform(raw)).all
        for seed in range(3)
    ]
    assert min(scores) - bf.score_sts(pairs, raw).all >= 15
    assert np.ptp(scores) < 2
