"""Table 5: the flow against standard normalization, nulled directions, and whitening."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import SEPARATING_LINE, tabulate

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.resume import Keep, no_keep
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    default_layers,
    fit_quietly,
    merge_seeds,
    score_latents,
    show_score,
)
from bertflow_lite.measures.scores import score_sts

__all__ = ["KS", "WIDTHS", "format_table5", "run_table5", "tune"]

logger = logging.getLogger(__name__)
KS = tuple(range(1, 21))
"""Numbers of nulled directions to choose from (Section 4.3)."""
WIDTHS = (32, 64, 128, 256)
"""Widths of whitening, beside the full one."""
FIXED = {
    "raw": "none",
    "SN": "sn",
    "NATSV (k=1)": "natsv:1",
    "NATSV (k=10)": "natsv:10",
    "SN + NATSV (k=1)": "sn+natsv:1",
}
FLOW = "flow (target)"


def run_table5(
    encoder: AnyEncoder,
    *,
    seeds: int = 3,
    layers: Sequence[str] = (),
    data: Sequence[str] | None = None,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
) -> dict[str, Any]:
    """Run Table 5 on an encoder.

    Everything is fitted on the sentences of all splits, as the flow is; labels are never used for
    that.  What is tuned (the number of nulled directions, the width of whitening) is chosen by the
    Spearman correlation on the validation pairs; only the chosen one is scored on the test pairs.

    Parameters
    ----------
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    seeds : int, default 3
        Flows are fitted with random states 0 to seeds - 1.
    layers : sequence of str, default ()
        Layer choices beside "last" (the paper's), "last2avg" and "first-last".
    data : sequence of str, optional
        Sets with a validation split, "stsb" and "sick-r"; default: STS-B, the paper's.
    download, progress, keep
        As for `run_table2`.

    Returns
    -------
    dict
        ``settings`` and ``rows``.  A row has ``row``, ``data``, ``layers``, ``calibrator``,
        ``test`` (``all``, ``low``, ``high`` ..., see `score_latents`), ``dev`` (Spearman x 100, one
        entry a seed), and where something was tuned ``chosen`` and ``dev_curve``, the validation
        score of each candidate.
    """
    words = default_layers(encoder) == ("mean",)
    first = ["mean"] if words else ["last", *default_layers(encoder)]
    chosen = list(dict.fromkeys([*first, *layers]))
    rows, fingerprints = [], {}
    for name in data or ("stsb",):
        splits = {split: load_sts(name, split, download=download) for split in ("test", "dev")}
        fitted = load_sts(name, "all", download=download)
        name = fitted.name
        fingerprints[name] = splits["test"].fingerprint
        ends = np.cumsum([2 * len(splits["test"]), 2 * len(splits["dev"])])
        texts = [*splits["test"].sentences, *splits["dev"].sentences, *fitted.sentences]
        asked: Any = chosen
        for layer, vectors in encoder.encode(texts, asked, progress=progress).items():
            test, dev, fit = np.split(vectors, ends)

            def measure(
                key: str, compute: Callable[[], Any], name: str = name, layer: str = layer
            ) -> Any:
                logger.info("%s, %s, %s", name, layer, key)
                return keep(f"{name} | {layer} | {key}", compute)

            for row in _rows(splits, test, dev, fit, seeds, progress, measure):
                rows.append({"row": row.pop("row"), "data": name, "layers": layer, **row})
    settings = {
        "data": fingerprints,
        "layers": chosen,
        "seeds": list(range(seeds)),
        "k": list(KS),
        "widths": [w for w in WIDTHS if w < encoder.dim] + [encoder.dim],
        "fit_on": "target",
        "tuned_on": "dev",
    }
    return {"settings": settings, "rows": rows}


def _rows(
    splits: dict[str, SentencePairs],
    test: NDArray[np.float32],
    dev: NDArray[np.float32],
    fit: NDArray[np.float32],
    seeds: int,
    progress: bool,
    keep: Keep,
) -> list[dict[str, Any]]:
    dim = fit.shape[1]

    def score(calibrator: str, seed: int = 0) -> dict[str, Any]:
        model = make_calibrator(calibrator, random_state=seed, progress=progress)
        z_test, z_dev = test, dev
        if model is not None:
            fit_quietly(model, fit)
            z_test, z_dev = model.transform(test), model.transform(dev)
        return score_latents(splits["test"], z_test, interval=seed == 0) | {
            "dev": round(score_sts(splits["dev"], z_dev).all, 4)
        }

    def row(label: str, calibrator: str) -> dict[str, Any]:
        n = seeds if calibrator.startswith("flow") else 1
        parts = [
            keep(f"{calibrator} | {seed}", functools.partial(score, calibrator, seed))
            for seed in range(n)
        ]
        dev_scores = [part["dev"] for part in parts]
        tests = [{key: value for key, value in part.items() if key != "dev"} for part in parts]
        return {
            "row": label,
            "calibrator": calibrator,
            "test": merge_seeds(tests),
            "dev": dev_scores,
        }

    def tuned(label: str, family: str, values: Sequence[int]) -> dict[str, Any]:
        curve = keep(
            f"{family}, tuned on dev",
            lambda: [*tune(family, values, fit, splits["dev"], dev).values()],
        )
        best = values[int(np.argmax(curve))]
        name = family if (family, best) == ("whiten", dim) else f"{family}:{best}"
        return row(label.format(best), name) | {
            "chosen": best,
            "dev_curve": dict(zip(map(str, values), curve, strict=True)),
        }

    widths = [width for width in WIDTHS if width < dim]
    ks = [k for k in KS if k < dim]
    return [
        *(row(label, name) for label, name in FIXED.items() if ":10" not in name or dim > 10),
        tuned("NATSV (k={}, tuned)", "natsv", ks),
        tuned("SN + NATSV (k={}, tuned)", "sn+natsv", ks),
        *(row(f"whitening to {width}", f"whiten:{width}") for width in widths),
        row("whitening, full", "whiten"),
        tuned("whitening (to {}, tuned)", "whiten", [*widths, dim]),
        row(FLOW, "flow:paper"),
    ]


def tune(
    family: str,
    values: Sequence[int],
    fit: NDArray[np.floating[Any]],
    dev: SentencePairs,
    dev_embeddings: NDArray[np.floating[Any]],
) -> dict[int, float]:
    """Score candidates on validation pairs only; the test pairs are not an argument.

    Parameters
    ----------
    family : {"natsv", "sn+natsv", "whiten"}
        What is tuned: the number of nulled directions, or the width kept.
    values : sequence of int
        Candidates.
    fit : ndarray, shape (n, dim)
        Embeddings to fit on; no labels.
    dev : SentencePairs
        Validation pairs.
    dev_embeddings : ndarray, shape (2 * n_pairs, dim)
        Embeddings of ``dev.sentences``.

    Returns
    -------
    dict of int to float
        Spearman x 100 of each candidate.
    """
    # The directions come sorted, so one fit serves all candidates: each takes the first few.
    largest: Any = make_calibrator(f"{family}:{max(values)}")
    fit_quietly(largest, fit)
    before, last = (largest[:-1], largest[-1]) if family.startswith("sn+") else (None, largest)
    x = dev_embeddings if before is None else before.transform(dev_embeddings)
    scores = {}
    for value in values:
        cut = copy.copy(last)
        cut.directions_ = last.directions_[:value]
        if hasattr(last, "variances_"):
            cut.variances_ = last.variances_[:value]
        scores[value] = round(score_sts(dev, cut.transform(x)).all, 4)
    return scores


def format_table5(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out `run_table5`'s rows, layer by layer, with the paper's Table 5 below."""
    rule = [SEPARATING_LINE] if style == "simple" else []
    lines: list[Any] = []
    for name in results["settings"]["data"]:
        for layer in results["settings"]["layers"]:
            lines += rule if lines else []
            for row in results["rows"]:
                if (row["data"], row["layers"]) == (name, layer):
                    test = row["test"]
                    lines.append(
                        [
                            name,
                            layer,
                            row["row"],
                            show_score(row["dev"]),
                            show_score(test["all"]),
                            f"[{test['low']:.2f}, {test['high']:.2f}]",
                        ]
                    )
    lines += rule
    for label, value in load_paper_table(5)["spearman"].items():
        lines.append(["stsb", "paper: last", label, "", f"{value:.2f}", ""])
    headers = ["data", "layers", "Spearman x 100", "validation", "test", "95 % interval"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)
