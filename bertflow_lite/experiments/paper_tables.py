"""Every table and figure of the paper as an experiment: run it on an encoder, print it, draw it.

An experiment is a function ``run(encoder, *, seeds, layers, data, download, progress, keep)`` that
gives a dict for JSON, and a function that lays that dict out beside the paper's numbers.  They
live in modules of their own, which are imported when asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate

from bertflow_lite.encode import Encoder
from bertflow_lite.experiments.partial_runs import KeptResults
from bertflow_lite.experiments.table_rows import AnyEncoder, Keep, no_keep, show_score
from bertflow_lite.paper import load_paper_table
from bertflow_lite.runs import PACKAGES, _version
from bertflow_lite.word_frequency import load_word_counts
from bertflow_lite.word_table import BINS, KS, WordEmbeddings, make_table1

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "find_experiment",
    "format_table1",
    "format_table8",
    "open_kept",
    "run_table1",
    "run_table8",
]


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes
    ----------
    name : str
        ``"table2"``, ``"figure1"`` ...: also the folder of its stored runs.
    title : str
        What it shows.
    module : str
        Where ``run_NAME``, ``format_NAME`` and, for a figure, ``draw_NAME`` are, in this package.
    format_module, draw_module : str
        Where the latter two are, if elsewhere.
    several : bool
        Whether it is about several models at once (Table 8).
    transformers_only : bool
        Whether it says nothing about word vectors.
    """

    name: str
    title: str
    module: str
    format_module: str = ""
    draw_module: str = ""
    several: bool = False
    transformers_only: bool = False

    @property
    def run(self) -> Callable[..., dict[str, Any]]:
        """The function that measures; see the module."""
        return self._find("run", self.module)

    @property
    def format(self) -> Callable[..., str]:
        """The function that lays the result out as text."""
        return self._find("format", self.format_module or self.module)

    @property
    def draw(self) -> Callable[..., Any] | None:
        """The function that makes a Plotly figure of the result, where there is one."""
        return self._find("draw", self.draw_module) if self.draw_module else None

    def _find(self, what: str, module: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(
            importlib.import_module(f"bertflow_lite.{module}"), f"{what}_{self.name}"
        )
        return function


EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Experiment("table1", "word embeddings by word frequency", "experiments.paper_tables",
                   transformers_only=True),
        Experiment("table2", "seven STS sets, no NLI supervision", "experiments.sts_tables",
                   "experiments.sts_table_text"),
        Experiment("table3", "seven STS sets, encoder fine-tuned on NLI", "experiments.sts_tables",
                   "experiments.sts_table_text", transformers_only=True),
        Experiment("table4", "QNLI validation, AUC of the cosine", "experiments.qnli_runs"),
        Experiment("table5", "calibration baselines on STS-B", "experiments.baseline_table"),
        Experiment("table6", "similarity and edit distance", "experiments.lexical_runs",
                   "experiments.lexical_tables"),
        Experiment("table8", "STS-B over several NLI models", "experiments.paper_tables",
                   several=True),
        Experiment("figure1", "embedding space and latent space", "experiments.flow_map",
                   draw_module="figures.tables"),
        Experiment("figure2", "similarity against edit distance", "experiments.lexical_runs",
                   "experiments.lexical_tables", draw_module="figures.lexical"),
    )
}  # fmt: skip
"""The paper's tables and figures by name.  Its Table 7 lists settings (`calibrate.PRESETS`)."""


def find_experiment(kind: str, number: int) -> Experiment:
    """Give ``EXPERIMENTS[kind + number]``.

    Raises
    ------
    ValueError
        If the paper has no such table or figure, naming those there are.
    """
    name = f"{kind}{number}"
    if name not in EXPERIMENTS:
        there = [one.removeprefix(kind) for one in EXPERIMENTS if one.startswith(kind)]
        extra = (
            " Table 7 lists the flow's settings: the preset 'paper'." if name == "table7" else ""
        )
        raise ValueError(f"there is no {kind} {number}; there are {', '.join(there)}.{extra}")
    return EXPERIMENTS[name]


def open_kept(
    experiment: Experiment,
    encoder: AnyEncoder,
    *,
    seeds: int,
    layers: Sequence[str],
    data: Sequence[str] | None,
    **more: Any,
) -> KeptResults:
    """Open what an interrupted run of the same experiment with the same settings left behind."""
    device = encoder.device if isinstance(encoder, Encoder) else torch.device("cpu")
    settings = {
        "fingerprint": encoder.fingerprint,
        "max_length": getattr(encoder, "max_length", None),
        "precision": str(getattr(encoder, "autocast", None)),
        "device": device.type,
        "seeds": seeds,
        "layers": list(layers),
        "data": list(data) if data is not None else None,
        **more,
        "versions": {package: _version(package) for package in PACKAGES},
    }
    return KeptResults(experiment.name, settings)


def run_table1(
    encoder: AnyEncoder,
    *,
    seeds: int = 1,
    layers: Sequence[str] = (),
    data: Sequence[str] | None = None,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
) -> dict[str, Any]:
    """Run Table 1: norms of word embeddings and distances to neighbors, by frequency rank.

    Only the encoder matters: nothing is drawn at random, and word embeddings have no layers.

    Returns
    -------
    dict
        ``settings``, and ``table1`` (`word_table.Table1.to_dict`).
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"Table 1 measures a transformer's word embeddings; {encoder.name!r} "
                         "is a table of word vectors without a vocabulary of its own.")  # fmt: skip
    counts = load_word_counts()
    words = WordEmbeddings.of(encoder, counts.words).up_to(BINS[-1][1])
    return {
        "settings": {"data": {}, "word_counts": counts.source},
        "table1": make_table1(words).to_dict(),
    }


def format_table1(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 1, ours and the paper's line by line."""
    ours, paper = results["table1"], load_paper_table(1)
    lines: list[list[Any]] = [["words of one token", "", *map(str, ours["n_words"])]]

    def add(label: str, mine: Sequence[float], published: Sequence[float]) -> None:
        lines.append([label, "here", *(f"{value:.2f}" for value in mine)])
        lines.append(["", "paper, BERT-base", *(f"{value:.2f}" for value in published)])

    add("mean l2 norm", ours["norm"], paper["mean_l2_norm"])
    for k in map(str, KS):
        add(f"mean l2 distance, k={k}", ours["distance"][k], paper["mean_knn_l2_dist"][k])
    for k in map(str, KS):
        add(f"mean dot product, k={k}", ours["dot"][k], paper["mean_knn_dot_product"][k])
    headers = ["rank of word frequency", "", *(f"[{low}, {high})" for low, high in ours["bins"])]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


def run_table8(models: Sequence[str], **options: Any) -> dict[str, Any]:
    """Run Table 8 on several NLI models, one for each seed; see `nli_runs.table8`."""
    from bertflow_lite.experiments.nli_runs import table8

    results: dict[str, Any] = table8(models, **options)
    return results


def format_table8(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 8: mean ± standard deviation and median over models, ours and the paper's."""
    n = len(results["models"])
    lines = [
        [f"here ({n} models)", row["row"], show_score(row["values"]), f"{row['median']:.2f}"]
        for row in results["rows"]
    ]
    for label, values in load_paper_table(8).items():
        if label != "caption":
            mean, deviation, median = values
            lines.append(["paper", label, f"{mean:.2f} ± {deviation:.2f}", f"{median:.2f}"])
    headers = ["", "STS-B, Spearman x 100", "mean ± deviation", "median"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)
