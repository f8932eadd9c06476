"""Table 4 as an experiment: a cosine that tells answers from other sentences.

QNLI's validation pairs (Section 4.2): a question beside a sentence that answers it, or does not.
Nothing is trained on the labels; the pairs are ranked by the cosine of their two embeddings, and
the score is the AUC, the chance that an answer ranks above a sentence that is none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from tabulate import tabulate

from bertflow_lite.datasets.nli import fingerprint_with_labels, load_nli_sentences, load_qnli
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    RunOptions,
    calibrated,
    encode_parts,
    group_seeds,
    show_score,
    transform,
)
from bertflow_lite.experiments.spelling import lexical_similarities
from bertflow_lite.experiments.tables2_3 import NLI_FORMS, choose_sentences, fit_nli_flow
from bertflow_lite.measures.scores import interval_ends, pair_cosines, resample
from bertflow_lite.measures.similarity import Floats

METHODS: dict[str, str] = {
    "raw": "none",
    "SN": "sn",
    "whitening": "whiten",
    "flow (NLI), published": "published",
    "flow (NLI), converged": "converged",
    "flow (target)": "flow",
}
"""The rows: what each is called, and its calibrator, or the form of its NLI flow."""


def run_table4(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Score an encoder on QNLI, raw and calibrated (Table 4); there is one set, so no choice of it.

    SN, whitening and flow (target) are fitted on QNLI's own questions and sentences (each once,
    without labels), flow (NLI) on NLI sentences in two forms (`fit_nli_flow`).

    Gives ``settings`` and ``rows``: AUC x 100 with its 95 % interval, and its gain over the raw
    cosine of the same layers. Two rows see words only: cosines of word counts and of TF-IDF.
    """
    options = options or RunOptions()
    pairs = load_qnli("dev", download=options.download)
    nli = load_nli_sentences(download=options.download)
    texts = {
        "scored": pairs.sentences,
        "target": list(dict.fromkeys(pairs.sentences)),
        "nli": choose_sentences(nli.sentences, options.nli_sentences),
    }
    choices = options.choices(*encoder.default_layers)
    rows: list[dict[str, Any]] = []
    encoded = encode_parts(encoder, texts, choices, progress=options.progress)
    for label, parts in encoded.items():
        raw = pair_cosines(pairs, parts["scored"])
        for method, how in METHODS.items():
            for seed in range(options.seeds if "flow" in method else 1):
                compute = partial(_score, pairs, parts, raw, how, seed, options.progress)
                rows.append(options.row(compute, layers=label, method=method, seed=seed))
    for method, values in lexical_similarities(pairs, texts["target"]).items():
        compute = partial(_measure, pairs.gold > 0, values, None)
        rows.append(options.row(compute, layers="", method=method, seed=0))
    return {
        "settings": {
            "data": {"qnli": fingerprint_with_labels(pairs), nli.name: nli.fingerprint},
            "layers": choices,
            "seeds": options.seeds,
            "nli_source": nli.source,
            "nli_sentences": len(texts["nli"]),
        },
        "n_pairs": len(pairs),
        "n_answers": int(pairs.gold.sum()),
        "fitted_on": {name: len(texts[name]) for name in ("target", "nli")},
        "rows": rows,
    }


def format_table4(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 4, our rows beside the paper's."""
    published: dict[str, float] = load_paper_table(4)["auc"]
    lines = [["(paper)", label, f"{value:.2f}", "", ""] for label, value in published.items()]
    for (layers, method), rows in group_seeds(results["rows"], "method").items():
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
) -> tuple[float, float]:
    """Give the 95 % bootstrap interval of an AUC x 100, or of its gain over another's.

    A higher score means "true". A baseline's AUC is taken on the same resampled pairs.
    """
    rng = np.random.default_rng(0)
    drawn = np.empty(n_resamples)
    for part, chosen in resample(np.arange(len(labels)), n_resamples, rng):
        drawn[part] = _auc_rows(labels[chosen], scores[chosen])
        if baseline is not None:
            drawn[part] -= _auc_rows(labels[chosen], baseline[chosen])
    return interval_ends(drawn)


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
    if how in NLI_FORMS:
        form: Any = how
        flow = fit_nli_flow(parts["nli"], form=form, seed=seed, progress=progress)
        z = transform(flow, parts["scored"])
    else:
        z = calibrated(how, parts["target"], parts["scored"], seed=seed, progress=progress)
    return _measure(pairs.gold > 0, pair_cosines(pairs, z), raw)


def _measure(labels: NDArray[np.bool_], values: Floats, raw: Floats | None) -> dict[str, Any]:
    low, high = auc_interval(labels, values)
    score = 100 * roc_auc_score(labels, values)
    out: dict[str, Any] = {"auc": round(score, 4), "low": round(low, 4), "high": round(high, 4)}
    if raw is not None:
        low, high = auc_interval(labels, values, raw)
        out["gain"] = {
            "estimate": round(score - 100 * roc_auc_score(labels, raw), 4),
            "low": round(low, 4),
            "high": round(high, 4),
        }
    return out
