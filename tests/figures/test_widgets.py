import sys

import pytest

from bertflow_lite import Encoder, Standardizer, load_sts
from bertflow_lite.figures.widgets import explore_pairs
from bertflow_lite.measures.comparison import PairComparer
from bertflow_lite.measures.similarity import cosine

FEW = {"raw": "none", "standardized (SN)": "sn"}


@pytest.fixture(scope="module")
def pairs():
    return load_sts("mini-sts")


@pytest.fixture(scope="module")
def comparer(minilm, pairs):
    return PairComparer(Encoder(minilm), pairs.sentences, 4, FEW)


def test_compare_equals_the_calibrator_by_hand(minilm, pairs, comparer):
    texts = list(dict.fromkeys(pairs.sentences))
    encoder = Encoder(minilm)
    two = encoder.encode(["A dog barks.", "A dog is barking."], 4)
    expected = Standardizer().fit(encoder.encode(texts, 4)).transform(two)
    raw, standardized = comparer.compare("A dog barks. ", "A dog is barking.")
    assert raw.cosine == pytest.approx(float(cosine(two[:1], two[1:])[0]), abs=1e-5)
    assert standardized.cosine == pytest.approx(
        float(cosine(expected[:1], expected[1:])[0]), abs=1e-5
    )
    assert raw.percentile > 99 and standardized.percentile > 99


def test_percentiles_tell_near_from_far(comparer):
    near = comparer.compare("The cat sleeps.", "A cat is sleeping.")
    far = comparer.compare("The cat sleeps.", "Inflation rose in March.")
    for one, two in zip(near, far, strict=True):
        assert one.percentile > two.percentile


def test_bad_input(minilm, comparer):
    with pytest.raises(ValueError, match="empty"):
        comparer.compare("A cat.", "  ")
    with pytest.raises(ValueError, match="no background"):
        PairComparer(Encoder(minilm), ["one", "one"], 4)


def test_pair_explorer_follows_its_boxes(comparer):
    box = explore_pairs(comparer, "A <b>cat</b>.", "A dog.")
    first, second, out = box.children
    before = out.value
    assert before.count("<tr>") == 3
    second.value = "A <b>cat</b>."
    assert out.value != before and "1.00" in out.value
    first.value = ""
    assert "empty" in out.value and "<table>" not in out.value


def test_without_ipywidgets(monkeypatch, comparer):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match="pip install ipywidgets"):
        explore_pairs(comparer)
