"""How well a search finds: recall, MRR and nDCG; hubs; BM25 beside it; when to answer nothing.

`run_retrieval` asks on real questions whether a calibrator helps to find the sentence that answers.
QNLI's validation set, read as a search: its different questions are asked of all its sentences, and
the right one is the one that the labels name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata, skew
from sklearn.decomposition import PCA
from tabulate import tabulate

from bertflow_lite.datasets.nli import fingerprint_with_labels, load_qnli
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import fit_calibrator, transform
from bertflow_lite.measures.scores import interval_ends, resample
from bertflow_lite.measures.similarity import Floats, unit_rows

TOP = 10
MEASURES = ("recall@1", "recall@10", "mrr@10", "ndcg@10")
WIDTHS = (32, 64, 128, 256)
REFERENCE = ("minilm", "last")  # what chapter 12 says to take where one may choose
Space = tuple[NDArray[Any], NDArray[Any]]  # vectors of the questions, and of the sentences
_DISCOUNTS = 1 / np.log2(np.arange(2, TOP + 2))
# What the first n places earn in all, n from 0: recall@1, recall@10, DCG@10.
_EARNED = np.zeros((3, TOP + 1))
_EARNED[:, 1:] = np.cumsum([np.arange(TOP) < 1, np.ones(TOP), _DISCOUNTS], axis=1)


@dataclass(frozen=True)
class Search:
    """Questions, sentences, and the rows of the sentences that answer each question."""

    questions: list[str]
    sentences: list[str]
    answers: list[list[int]]

    @property
    def texts(self) -> list[str]:
        """Sentences, then questions: what is to be encoded."""
        return [*self.sentences, *self.questions]

    def scores(self, vectors: NDArray[Any]) -> Floats:
        """Give `search_scores` of the cosines of `texts`; no question finds its own text."""
        n = len(self.sentences)
        table = cosines(vectors[n:], vectors[:n])
        row_of = {text: row for row, text in enumerate(self.sentences)}
        for question, (asked, good) in enumerate(zip(self.questions, self.answers, strict=True)):
            if (own := row_of.get(asked)) is not None and own not in good:
                table[question, own] = -np.inf
        return search_scores(table, self.answers)


def search_of(pairs: SentencePairs, least: float = 1.0, more: Sequence[str] = ()) -> Search:
    """Read rated pairs as a search: first sentences ask, second ones that are rated high answer.

    Pairs rated ``least`` or more are answers.  All different second sentences are searched, and
    ``more``.  A question without an answer among them is left out, as it could find none.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*pairs.sentences2, *more]))}
    answers: dict[str, list[int]] = {}
    for one, two, gold in zip(pairs.sentences1, pairs.sentences2, pairs.gold, strict=True):
        if gold >= least and row_of[two] not in answers.setdefault(one, []):
            answers[one].append(row_of[two])
    if not answers:
        raise ValueError(
            f"no pair is rated {least:g} or more (the highest rating is {max(pairs.gold):g}): "
            "there is nothing to find. Name a lower rating."
        )
    return Search(list(answers), list(row_of), list(answers.values()))


def search_scores(similarities: ArrayLike, answers: Sequence[Sequence[int]]) -> Floats:
    """Score a search, question by question: recall@1, recall@10, MRR@10 and nDCG@10.

    Where similarities are equal, as those of short codes often are, the score is the mean over all
    orders of the equal ones.

    Parameters
    ----------
    similarities : array-like, shape (n_questions, n_sentences)
        The larger, the earlier a sentence is found; minus infinity for what is not searched.
    answers : sequence of sequences of int
        For each question the rows of the sentences that answer it, at least one.

    Returns
    -------
    ndarray of float64, shape (n_questions, 4)
        From 0 to 1; the columns are ``MEASURES``.

    Examples
    --------
    >>> search_scores([[0.9, 0.5, 0.1]], [[1]]).round(2)
    array([[0.  , 1.  , 0.5 , 0.63]])
    """
    table = np.asarray(similarities)
    if table.ndim != 2 or len(table) != len(answers):
        raise ValueError(
            f"similarities have the shape {table.shape}, but there are {len(answers)} questions."
        )
    if np.isnan(table).any():
        raise ValueError("a similarity is not a number: look at how the texts were encoded.")
    found = np.empty((len(table), len(MEASURES)))
    for row, (values, good) in enumerate(zip(table, answers, strict=True)):
        if not len(good):
            raise ValueError(f"question {row} has no answer to be found; leave it out.")
        own = values[list(good)][:, None]
        above, tied = (values > own).sum(axis=1), (values == own).sum(axis=1)
        places = [np.minimum(ends, TOP) for ends in (above + tied, above)]
        earned = ((_EARNED[:, places[0]] - _EARNED[:, places[1]]) / tied).sum(axis=1)
        best = int(np.argmin(above))
        reciprocal, left = 0.0, 1.0  # the first of those that are equal and right; and none so far
        for place in range(min(tied[best], TOP - above[best])):
            first = left * min(1.0, (own == own[best]).sum() / (tied[best] - place))
            reciprocal += first / (above[best] + place + 1)
            left -= first
        ideal = _EARNED[2, min(len(good), TOP)]
        found[row] = *(earned[:2] / len(good)), reciprocal, earned[2] / ideal
    return found


def difference(new: Floats, old: Floats) -> dict[str, list[float]]:
    """Give what a search gains on another, times 100: estimate, and a paired 95 % interval.

    Both are `search_scores` of the same questions; the questions are drawn anew 1,000 times.
    """
    gain = 100 * (new - old)
    drawn = np.empty((1000, len(MEASURES)))
    for part, rows in resample(np.arange(len(gain)), 1000, np.random.default_rng(0)):
        drawn[part] = gain[rows].mean(axis=1)
    return {
        name: [float(gain[:, column].mean()), *interval_ends(drawn[:, column])]
        for column, name in enumerate(MEASURES)
        if name in ("recall@10", "ndcg@10")
    }


def means(found: Floats) -> dict[str, float]:
    """Average `search_scores` over the questions, times 100, by measure."""
    return dict(zip(MEASURES, (100 * found.mean(axis=0)).tolist(), strict=True))


def show_gain(gain: Sequence[float]) -> str:
    """Write an estimate and its interval."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*gain)


def fuse(*tables: Floats) -> Floats:
    """Join searches by their ranks alone (reciprocal rank fusion): the sum of 1 / (60 + rank)."""
    return np.sum([1 / (60 + rankdata(-table, axis=1)) for table in tables], axis=0)


def cosines(asked: NDArray[Any], searched: NDArray[Any]) -> Floats:
    """Cosine of every question with every sentence."""
    return np.asarray(unit_rows(asked.astype(float)) @ unit_rows(searched.astype(float)).T)


def bm25(questions: Sequence[str], sentences: Sequence[str]) -> Floats:
    """Score sentences by BM25 (package bm25s): rare words that both have; no English stop words."""
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("BM25 needs its package: pip install 'bertflow-lite[search]'") from error
    words = [
        bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
        for texts in (sentences, questions)
    ]
    index = bm25s.BM25()
    index.index(words[0], show_progress=False)
    nothing = np.zeros(len(sentences), np.float32)
    return np.array([index.get_scores(asked) if asked else nothing for asked in words[1]])


def hubness(similarities: Floats) -> dict[str, float]:
    """Say how unevenly sentences are found: skewness of the k-occurrence, k = 10; share never."""
    first = np.argpartition(-similarities, TOP, axis=1)[:, :TOP]
    counts = np.bincount(first.ravel(), minlength=similarities.shape[1])
    return {"hubness": float(skew(counts)), "never": float((counts == 0).mean())}


def no_answer(
    similarities: Floats, answers: Sequence[Sequence[int]], threshold: float | None = None
) -> dict[str, float]:
    """Answer only above a threshold; by default the one that gives 5 % false answers.

    Every question is asked twice: with its answers there, and with them taken out, when any answer
    is false.  Even questions choose the threshold, odd ones are counted.
    """
    without = similarities.copy()
    for row, good in enumerate(answers):
        without[row, good] = -np.inf
    best, lone = similarities.max(axis=1), without.max(axis=1)
    if threshold is None:
        threshold = float(np.quantile(lone[::2], 0.95))
    return {
        "threshold": threshold,
        "false": float((lone > threshold)[1::2].mean()),
        "right": float(((best > threshold) & (best > lone))[1::2].mean()),
    }


def code_similarities(asked: NDArray[Any], searched: NDArray[Any], code: str) -> Floats:
    """Compare vectors as sentence-transformers keeps them: float, int8 or binary codes.

    Vectors have length 1 first.  int8: the ranges are those of the sentences, and codes are
    multiplied as they are.  Binary: the number of equal signs.
    """
    if code == "float":
        return cosines(asked, searched)
    try:
        from sentence_transformers.util import quantize_embeddings
    except ImportError as error:
        raise ImportError("codes need a package: pip install 'bertflow-lite[search]'") from error
    rows = [unit_rows(each.astype(float)) for each in (asked, searched)]
    if code == "int8":
        ranges = np.stack([rows[1].min(axis=0), rows[1].max(axis=0)])
        one, two = (np.asarray(quantize_embeddings(x, "int8", ranges=ranges)) for x in rows)
    else:
        packed = (quantize_embeddings(each, "ubinary") for each in rows)
        width = asked.shape[1]
        one, two = (2.0 * np.unpackbits(each, axis=1, count=width) - 1 for each in packed)
    return np.asarray(one.astype(np.float32) @ two.astype(np.float32).T, dtype=float)


def run_compression(
    spaces: Mapping[str, Space], answers: Sequence[Sequence[int]], seed: int = 0
) -> list[dict[str, Any]]:
    """Cut vectors short, or keep them as codes: ``spaces["none"]``, the raw ones, and calibrated.

    ``kept`` is the share of the ten sentences that the raw float vectors find first.  Gains are
    over the raw floats, and over rotated raw ones in the same code or as many principal components.
    To rotate is to take off the mean and turn the axes at random.
    """
    asked, searched = spaces["none"]
    first = np.argsort(-cosines(asked, searched), axis=1, kind="stable")[:, :TOP].tolist()
    found: dict[tuple[str, str], Floats] = {}
    rows = []

    def add(name: str, code: str, space: Space, baseline: str) -> None:
        width = space[1].shape[1]
        table = code_similarities(*space, code)
        one = found[name, code] = search_scores(table, answers)
        size = {"float": 4 * width, "int8": width}.get(code, -(-width // 8))
        row: dict[str, Any] = {"space": name, "code": code, "width": width, "bytes": size}
        row |= means(one) | {"kept": 100 * search_scores(table, first)[:, 1].mean()}
        over = {"raw float": found["none", "float"], baseline: found[baseline, code]}
        row["over"] = {k: difference(one, other) for k, other in over.items()}
        rows.append(row)

    def rotate(space: Space) -> Space:
        mean, width = space[1].mean(axis=0), space[1].shape[1]
        turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]
        return (space[0] - mean) @ turn, (space[1] - mean) @ turn

    mean = searched.mean(axis=0)
    every = {"none": spaces["none"], "none, rotated": rotate(spaces["none"])}
    every["centered"] = asked - mean, searched - mean
    for name, space in spaces.items():
        every |= {name: space, f"{name}, rotated": rotate(space)}
    for code in ("float", "int8", "binary"):
        for name, space in every.items():
            baseline = "none" if name in ("none", "none, rotated") else "none, rotated"
            add(name, code, space, baseline)
    for width in (width for width in WIDTHS if width < min(searched.shape)):
        pca = f"pca:{width}"
        for name, how in {pca: PCA(width, random_state=seed), f"whiten:{width}": None}.items():
            model = fit_calibrator(how or name, searched)
            add(name, "float", (transform(model, asked), transform(model, searched)), pca)
        add(f"cut:{width}", "float", (asked[:, :width], searched[:, :width]), pca)
    return rows


def run_retrieval(
    encoder: Encoder,
    layers: Sequence[str],
    calibrators: Sequence[str],
    *,
    first: int | None = None,
    weigh: bool = True,
    seed: int = 0,
    download: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Search QNLI's validation set: raw and calibrated, alone and joined with BM25, as codes.

    ``first`` takes no more than the first so many of its pairs, default all.

    Calibrators, and weights of tokens (idf, with ``weigh``), are fitted on the sentences that are
    searched, not on questions.  Each row has its gains (`difference`) over the raw vectors of the
    same layers, over BM25, and over minilm's last block, raw.
    """
    pairs = load_qnli("dev", download=download)
    search = search_of(pairs.select(range(min(first or len(pairs), len(pairs)))))
    answers, texts = search.answers, search.texts
    names = list(dict.fromkeys(["none", *calibrators]))
    words = bm25(search.questions, search.sentences)  # first: it may be missing

    def encode(one: Any, choices: Sequence[str], weights: Any = None) -> dict[str, Space]:
        vectors = one.encode(texts, list(choices), weights=weights, progress=progress)
        n = len(search.sentences)
        return {label: (rows[n:], rows[:n]) for label, rows in vectors.items()}

    base, block = REFERENCE
    reference = load_encoder(base, max_length=encoder.max_length, device=encoder.device)
    beside = cosines(*encode(reference, [block])[block])
    found = {"bm25": search_scores(words, answers), "reference": search_scores(beside, answers)}
    rows: list[dict[str, Any]] = [
        {"layers": "", "weights": "", "calibrator": "", "system": name} | means(found[name])
        for name in found
    ]
    rows[1] |= hubness(beside) | {"no_answer": no_answer(beside, answers)}
    compression = []
    raw: dict[str, Any] = {}  # by layers: scores of both systems, and the threshold
    kinds: dict[str, Any] = {"": None}
    if weigh:
        kinds["idf"] = encoder.token_weights(search.sentences, "idf")
    for kind, weights in kinds.items():
        for label, (asked, searched) in encode(encoder, layers, weights).items():
            spaces: dict[str, Space] = {}
            for name in names:
                model = fit_calibrator(name, searched, seed=seed)
                spaces[name] = transform(model, asked), transform(model, searched)
                table = cosines(*spaces[name])
                both = {"alone": table, "with bm25": fuse(words, table)}
                scores = {system: search_scores(both[system], answers) for system in both}
                if (kind, name) == ("", "none"):
                    raw[label] = scores | no_answer(table, answers)
                for system, one in scores.items():
                    over = {"raw": raw[label][system], "alone": scores["alone"], **found}
                    row: dict[str, Any] = {"layers": label, "weights": kind}
                    row |= {"calibrator": name, "system": system} | means(one)
                    row |= {"over": {k: difference(one, v) for k, v in over.items()}}
                    if system == "alone":
                        row |= hubness(table) | {"no_answer": no_answer(table, answers)}
                        kept = raw[label]["threshold"]
                        row["at_raw_threshold"] = no_answer(table, answers, kept)
                    rows.append(row)
            if not kind:
                compressed = run_compression(spaces, answers, seed)
                compression += [{"layers": label} | row for row in compressed]
    settings = {
        "data": {"qnli": fingerprint_with_labels(pairs)},
        "first": first,
        "layers": list(layers),
        "calibrators": names,
        "fit_on": "the sentences that are searched",
        "packages": {name: version(name) for name in ("bm25s", "sentence-transformers")},
    }
    results = {"settings": settings, "n_questions": len(answers), "rows": rows,
               "n_sentences": len(search.sentences), "compression": compression}  # fmt: skip
    return dict(round_numbers(results))


def format_retrieval(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out what `run_retrieval` gives: scores times 100, and gains in nDCG@10."""
    lines = []
    for row in results["rows"]:
        over = {name: gains["ndcg@10"] for name, gains in row.get("over", {}).items()}
        gains = [show_gain(over[name]) if name in over else "" for name in ("raw", "bm25")]
        what = [row[key] for key in ("layers", "weights", "calibrator", "system")]
        uneven = f"{row['hubness']:.2f}" if "hubness" in row else ""
        lines.append([*what, *(f"{row[name]:.1f}" for name in MEASURES), uneven, *gains])
    head = ["layers", "weights", "calibrator", "system", *MEASURES, "hubness", "nDCG over raw",
            "over BM25"]  # fmt: skip
    return (
        f"QNLI validation: {results['n_questions']} questions, {results['n_sentences']} sentences\n"
        + tabulate(lines, head, tablefmt=style, disable_numparse=True)
    )
