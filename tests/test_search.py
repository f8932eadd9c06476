import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from bertflow_lite import search
from bertflow_lite.search import nearest


@pytest.mark.parametrize("rows", [7, 10, 65_536])
def test_agrees_with_sklearn_however_it_is_cut(monkeypatch, rows):
    monkeypatch.setattr(search, "_ROWS", rows)
    rng = np.random.default_rng(0)
    queries, pool = rng.normal(size=(5, 6)), rng.normal(size=(50, 6))
    pool[3] = 0
    expected = cosine_similarity(queries, pool)
    indices, cosines = nearest(queries, pool, top=9)
    assert np.array_equal(indices, np.argsort(-expected, axis=1, kind="stable")[:, :9])
    assert np.allclose(cosines, np.take_along_axis(expected, indices, 1), atol=1e-5)


def test_ties_keep_the_order_and_top_is_bounded():
    indices, cosines = nearest(np.ones((1, 2)), np.ones((4, 2)), top=10)
    assert indices.tolist() == [[0, 1, 2, 3]]
    assert np.allclose(cosines, 1)


def test_bad_input():
    with pytest.raises(ValueError, match="top is 0"):
        nearest(np.ones((1, 2)), np.ones((4, 2)), top=0)
    with pytest.raises(ValueError, match=r"\(1, 2\) and \(4, 3\)"):
        nearest(np.ones((1, 2)), np.ones((4, 3)))
    with pytest.raises(ValueError, match="NaN"):
        nearest(np.full((1, 2), np.nan), np.ones((4, 2)))


def test_memory_map(tmp_path):
    pool = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.save(tmp_path / "pool.npy", pool)
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    assert nearest(pool[:2], mapped, top=1)[0].tolist() == [[0], [1]]


def test_many_queries_are_searched_in_parts(monkeypatch):
    monkeypatch.setattr(search, "_QUERIES", 4)
    rng = np.random.default_rng(0)
    queries, pool = rng.normal(size=(11, 6)), rng.normal(size=(50, 6))
    expected = cosine_similarity(queries, pool)
    indices, cosines = nearest(queries, pool, top=3)
    assert np.array_equal(indices, np.argsort(-expected, axis=1, kind="stable")[:, :3])
    assert cosines.shape == (11, 3) and cosines.dtype == np.float32
