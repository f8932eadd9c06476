"""Tables 2 and 3: seven STS sets, raw and calibrated; how they are made and laid out.

Table 2 is an encoder without NLI supervision, Table 3 one that was fine-tuned on NLI; the
experiment is the same, the layers and the published rows differ.

flow (NLI) is fitted on sentences of SNLI and MultiNLI, labels unused (Section 4.1).  The paper
trains it for 0.15 epoch at a learning rate of 2e-5 (Appendix B).  On two million sentences that is
thousands of steps; on a small corpus it is a few hundred and hardly moves the flow from its
initialization.  So there are two forms: as published, and trained to convergence.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import SEPARATING_LINE, tabulate

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.paper import SETS, Gain, measure_gain, paper_rows, text_claims
from bertflow_lite.experiments.runs import load_run
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    EncodedSet,
    Row,
    RunOptions,
    encode_set,
    fit_and_score,
    fit_calibrator,
    merge_seeds,
    scores,
    seeds_for,
    show_score,
)
from bertflow_lite.train import train_flow

logger = logging.getLogger(__name__)
RAW = Row("raw", "none", "none")
TARGET = Row("flow (target)", "flow:paper", "target")
TRAIN = Row("flow (target), train only", "flow:paper", "train")
NLI_LABELS = {
    "published": "flow (NLI), 0.15 epoch at 2e-5",
    "converged": "flow (NLI), to convergence",
}
NliForm = Literal["published", "converged"]
NLI_FORMS: tuple[NliForm, ...] = ("published", "converged")
# Appendix B.
PUBLISHED_EPOCHS = 0.15
PUBLISHED_RATE = 2e-5
# Sentences drawn where there are more: 0.15 epoch of all SNLI and MultiNLI needs fewer, and what
# a flow of this size learns from more of them is below the differences among seeds.
MOST_SENTENCES = 300_000


@dataclass(frozen=True)
class _Run:
    """What all parts of one run of a table share."""

    encoder: AnyEncoder
    sets: dict[str, dict[str, EncodedSet]]  # by set, then by layer choice
    options: RunOptions


def run_table2(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 2 on an encoder.

    Rows: CLS, raw; the mean of the last layer, last2avg, first-last and each further layer choice,
    raw and calibrated: by whitening (full, and to a third of the width as BERT-whitening does),
    flow (NLI) in both forms of `fit_nli_flow`, flow (target) fitted on the sentences of all splits
    as the paper does, and on those of the train split only.  Word vectors have one layer, and stand
    beside any other encoder where GloVe is installed.

    Flow (NLI) to convergence, by far the longest, is fitted with random state 0 only.

    Gives ``settings`` and ``rows``. A row has ``row``, ``layers``, ``calibrator``, ``fit_on`` and
    ``scores``: by set, what `scores` gives, over seeds (`merge_seeds`), ``fitted_on`` and for flows
    ``bits_per_dim``.
    """
    options = options or RunOptions()
    chosen, raw_only = [*encoder.default_layers], []
    if isinstance(encoder, Encoder):
        chosen = options.choices("last", *chosen)
        raw_only = ["cls"] if encoder.has_cls else []
    results = _run(encoder, chosen, raw_only, options)
    if encoder.name != "glove":
        results["rows"] = _glove_rows(results, options) + results["rows"]
    return results


def run_table3(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 3 on an encoder that was fine-tuned on NLI (or is sentence-tuned otherwise).

    Rows: mean of the last layer and last2avg, raw and calibrated; the result is as `run_table2`'s.
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"Table 3 is about fine-tuned transformers; {encoder.name!r} is none.")
    options = options or RunOptions()
    return _run(encoder, options.choices("last", "last2avg"), [], options)


def _run(
    encoder: AnyEncoder, layers: list[str], raw_only: list[str], options: RunOptions
) -> dict[str, Any]:
    every = list(dict.fromkeys([*(one for one in raw_only if one not in layers), *layers]))
    how = {"download": options.download, "progress": options.progress}
    sets = {}
    for name in options.data or SETS:
        by_layer = encode_set(encoder, name, every, **how)
        sets[next(iter(by_layer.values())).pairs.name] = by_layer
    run = _Run(encoder, sets, options)
    third = f"whiten:{max(1, encoder.dim // 3)}"
    rows = [_target_row(run, layer, RAW) for layer in every]
    nli, reason = _load_nli(options.download)
    chosen = choose_sentences(nli.sentences, options.nli_sentences) if nli is not None else []
    for layer in layers:
        rows.append(_target_row(run, layer, Row("whitening", "whiten", "target")))
        rows.append(_target_row(run, layer, Row("whitening to a third", third, "target")))
        if nli is not None:
            rows += _nli_rows(run, layer, chosen)
        rows.append(_target_row(run, layer, TARGET))
        if any("train" in one[layer].fit for one in sets.values()):
            rows.append(_target_row(run, layer, TRAIN))
    rows.sort(key=lambda row: every.index(row["layers"]))  # stable: raw stays first in each
    settings = {
        "data": {
            name: next(iter(one.values())).pairs.fingerprint for name, one in sets.items()
        },
        "nli": {"sentences": len(chosen), "of": len(nli.sentences), "fingerprint": nli.fingerprint,
                "source": nli.source} if nli is not None else {"left out": reason},
        "layers": every,
        "seeds": list(range(options.seeds)),
        "dim": encoder.dim,
    }  # fmt: skip
    return {"settings": settings, "rows": rows}


def _target_row(run: _Run, layer: str, row: Row) -> dict[str, Any]:
    by_set = {}
    for name, by_layer in run.sets.items():
        encoded = by_layer[layer]
        if row.fit_on not in ("none", *encoded.fit):
            continue
        parts: list[dict[str, Any]] = []
        for seed in seeds_for(row.calibrator, run.options.seeds):
            logger.info("%s, %s, %s, seed %d", layer, row.label, name, seed)
            compute = functools.partial(
                fit_and_score, row, encoded, seed, progress=run.options.progress
            )
            parts.append(run.options.keep(f"{layer} | {row.label} | {name} | {seed}", compute))
        by_set[name] = merge_seeds(parts)
    return {
        "row": row.label,
        "layers": layer,
        "calibrator": row.calibrator,
        "fit_on": row.fit_on,
        "scores": by_set,
    }


def _nli_rows(run: _Run, layer: str, sentences: Sequence[str]) -> list[dict[str, Any]]:
    progress = run.options.progress

    @functools.cache
    def embeddings() -> Any:  # when the first flow needs them, for this layer only
        asked: Any = [layer]
        (encoded,) = run.encoder.encode(sentences, asked, progress=progress).values()
        return encoded

    def fit_and_score_all(form: Any, seed: int) -> dict[str, Any]:
        flow = fit_nli_flow(embeddings(), form=form, seed=seed, progress=progress)
        bits = flow.bits_per_dim(embeddings())
        out: dict[str, Any] = {
            name: scores(one[layer].pairs, flow.transform(one[layer].scored), interval=seed == 0)
            | {"fitted_on": len(sentences), "bits_per_dim": round(bits, 4)}
            for name, one in run.sets.items()
        }
        if isinstance(flow, ConvergedFlow):
            out["held out"] = [round(value, 4) for value in flow.held_out_bits_]
        return out

    rows = []
    for form in NLI_FORMS:
        parts = []
        for seed in range(run.options.seeds if form == "published" else 1):
            logger.info("%s, %s, seed %d", layer, NLI_LABELS[form], seed)
            compute = functools.partial(fit_and_score_all, form, seed)
            parts.append(run.options.keep(f"{layer} | {NLI_LABELS[form]} | {seed}", compute))
        row: dict[str, Any] = {
            "row": NLI_LABELS[form],
            "layers": layer,
            "calibrator": "flow:paper" if form == "published" else "flow",
            "fit_on": "nli",
            "scores": {name: merge_seeds([part[name] for part in parts]) for name in run.sets},
        }
        if form == "converged":
            row["held_out_bits"] = [part["held out"] for part in parts]
        rows.append(row)
    return rows


def _glove_rows(results: dict[str, Any], options: RunOptions) -> list[dict[str, Any]]:
    """Score the average of GloVe vectors, raw, on the same sets, where GloVe is installed."""
    from bertflow_lite.encoders.word_vectors import load_glove

    try:
        glove = load_glove()
    except FileNotFoundError as error:
        logger.warning("the GloVe row is left out: %s", error)
        return []
    sets = {
        name: encode_set(glove, name, ["mean"], download=options.download)
        for name in results["settings"]["data"]
    }
    return [_target_row(_Run(glove, sets, options), "mean", RAW) | {"model": "glove"}]


def _load_nli(download: bool) -> tuple[Any, str]:
    """Give the NLI sentences at hand, or None and the reason."""
    from bertflow_lite.datasets.nli import load_nli_sentences

    try:
        return load_nli_sentences(download=download), ""
    except FileNotFoundError as error:
        logger.warning("flow (NLI) is left out: %s", error)
        return None, "no NLI sentences were found"


def mean_scores(row: dict[str, Any], aggregation: str = "wmean") -> dict[str, float]:
    """Mean over the seeds of a row's scores, by set."""
    return {name: float(np.mean(one[aggregation])) for name, one in row["scores"].items()}


def format_table2(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out `run_table2`'s rows with the paper's Table 2 below, and the gains of the text."""
    return f"{_format(results, 2, style)}\n\n{_format_gains(results)}"


def format_table3(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out `run_table3`'s rows with the paper's Table 3 below.

    The stored run of all-MiniLM-L6-v2, a sentence-tuned encoder that anyone can run, stands
    between them.
    """
    try:
        rows = load_run("table2", "minilm")["results"]["rows"]
    except FileNotFoundError:
        rows = []
    tuned = [row for row in rows if (row["row"], row["layers"]) == ("raw", "last")]
    return _format(results, 3, style, beside=tuned)


def _format(
    results: dict[str, Any], number: int, style: str, beside: Sequence[dict[str, Any]] = ()
) -> str:
    sets = list(results["settings"]["data"])

    def cells(by_set: dict[str, Any], show: Callable[[Any], str]) -> list[str]:
        means = [np.mean(by_set[name]) for name in sets if name in by_set]
        complete = len(means) == len(sets)
        return [show(by_set[name]) if name in by_set else "" for name in sets] + [
            f"{np.mean(means):.2f}" if complete else ""
        ]

    def ours(row: dict[str, Any], name: str) -> list[str]:
        by_set = {set_name: one["wmean"] for set_name, one in row["scores"].items()}
        return [name, row["row"], *cells(by_set, lambda x: show_score(np.atleast_1d(x).tolist()))]

    lines: list[Any] = [
        ours(row, f"{row['model']} {row['layers']}" if "model" in row else row["layers"])
        for row in results["rows"]
    ]
    rule = [SEPARATING_LINE] if style == "simple" else []
    lines += rule + [ours(row, f"minilm {row['layers']} (stored run)") for row in beside]
    if any(name in SETS for name in sets):
        lines += rule if beside else []
        lines += [
            [f"paper ({row.aggregation})", row.label, *cells(row.scores, lambda x: f"{x:.2f}")]
            for row in paper_rows(number)
        ]
    headers = ["layers", "wmean, Spearman x 100", *(SETS.get(n, n) for n in sets), "average"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


def _format_gains(results: dict[str, Any]) -> str:
    """State the text's claim, recomputed from the paper's table, and our counterpart by layer."""
    lines = ["Gain of flow (target) over the same layers raw (points of wmean):"]
    for model, claim in text_claims().items():
        lines.append(
            f"  paper, {model}: average {claim['average']:+.2f} from its table "
            f"(its text: {claim['stated']:+.2f}), largest {claim['largest']:+.2f} on "
            f"{claim['largest_on']} (its text, over both models: {claim['stated_largest']:+.2f})"
        )
    for layer, gain in flow_gains(results).items():
        lines.append(
            f"  here, {layer}: average {gain.average:+.2f}, largest {gain.largest:+.2f} on "
            f"{gain.largest_on}"
        )
    return "\n".join(lines)


def flow_gains(results: dict[str, Any]) -> dict[str, Gain]:
    """Give the gain of flow (target) over the same layers raw: our counterpart of the text's claim.

    By layer choice, in points of wmean (mean over seeds), from results of Table 2 or 3.
    """
    rows = {(row["layers"], row["row"]): row for row in results["rows"] if "model" not in row}
    return {
        layer: measure_gain(
            mean_scores(rows[layer, RAW.label]), mean_scores(rows[layer, TARGET.label])
        )
        for layer in results["settings"]["layers"]
        if (layer, TARGET.label) in rows
    }


class ConvergedFlow(FlowCalibrator):
    """A flow trained until the bits per dimension of held-out embeddings stop falling.

    A tenth of the embeddings, drawn at random, is held out.  After each pass over the others their
    bits per dimension are measured (``held_out_bits_``, the first after initialization).  Training
    ends with the first pass that lowers them by less than ``least_gain``, or after ``most_epochs``
    passes; the best flow is kept.  Batches are larger than the paper's, for speed.
    """

    least_gain = 0.005
    most_epochs = 30

    def __init__(
        self, *, batch_size: int = 256, random_state: int = 0, progress: bool = False
    ) -> None:
        super().__init__(
            epochs=0, batch_size=batch_size, random_state=random_state, progress=progress
        )

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to embeddings, shape (n >= 20, dim >= 2); see the class."""
        x = np.asarray(X)
        if len(x) < 20:
            raise ValueError(f"there are {len(x)} rows; a tenth is held out, so give 20 or more.")
        order = np.random.default_rng(self.random_state).permutation(len(x))
        held_out, fitted = x[order[: len(x) // 10]], x[order[len(x) // 10 :]]
        super().fit(fitted)  # 0 epochs: initializes from data
        data = self._tensor(fitted[:, self.live_])
        best = self._weights()
        self.held_out_bits_ = [self.bits_per_dim(held_out)]
        for epoch in range(self.most_epochs):
            self.flow_.train().requires_grad_(True)
            train_flow(
                self.flow_,
                data,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                max_grad_norm=self.max_grad_norm,
                seed=1000 * self.random_state + epoch,
                progress=self.progress,
            )
            self.flow_.eval().requires_grad_(False)
            lowest = min(self.held_out_bits_)
            self.held_out_bits_.append(self.bits_per_dim(held_out))
            if self.held_out_bits_[-1] < lowest:
                best = self._weights()
            if self.held_out_bits_[-1] > lowest - self.least_gain:
                break
        self.flow_.load_state_dict(best)
        return self

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.flow_.state_dict().items()}


def fit_nli_flow(
    embeddings: NDArray[np.floating[Any]], *, form: NliForm, seed: int = 0, progress: bool = False
) -> FlowCalibrator:
    """Fit the flow of the rows "flow (NLI)".

    ``"published"``: one pass over a random 15 % of the embeddings (0.15 epoch) in batches of 32 at
    a learning rate of 2e-5, after data-dependent initialization. ``"converged"``: at 1e-3, as
    `ConvergedFlow`.
    """
    if form not in NLI_FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(NLI_FORMS)}.")
    model: FlowCalibrator
    if form == "converged":
        model = ConvergedFlow(random_state=seed, progress=progress)
    else:
        some = max(2, round(PUBLISHED_EPOCHS * len(embeddings)))
        rows = np.random.default_rng(seed).permutation(len(embeddings))[:some]
        embeddings = embeddings[rows]
        model = FlowCalibrator(learning_rate=PUBLISHED_RATE, random_state=seed, progress=progress)
    fit_calibrator(model, embeddings)
    return model


def choose_sentences(sentences: Sequence[str], most: int | None = None) -> list[str]:
    """Draw sentences at random, always the same ones, where there are more than ``most``.

    By default that is 300,000. The order stays.
    """
    most = MOST_SENTENCES if most is None else most
    if most < 20:
        raise ValueError(f"{most} NLI sentences are asked for; the flow needs 20 or more.")
    if len(sentences) <= most:
        return list(sentences)
    rows = np.random.default_rng(0).choice(len(sentences), most, replace=False)
    return [sentences[row] for row in np.sort(rows)]
