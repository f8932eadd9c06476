import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import cosine_similarity

from bertflow_lite.measures.similarity import nearest


def test_agrees_with_cosines_of_all_pairs():
    rng = np.random.default_rng(0)
    queries, pool = rng.normal(size=(11, 6)), rng.normal(size=(50, 6))
    pool[3] = 0
    expected = cosine_similarity(queries, pool)
    indices, cosines = nearest(queries, pool, top=9)
    assert np.array_equal(indices, np.argsort(-expected, axis=1, kind="stable")[:, :9])
    assert np.allclose(cosines, np.take_along_axis(expected, indices, 1), atol=1e-5)
    assert cosines.shape == (11, 9) and cosines.dtype == np.float32


def test_top_is_bounded_and_nothing_may_be_asked():
    indices, cosines = nearest(np.ones((1, 2)), np.ones((4, 2)), top=10)
    assert sorted(indices[0]) == [0, 1, 2, 3]  # all are equally near: any order
    assert np.allclose(cosines, 1)
    assert nearest(np.ones((0, 2)), np.ones((4, 2)), top=3)[0].shape == (0, 3)
    assert nearest(np.ones((2, 2)), np.ones((0, 2)))[1].shape == (2, 0)


def test_a_zero_vector_has_cosine_0_with_everything():
    assert nearest(np.zeros((1, 2)), np.ones((4, 2)), top=2)[1].tolist() == [[0, 0]]


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


def test_a_bad_candidate_is_named_by_its_row():
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
