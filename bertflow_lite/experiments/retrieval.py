"""Search on real questions: whether a calibrator helps to find the sentence that answers.

QNLI's validation set, read as a search: its different questions are asked of all its sentences,
and the right one is the one that the labels name.  Measured are encoders with and without a
calibrator, alone and joined with BM25, and vectors that are cut short or kept as codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from tabulate import tabulate

from bertflow_lite.datasets.nli import fingerprint_with_labels, load_qnli
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import fit_calibrator, transform
from bertflow_lite.experiments.search import (
    MEASURES,
    TOP,
    bm25,
    cosines,
    difference,
    fuse,
    hubness,
    means,
    no_answer,
    search_of,
    search_scores,
    show_gain,
)
from bertflow_lite.measures.similarity import Floats, unit_rows

WIDTHS = (32, 64, 128, 256)
REFERENCE = ("minilm", "last")  # what chapter 12 says to take where one may choose
Space = tuple[NDArray[Any], NDArray[Any]]  # vectors of the questions, and of the sentences


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
