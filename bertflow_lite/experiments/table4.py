"""Table 4 as an experiment: a cosine that tells answers from other sentences.

QNLI's validation pairs (Section 4.2): a question beside a sentence that answers it, or does not.
Nothing is trained on the labels; the pairs are ranked by the cosine of their two embeddings, and
the score is the AUC, the chance that an answer ranks above a sentence that is none.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from tabulate import tabulate

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.datasets.nli import load_nli_sentences
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.qnli import QuestionPairs, load_qnli
from bertflow_lite.experiments.nli_flow import NLI_FORMS, choose_sentences, fit_nli_flow
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.resume import Keep, no_keep
from bertflow_lite.experiments.scoring import AnyEncoder, default_layers, show_score
from bertflow_lite.measures.scores import pair_cosines
from bertflow_lite.measures.similarity import Floats, auc
from bertflow_lite.measures.spelling import lexical_similarities

__all__ = ["METHODS", "auc_interval", "format_table4", "run_table4"]

METHODS: dict[str, str] = {
    "raw": "none",
    "SN": "sn",
    "whitening": "whiten",
    "flow (NLI), published": "published",
    "flow (NLI), converged": "converged",
    "flow (target)": "flow",
}
"""The rows: what each is called, and its calibrator, or the form of its NLI flow."""
_CELLS = 2_000_000  # values ranked at a time by the bootstrap: some 16 MB an array


def run_table4(
    encoder: AnyEncoder,
    *,
    seeds: int = 3,
    layers: Sequence[str] = (),
    data: Sequence[str] | None = None,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
    nli_sentences: int | None = None,
) -> dict[str, Any]:
    """Score an encoder on QNLI, raw and calibrated (Table 4).

    SN, whitening and flow (target) are fitted on QNLI's own questions and sentences (each once,
    without labels), flow (NLI) on NLI sentences in two forms (`fit_nli_flow`).

    Parameters
    ----------
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    seeds : int, default 3
        Flows are fitted with random states 0 to seeds - 1.
    layers : sequence of str, default ()
        Layer choices beside the default ones.
    data : sequence of str, optional
        Not used: there is one set.
    download : bool, default False
        Fetch QNLI and the NLI sentences where they are missing.
    progress : bool, default False
        Progress bars while encoding and fitting.
    keep : callable, default `no_keep`
        Where finished parts are kept.
    nli_sentences : int, optional
        Fit flow (NLI) on this many of the NLI sentences, drawn at random, where there are more.

    Returns
    -------
    dict
        ``settings`` and ``rows``: AUC x 100 with its 95 % interval, and its gain over the raw
        cosine of the same layers. Two rows see words only: cosines of word counts and of TF-IDF.
    """
    questions, nli = load_qnli("dev", download=download), load_nli_sentences(download=download)
    pairs = _as_pairs(questions)
    texts = {
        "scored": pairs.sentences,
        "target": list(questions.all_sentences),
        "nli": choose_sentences(nli.sentences, nli_sentences),
    }
    choices: Any = [*dict.fromkeys([*default_layers(encoder), *layers])]
    everything = [text for part in texts.values() for text in part]
    ends = np.cumsum([len(part) for part in texts.values()])[:-1]
    rows: list[dict[str, Any]] = []
    for label, vectors in encoder.encode(everything, choices, progress=progress).items():
        parts = dict(zip(texts, np.split(vectors, ends), strict=True))
        raw = pair_cosines(pairs, parts["scored"])
        for method, how in METHODS.items():
            for seed in range(seeds if "flow" in method else 1):
                compute = partial(_score, pairs, parts, raw, how, seed, progress)
                row = keep(f"{label} {method} {seed}", compute)
                rows.append({"layers": label, "method": method, "seed": seed} | row)
    for method, values in lexical_similarities(pairs, texts["target"]).items():
        row = keep(method, partial(_measure, pairs.gold > 0, values, None))
        rows.append({"layers": "", "method": method, "seed": 0} | row)
    return {
        "settings": {
            "data": {"qnli": questions.fingerprint, nli.name: nli.fingerprint},
            "layers": list(choices),
            "seeds": seeds,
            "nli_source": nli.source,
            "nli_sentences": len(texts["nli"]),
        },
        "n_pairs": len(pairs),
        "n_answers": int(questions.labels.sum()),
        "fitted_on": {name: len(texts[name]) for name in ("target", "nli")},
        "rows": rows,
    }


def format_table4(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 4, our rows beside the paper's.

    Parameters
    ----------
    results : dict
        From `run_table4`.
    style : str, default "simple"
        A table format of the tabulate package.
    """
    published: dict[str, float] = load_paper_table(4)["auc"]
    lines = [["(paper)", label, f"{value:.2f}", "", ""] for label, value in published.items()]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        groups.setdefault((row["layers"], row["method"]), []).append(row)
    for (layers, method), rows in groups.items():
        first = rows[0]
        gain = ""
        if "gain" in first:
            mean = np.mean([row["gain"]["estimate"] for row in rows])
            gain = f"{mean:+.2f} [{first['gain']['low']:+.2f}, {first['gain']['high']:+.2f}]"
        lines.append(
            [
                layers,
                method,
                show_score([row["auc"] for row in rows]),
                f"[{first['low']:.2f}, {first['high']:.2f}]",
                gain,
            ]
        )
    head = ["layers", "method", "AUC x 100", "95 % interval (seed 0)", "gain over raw"]
    return (
        f"QNLI validation: {results['n_pairs']} pairs, {results['n_answers']} with the answer; "
        f"flows fitted on {results['fitted_on']['target']} sentences of QNLI (target) or "
        f"{results['fitted_on']['nli']} of NLI\n"
        + tabulate(lines, head, tablefmt=style, disable_numparse=True)
    )


def auc_interval(
    labels: NDArray[np.bool_],
    scores: Floats,
    baseline: Floats | None = None,
    *,
    n_resamples: int = 1000,
    random_state: int = 0,
) -> tuple[float, float]:
    """Give the 95 % bootstrap interval of an AUC x 100, or of its gain over another's.

    Parameters
    ----------
    labels : ndarray of bool, shape (n,)
        What is true.
    scores : ndarray, shape (n,)
        Higher means "true".
    baseline : ndarray, shape (n,), optional
        Other scores, whose AUC on the same resampled pairs is taken away.
    n_resamples : int, default 1000
        Resamples of the pairs.
    random_state : int, default 0
        Seed of the resamples.

    Returns
    -------
    tuple of float
        Lower and upper end.
    """
    rng = np.random.default_rng(random_state)
    drawn: list[Floats] = []
    step = max(1, _CELLS // len(labels))
    for start in range(0, n_resamples, step):
        count = min(step, n_resamples - start)
        chosen = rng.integers(len(labels), size=(count, len(labels)))
        values = _auc_rows(labels[chosen], scores[chosen])
        if baseline is not None:
            values = values - _auc_rows(labels[chosen], baseline[chosen])
        drawn.append(values)
    every = np.concatenate(drawn)
    # A resample of a tiny set may hold one label only; it has no AUC.
    low, high = np.quantile(every[np.isfinite(every)], [0.025, 0.975])
    return float(low), float(high)


def _auc_rows(labels: NDArray[np.bool_], scores: Floats) -> Floats:
    """AUC x 100 of each row, from the ranks of the positive ones (Mann and Whitney)."""
    positive = labels.sum(axis=1)
    ranks = (rankdata(scores, axis=1) * labels).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(
            100
            * (ranks - positive * (positive + 1) / 2)
            / (positive * (labels.shape[1] - positive))
        )


def _as_pairs(questions: QuestionPairs) -> SentencePairs:
    return SentencePairs(
        "qnli",
        questions.split,
        questions.questions,
        questions.sentences,
        questions.labels.astype(np.float64),
        np.full(len(questions), "qnli"),
        source=questions.source,
    )


def _score(
    pairs: SentencePairs,
    parts: dict[str, NDArray[np.float32]],
    raw: Floats,
    how: str,
    seed: int,
    progress: bool,
) -> dict[str, Any]:
    """Fit one calibrator and measure the cosines that it gives."""
    if how == "none":
        return _measure(pairs.gold > 0, raw, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)  # no news in a table
        if how in NLI_FORMS:
            model: Any = fit_nli_flow(parts["nli"], form=how, seed=seed, progress=progress)
        else:
            model = make_calibrator(how, random_state=seed, progress=progress)
            model.fit(parts["target"])
    return _measure(pairs.gold > 0, pair_cosines(pairs, model.transform(parts["scored"])), raw)


def _measure(labels: NDArray[np.bool_], values: Floats, raw: Floats | None) -> dict[str, Any]:
    low, high = auc_interval(labels, values)
    score = auc(labels, values)
    out: dict[str, Any] = {"auc": round(score, 4), "low": round(low, 4), "high": round(high, 4)}
    if raw is not None:
        low, high = auc_interval(labels, values, raw)
        out["gain"] = {
            "estimate": round(score - auc(labels, raw), 4),
            "low": round(low, 4),
            "high": round(high, 4),
        }
    return out
