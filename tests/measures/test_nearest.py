import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import cosine_similarity

from bertflow_lite.measures import similarity as search
from bertflow_lite.measures.similarity import nearest


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
    for top in (2.0, "2", None):
        with pytest.raises(ValueError, match="whole number"):
            nearest(np.ones((1, 2)), np.ones((4, 2)), top=top)
    with pytest.raises(ValueError, match="row 0 of queries holds NaN"):
        nearest(np.full((1, 2), np.nan), np.ones((4, 2)))
    with pytest.raises(ValueError, match="sparse"):
        nearest(np.ones((1, 2)), csr_matrix(np.ones((4, 2))))
    with pytest.raises(ValueError, match="must hold numbers"):
        nearest(["a cat"], np.ones((4, 2)))


@pytest.mark.parametrize("rows", [3, 65_536])
def test_a_bad_candidate_is_named_by_its_row(monkeypatch, rows):
    monkeypatch.setattr(search, "_ROWS", rows)
    pool = np.ones((9, 2))
    pool[7, 1] = np.inf
    with pytest.raises(ValueError, match="row 7 of candidates"):
        nearest(np.ones((1, 2)), pool)


@pytest.mark.parametrize("scale", [1e25, 1e-30, 1e250, 1e-250])
def test_lengths_of_any_size(scale):
    pool = np.random.default_rng(0).normal(size=(20, 6))
    expected, cosines = nearest(pool[:3], pool, top=4)
    found, scaled = nearest(pool[:3] * scale, pool * scale, top=4)
    assert np.array_equal(found, expected) and np.allclose(scaled, cosines, atol=1e-6)
    assert cosines.max() <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_taken(dtype):
    pool = torch.eye(5, dtype=dtype)
    assert nearest(pool[2:3], pool, top=1)[0].tolist() == [[2]]


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
