"""Each measure against an independent computation of its definition, and Table 1."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.neighbors import NearestNeighbors

from bertflow_lite.experiments.geometry import frequency_shares
from bertflow_lite.experiments.table1 import WordEmbeddings, find_neighbors, make_table1
from bertflow_lite.measures.geometry import (
    effective_rank,
    iso_score,
    mean_cosine,
    partition_score,
    sampled_mean_cosine,
    singular_values,
)


@pytest.fixture
def cone():
    """A skewed cloud away from the origin."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12)) + 2


# Mean cosine


def test_mean_cosine_is_the_mean_over_all_pairs(cone):
    unit = cone / np.linalg.norm(cone, axis=1, keepdims=True)
    pairs = [a @ b for a, b in itertools.combinations(unit, 2)]
    result = mean_cosine(cone)
    assert result.estimate == pytest.approx(np.mean(pairs))
    assert result.n_pairs == len(pairs)


def test_its_interval_is_the_jackknife_over_rows(cone):
    x = cone[:40]
    left_out = [mean_cosine(np.delete(x, i, axis=0)).estimate for i in range(len(x))]
    error = np.sqrt(39 / 40 * np.square(left_out - np.mean(left_out)).sum())
    result = mean_cosine(x)
    assert result.high - result.estimate == pytest.approx(1.959964 * error, rel=1e-5)


def test_its_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    population = rng.normal(size=(4000, 5)) + 1
    truth = mean_cosine(population).estimate
    results = [mean_cosine(rng.choice(population, 80, replace=False)) for _ in range(400)]
    assert 0.91 < np.mean([r.low <= truth <= r.high for r in results]) < 0.98


def test_sampled_cosine_covers_the_exact_one_and_never_pairs_a_row_with_itself(cone):
    exact = mean_cosine(cone).estimate
    results = [sampled_mean_cosine(cone, n_pairs=500, random_state=seed) for seed in range(200)]
    assert 0.90 < np.mean([r.low <= exact <= r.high for r in results]) < 0.99
    assert sampled_mean_cosine([[1.0, 0.0], [0.0, 1.0]]).estimate == 0
    assert results[3] == sampled_mean_cosine(cone, n_pairs=500, random_state=3)


def test_a_zero_row_has_cosine_zero():
    assert mean_cosine([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]).estimate == pytest.approx(1 / 3)


def test_an_isotropic_cloud_has_mean_cosine_near_zero():
    assert abs(mean_cosine(np.random.default_rng(2).normal(size=(3000, 50))).estimate) < 0.001


# Spectrum


def test_singular_values(cone):
    centered = cone - cone.mean(axis=0)
    assert singular_values(cone) == pytest.approx(np.linalg.svd(centered, compute_uv=False))


def test_effective_rank_by_its_definition():
    s = np.array([4.0, 3.0, 2.0, 0.0])
    p = s / s.sum()
    assert effective_rank(s) == pytest.approx(np.exp(-sum(v * np.log(v) for v in p if v)))
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank([5.0, 0.0, 0.0]) == pytest.approx(1)


# Isotropy scores


def published_iso_score(covariance: np.ndarray) -> float:
    """Rudman et al. 2022, Algorithm 1, step by step, from the covariance."""
    n = len(covariance)
    variances = np.linalg.eigvalsh(covariance)  # steps 2 to 4: PCA, then the diagonal
    normalized = np.sqrt(n) * variances / np.linalg.norm(variances)  # step 5
    defect = np.linalg.norm(normalized - 1) / np.sqrt(2 * (n - np.sqrt(n)))  # step 6
    used = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2  # step 7
    return (n * used - 1) / (n - 1)  # step 8


def test_iso_score_follows_the_published_steps(cone):
    assert iso_score(cone) == pytest.approx(published_iso_score(np.cov(cone.T)))


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_iso_score_of_k_even_directions_is_the_share_of_dimensions(k):
    cross = np.vstack([np.eye(9)[:k], -np.eye(9)[:k]]) * 3.0  # variance in k of 9 directions
    assert iso_score(cross) == pytest.approx((k - 1) / (9 - 1), abs=1e-12)


def test_iso_score_sees_neither_mean_nor_scale_nor_rotation(cone):
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(12, 12)))
    assert iso_score(5 * cone @ rotation + 100) == pytest.approx(iso_score(cone))


def test_partition_score_by_its_definition(cone):
    x = cone / 10
    _, vectors = np.linalg.eigh(x.T @ x)
    z = [np.exp(x @ (sign * c)).sum() for c in vectors.T for sign in (1, -1)]
    assert partition_score(x) == pytest.approx(min(z) / max(z))


def test_partition_score_at_its_ends():
    cross = np.vstack([np.eye(6), -np.eye(6)])
    assert partition_score(cross) == pytest.approx(1)
    line = np.tile([[1.0, 0.0]], (5, 1))  # unit rows all alike: exp(-1) / exp(1)
    assert partition_score(line) == pytest.approx(np.exp(-2))
    assert partition_score(1e4 * line) == 0  # no overflow


# Frequency


def test_frequency_shares_are_r_squared(cone):
    f = cone[:, 0] + 3 * np.random.default_rng(4).normal(size=len(cone))
    shares = frequency_shares(cone, f, n_directions=3)
    fitted = LinearRegression().fit(f[:, None], cone).predict(f[:, None])
    assert shares["all"] == pytest.approx(r2_score(cone, fitted, multioutput="variance_weighted"))
    centered = cone - cone.mean(axis=0)
    _, s, directions = np.linalg.svd(centered, full_matrices=False)
    scores = centered @ directions.T
    r2 = [np.corrcoef(scores[:, j], f)[0, 1] ** 2 for j in range(3)]
    assert shares["explained"] == pytest.approx(r2)
    assert shares["variance"] == pytest.approx(s[:3] ** 2 / (s**2).sum())
    assert shares["top"] == pytest.approx(np.average(r2, weights=s[:3] ** 2))


def test_frequency_shares_survive_flat_directions(cone):
    flat = np.hstack([cone, np.ones((300, 2))])
    with np.errstate(all="raise"):
        shares = frequency_shares(flat, cone[:, 0], n_directions=20)
    assert len(shares["variance"]) == 14
    assert shares["explained"][-1] == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mean_cosine(np.ones((2, 3))), "at least 3 rows"),
        (lambda: mean_cosine(np.full((4, 3), np.nan)), "NaN"),
        (lambda: sampled_mean_cosine(np.ones((4, 3)), n_pairs=1), "n_pairs is 1"),
        (lambda: effective_rank([0.0, 0.0]), "above 0"),
        (lambda: effective_rank([1.0, -1.0]), "at least 0"),
        (lambda: iso_score(np.ones((4, 3))), "rows are equal"),
        (lambda: iso_score(np.ones((4, 1))), "only one"),
        (lambda: frequency_shares(np.eye(4), np.ones(4)), "nothing to explain"),
        (lambda: frequency_shares(np.eye(4), [1.0, 2.0]), "4 embeddings, but 2"),
        (lambda: find_neighbors(np.eye(4), np.arange(4), k=4), "k is 4"),
        (lambda: find_neighbors(np.eye(4), np.array([4]), k=1), "lies outside"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Neighbors and Table 1


@pytest.mark.parametrize("n", [50, 3001])  # below and above the size where runs are used
def test_neighbors_are_scikit_learns(n):
    rng = np.random.default_rng(5)
    vectors = (rng.normal(size=(n, 20)) + 1).astype(np.float32)
    rows = rng.permutation(n)[:40]
    found = find_neighbors(vectors, rows, k=7)
    judge = NearestNeighbors(n_neighbors=8, algorithm="brute").fit(vectors.astype(np.float64))
    distances, indices = judge.kneighbors(vectors[rows].astype(np.float64))
    assert (found.by_distance == indices[:, 1:]).all()
    assert found.distance == pytest.approx(distances[:, 1:], rel=1e-5)
    dots = vectors[rows].astype(np.float64) @ vectors.T.astype(np.float64)
    dots[np.arange(40), rows] = -np.inf
    assert found.dot == pytest.approx(-np.sort(-dots, axis=1)[:, :7], rel=1e-5)


def test_neighbors_do_not_depend_on_the_block_size(monkeypatch):
    vectors = np.random.default_rng(6).normal(size=(500, 8)).astype(np.float32)
    whole = find_neighbors(vectors, np.arange(500))
    monkeypatch.setattr("bertflow_lite.experiments.table1._BLOCK_CELLS", 7 * 500)
    parts = find_neighbors(vectors, np.arange(500))
    assert (whole.by_distance == parts.by_distance).all()
    assert (whole.by_dot == parts.by_dot).all()


def test_a_twin_is_a_neighbor_and_oneself_is_not():
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [5.0, 0.0]], dtype=np.float32)
    found = find_neighbors(vectors, np.array([0, 2]), k=1)
    assert found.by_distance[0, 0] == 1 and found.distance[0, 0] == 0
    assert found.by_distance[1, 0] in (0, 1) and found.distance[1, 0] == 4


class ToyTokenizer:
    """Byte-level in spirit: "Ġcat" within a sentence; "dog" is of two tokens."""

    vocabulary = dict.fromkeys(["<s>", "[unused1]", "Ġcat", "cat", "Ġthe", "Ġd", "og", "Ġa"])
    all_special_ids = (0,)

    def __init__(self):
        self.vocabulary = {token: i for i, token in enumerate(self.vocabulary)}
        self.added_tokens_decoder = {0: SimpleNamespace(special=True)}

    def get_vocab(self):
        return self.vocabulary

    def __call__(self, texts, add_special_tokens):
        assert not add_special_tokens
        pieces = {" dog": [5, 6], " á": [7]}  # accents are dropped
        return {
            "input_ids": [pieces.get(t) or [self.vocabulary.get("Ġ" + t[1:], 1)] for t in texts]
        }

    def decode(self, ids):
        return "".join(list(self.vocabulary)[i] for i in ids).replace("Ġ", " ")


@pytest.fixture
def toy():
    matrix = torch.nn.Embedding(10, 4)  # two rows more than tokens
    model = SimpleNamespace(get_input_embeddings=lambda: matrix)
    return SimpleNamespace(model=model, tokenizer=ToyTokenizer())


def test_words_are_single_tokens_in_their_form_within_a_sentence(toy):
    words = WordEmbeddings.of(toy, ["the", "á", "dog", "cat", "zebra", "a"])
    assert words.words == ("the", "cat", "a")
    assert words.ranks.tolist() == [0, 3, 5]
    assert words.tokens == ("Ġcat", "cat", "Ġthe", "Ġd", "og", "Ġa")
    assert words.n_left_out == 4  # <s>, [unused1], and two rows without a token
    weight = toy.model.get_input_embeddings().weight.detach().numpy()
    assert (words.vectors[words.rows] == weight[[4, 2, 7]]).all()
    assert words.up_to(4).words == ("the", "cat")
    with pytest.raises(ValueError, match="single token"):
        WordEmbeddings.of(toy, ["dog"])


def test_table1_against_a_plain_loop():
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(60, 5)).astype(np.float32)
    rows, ranks = rng.permutation(60)[:20], np.sort(rng.choice(50, 20, replace=False))
    names = tuple(map(str, range(60)))
    words = WordEmbeddings(vectors, names, names[:20], rows, ranks, 0)
    table = make_table1(words, bins=[(0, 25), (25, 50)], ks=(2, 4))
    for b, (low, high) in enumerate(table["bins"]):
        inside = [row for row, rank in zip(rows, ranks, strict=True) if low <= rank < high]
        assert table["n_words"][b] == len(inside)
        x = vectors.astype(np.float64)
        assert table["norm"][b] == pytest.approx(np.mean([np.sqrt(x[i] @ x[i]) for i in inside]))
        for k in (2, 4):
            distances, dots, both = [], [], []
            for i in inside:
                others = [j for j in range(60) if j != i]
                near = sorted((np.linalg.norm(x[i] - x[j]), x[i] @ x[j]) for j in others)[:k]
                distances += [d for d, _ in near]
                both += [dot for _, dot in near]
                dots += sorted((x[i] @ x[j] for j in others), reverse=True)[:k]
            assert table["distance"][str(k)][b] == pytest.approx(np.mean(distances), rel=1e-5)
            assert table["dot"][str(k)][b] == pytest.approx(np.mean(dots), rel=1e-5)
            assert table["distance_dot"][str(k)][b] == pytest.approx(np.mean(both), rel=1e-4)
    with pytest.raises(ValueError, match="No word of rank 90"):
        make_table1(words, bins=[(90, 95)])
    with pytest.raises(ValueError, match="need 7 neighbors"):
        make_table1(words, find_neighbors(vectors, rows, 3))
