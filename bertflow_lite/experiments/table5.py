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

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.resume import Keep
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    RunOptions,
    encode_parts,
    fit_calibrator,
    merge_seeds,
    scores,
    seeds_for,
    show_score,
    transform,
)
from bertflow_lite.measures.scores import bootstrap_difference, score_sts

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
FLOW, FLOW_CALIBRATOR = "flow (target)", "flow:paper"


def run_table5(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 5 on an encoder, by default on STS-B (the paper's); SICK-R has what it takes, too.

    Everything is fitted on the sentences of all splits, as the flow is; labels are never used for
    that.  What is tuned (the number of nulled directions, the width of whitening) is chosen by the
    Spearman correlation on the validation pairs; only the chosen one is scored on the test pairs.

    Gives ``settings`` and ``rows``. A row has ``row``, ``data``, ``layers``, ``calibrator``,
    ``test`` (``all``, ``low``, ``high`` ..., see `scores`), ``dev`` (Spearman x 100, one entry a
    seed), for all but the flow ``flow_lead`` (its first seed minus this row on the same test pairs,
    with a paired interval), and where something was tuned ``chosen`` and ``dev_curve``, the
    validation score of each candidate.
    """
    options = options or RunOptions()
    own = encoder.default_layers
    chosen = options.choices(*(own if own == ("mean",) else ("last", *own)))
    rows, fingerprints = [], {}
    for name in options.data or ("stsb",):
        splits = {
            split: load_sts(name, split, download=options.download)
            for split in ("test", "dev", "all")
        }
        name = splits["all"].name
        fingerprints[name] = splits["test"].fingerprint
        texts = {split: pairs.sentences for split, pairs in splits.items()}
        encoded = encode_parts(encoder, texts, chosen, progress=options.progress)
        for layer, vectors in encoded.items():

            def measure(
                key: str, compute: Callable[[], Any], name: str = name, layer: str = layer
            ) -> Any:
                logger.info("%s, %s, %s", name, layer, key)
                return options.keep(f"{name} | {layer} | {key}", compute)

            for row in _rows(splits, vectors, options, measure):
                rows.append({"row": row.pop("row"), "data": name, "layers": layer, **row})
    settings = {
        "data": fingerprints,
        "layers": chosen,
        "seeds": list(range(options.seeds)),
        "k": list(KS),
        "widths": [w for w in WIDTHS if w < encoder.dim] + [encoder.dim],
        "fit_on": "target",
        "tuned_on": "dev",
    }
    return {"settings": settings, "rows": rows}


def _rows(
    splits: dict[str, SentencePairs],
    vectors: dict[str, NDArray[np.float32]],
    options: RunOptions,
    keep: Keep,
) -> list[dict[str, Any]]:
    fit, dev = vectors["all"], vectors["dev"]
    dim = fit.shape[1]

    @functools.cache
    def flow_on_test() -> NDArray[np.floating[Any]]:
        model = fit_calibrator(FLOW_CALIBRATOR, fit, seed=0, progress=options.progress)
        return transform(model, vectors["test"])

    def score(calibrator: str, seed: int) -> dict[str, Any]:
        model = fit_calibrator(calibrator, fit, seed=seed, progress=options.progress)
        z = transform(model, vectors["test"])
        found: dict[str, Any] = scores(splits["test"], z, interval=seed == 0) | {
            "dev": round(score_sts(splits["dev"], transform(model, dev)).all, 4)
        }
        if calibrator != FLOW_CALIBRATOR:
            lead = bootstrap_difference(splits["test"], flow_on_test(), z)
            found["flow_lead"] = {
                key: round(float(getattr(lead, key)), 4) for key in ("estimate", "low", "high")
            }
        return found

    def row(label: str, calibrator: str) -> dict[str, Any]:
        parts = [
            keep(f"{calibrator} | {seed}", functools.partial(score, calibrator, seed))
            for seed in seeds_for(calibrator, options.seeds)
        ]
        beside = ("dev", "flow_lead")
        tests = [{key: value for key, value in part.items() if key not in beside} for part in parts]
        made = {
            "row": label,
            "calibrator": calibrator,
            "test": merge_seeds(tests),
            "dev": [part["dev"] for part in parts],
        }
        return made | {key: parts[0][key] for key in ("flow_lead",) if key in parts[0]}

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
        row(FLOW, FLOW_CALIBRATOR),
    ]


def tune(
    family: str,
    values: Sequence[int],
    fit: NDArray[np.floating[Any]],
    dev: SentencePairs,
    dev_embeddings: NDArray[np.floating[Any]],
) -> dict[int, float]:
    """Score candidates on validation pairs only; the test pairs are not an argument.

    The values are numbers of nulled directions (family natsv, sn+natsv) or widths (whiten); ``fit``
    and ``dev_embeddings`` are embeddings.
    """
    # The directions come sorted, so one fit serves all candidates: each takes the first few.
    largest = fit_calibrator(f"{family}:{max(values)}", fit)
    before, last = (largest[:-1], largest[-1]) if family.startswith("sn+") else (None, largest)
    x = dev_embeddings if before is None else before.transform(dev_embeddings)
    found = {}
    for value in values:
        cut = copy.copy(last)
        cut.directions_ = last.directions_[:value]
        if hasattr(last, "variances_"):
            cut.variances_ = last.variances_[:value]
        found[value] = round(score_sts(dev, cut.transform(x)).all, 4)
    return found


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
