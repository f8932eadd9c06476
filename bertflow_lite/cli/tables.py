"""Commands for the paper's tables and figures: table, figure, all."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tabulate import tabulate

from bertflow_lite.cli.common import WRITERS, app, clear_errors, split_names
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.resume import KeptResults
from bertflow_lite.experiments.runs import PACKAGES, _version
from bertflow_lite.experiments.scoring import AnyEncoder

__all__ = ["EXPERIMENTS", "Experiment", "find_experiment", "open_kept"]

Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        help="minilm, smollm2, mini-bert, glove, a folder, or a hub id; several in Table 8.",
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Flows fitted, with seeds 0, 1, ...")]
Layers = Annotated[
    list[str],
    typer.Option(help="A layer choice beside the experiment's own; may be repeated."),
]
Data = Annotated[str | None, typer.Option(help="Some of the sets only, separated by commas.")]
MaxLength = Annotated[int, typer.Option(help="Longest sentence, in tokens (the paper's: 64).")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
NliSentences = Annotated[
    int | None,
    typer.Option(min=20, help="Fit flow (NLI) on this many NLI sentences only, drawn at random."),
]
Name = Annotated[str | None, typer.Option(help="Name of the stored run; default: the model's.")]
Store = Annotated[bool, typer.Option(help="Store the run as data/results/tableN/NAME.json.")]
Resume = Annotated[bool, typer.Option(help="Go on from an interrupted run's finished rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Download = Annotated[bool, typer.Option(help="Fetch a missing model or data set.")]
Progress = Annotated[bool, typer.Option(help="Progress bars (on stderr).")]


@app.command()
def table(
    number: Annotated[int, typer.Argument(help="1, 2, 3, 4, 5, 6 or 8, as in the paper.")],
    model: Models,
    seeds: Seeds = 3,
    layers: Layers = [],  # noqa: B006 (typer copies it)
    data: Data = None,
    max_length: MaxLength = 64,
    device: Device = None,
    threads: Threads = None,
    nli_sentences: NliSentences = None,
    name: Name = None,
    store: Store = True,
    resume: Resume = True,
    out: Annotated[Path | None, typer.Option(help="Write the table: .json, .md, .tex.")] = None,
    as_json: AsJson = False,
    download: Download = False,
    progress: Progress = True,
) -> None:
    """Run one of the paper's tables on a model, beside the paper's numbers."""
    options = dict(locals()) | {"strict": True}
    with clear_errors():
        _run_one("table", options.pop("number"), options)


@app.command()
def figure(
    number: Annotated[int, typer.Argument(help="1 or 2, as in the paper.")],
    model: Models,
    seeds: Seeds = 1,
    layers: Layers = [],  # noqa: B006
    data: Data = None,
    max_length: MaxLength = 64,
    device: Device = None,
    threads: Threads = None,
    nli_sentences: NliSentences = None,
    name: Name = None,
    store: Store = True,
    resume: Resume = True,
    out: Annotated[Path | None, typer.Option(help="Write it: .html (interactive), .json.")] = None,
    as_json: AsJson = False,
    download: Download = False,
    progress: Progress = True,
) -> None:
    """Measure what one of the paper's figures shows on a model, and draw it."""
    options = dict(locals()) | {"strict": True}
    with clear_errors():
        _run_one("figure", options.pop("number"), options)


@app.command(name="all")
def run_all(
    model: Models,
    seeds: Seeds = 3,
    layers: Layers = [],  # noqa: B006
    data: Data = None,
    max_length: MaxLength = 64,
    device: Device = None,
    threads: Threads = None,
    nli_sentences: NliSentences = None,
    name: Name = None,
    store: Store = True,
    resume: Resume = True,
    download: Download = False,
    progress: Progress = True,
) -> None:
    """Run every table and figure that makes sense for a model, one after the other.

    Table 8, which is about several fine-tuned models, runs where several are given.
    """
    options = dict(locals()) | {"out": None, "as_json": False, "strict": False}

    failed = []
    for experiment in EXPERIMENTS.values():
        kind, number = experiment.name[:-1], int(experiment.name[-1])
        if experiment.several != (len(model) > 1):
            continue
        if experiment.transformers_only and model[0] == "glove":
            continue
        typer.echo(f"\n== {kind} {number}: {experiment.title}\n")
        try:
            with clear_errors():
                _run_one(kind, number, options)
        except typer.Exit as ended:
            if ended.exit_code != 1:
                raise
            failed.append(f"{kind} {number}")
    if failed:
        typer.echo(f"\nnot done, for the reasons above: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _run_one(kind: str, number: int, options: dict[str, Any]) -> None:
    import torch

    from bertflow_lite.experiments.runs import store_run
    from bertflow_lite.files import write_text

    experiment = find_experiment(kind, number)
    out: Path | None = options["out"]
    endings = [".json", ".html"] if kind == "figure" else [".json", ".md", ".tex"]
    if out is not None and out.suffix not in endings:
        raise ValueError(f"--out {out.name}: the ending must be {', '.join(endings)}.")
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no folder {out.parent}; make it first.")
    if options["threads"] is not None:
        torch.set_num_threads(options["threads"])
    several = experiment.several
    if not several and len(options["model"]) > 1:
        raise ValueError(f"{kind} {number} is about one model; --model was given more than once.")
    results, how, kept = (_run_several if several else _run_encoder)(experiment, options)
    content = {"how": how, "results": results}
    if out is not None:
        if out.suffix == ".json":
            write_text(out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        elif out.suffix == ".html":
            assert experiment.draw is not None
            write_text(out, experiment.draw(results).to_html())  # plotly.js inside: works offline
        else:
            write_text(out, experiment.format(results, WRITERS[out.suffix]) + "\n")
    name = options["name"] or how["model"]
    if options["store"]:
        store_run(experiment.name, name, how, results)
    if kept is not None:
        kept.remove()
    if options["as_json"]:
        typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
        return
    typer.echo(f"{how['model']}: {experiment.title} ({how['seconds']:.0f} s)\n")
    typer.echo(experiment.format(results))
    if options["store"]:
        typer.echo(f"\nstored as {experiment.name}/{name.replace('/', '--')}.json in data/results")


def _run_encoder(experiment: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    from bertflow_lite.encoders.transformer import load_encoder
    from bertflow_lite.experiments.runs import provenance

    (model,) = options["model"]
    data = split_names(options["data"]) if options["data"] is not None else None
    chosen: dict[str, Any] = {"seeds": options["seeds"], "layers": options["layers"], "data": data}
    if options["nli_sentences"] is not None:
        if "nli_sentences" in inspect.signature(experiment.run).parameters:
            chosen["nli_sentences"] = options["nli_sentences"]
        elif options["strict"]:
            raise ValueError(f"{experiment.name} has no flow (NLI): --nli-sentences is not for it.")
    encoder = load_encoder(
        model,
        max_length=options["max_length"],
        device=options["device"],
        download=options["download"],
    )
    kept = open_kept(experiment, encoder, **chosen)
    if not options["resume"]:
        kept.remove()
    if kept.found:
        typer.echo(f"going on from {kept.found} finished parts of an earlier run", err=True)
    results = experiment.run(
        encoder,
        **chosen,
        download=options["download"],
        progress=options["progress"] and sys.stderr.isatty(),
        keep=kept,
    )
    how = provenance(
        model=_name(model),
        fingerprint=encoder.fingerprint,
        seed=list(range(options["seeds"])),
        device=str(getattr(encoder, "device", "cpu")),
        max_length=getattr(encoder, "max_length", None),
        data=results["settings"]["data"],
        seconds=round(kept.seconds, 1),
        cpu_seconds=round(kept.cpu_seconds, 1),
    )
    return results, how, kept


def _run_several(experiment: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any], None]:
    import time

    from bertflow_lite.devices import find_device
    from bertflow_lite.experiments.runs import provenance

    started, worked = time.perf_counter(), time.process_time()
    results = experiment.run(
        options["model"],
        max_length=options["max_length"],
        device=options["device"],
        download=options["download"],
        progress=options["progress"] and sys.stderr.isatty(),
    )
    models = results["models"]
    how = provenance(
        model=options["name"] or ", ".join(map(_name, options["model"])),
        fingerprint=", ".join(one["fingerprint"] for one in models),
        seed=[one["seed"] for one in models],
        device=str(find_device(options["device"])),
        max_length=options["max_length"],
        data=results["settings"]["data"],
        seconds=round(time.perf_counter() - started, 1),
        cpu_seconds=round(time.process_time() - worked, 1),
    )
    return results, how, None


def _name(model: str) -> str:
    """Name a model: a folder by its last part, which says the same on every machine."""
    return Path(model).resolve().name if Path(model).is_dir() else model


logger = logging.getLogger(__name__)


@app.command()
def ablation(
    model: Annotated[
        str, typer.Option(help="minilm, smollm2, mini-bert, glove, a folder, or a hub id.")
    ] = "minilm",
    layers: Annotated[
        list[str], typer.Option(help="Layer choice; may be repeated. Default: last2avg.")
    ] = [],  # noqa: B006 (typer copies it)
    data: Annotated[
        str | None, typer.Option(help="Sets, by commas. Default: stsb,sick-r; all seven in a test.")
    ] = None,
    parts: Annotated[
        str, typer.Option(help="Parts of the flow to change, by commas; default: all of them.")
    ] = "",
    dropout: Annotated[
        bool, typer.Option(help="Also fit on embeddings made with dropout on (takes minutes).")
    ] = False,
    fit_on: Annotated[
        str, typer.Option(help="Sentences to fit on: target (all splits) or train+dev.")
    ] = "target",
    fit_rows: Annotated[
        int | None, typer.Option(min=2, help="Fit on this many of them only, drawn at random.")
    ] = None,
    test: Annotated[
        bool, typer.Option(help="Score the presets on test splits, with the best dev whitening.")
    ] = False,
    compare: Annotated[
        str | None, typer.Option(help="Stored runs, by commas: print their means, run nothing.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Flows fitted, with seeds 0, 1, ...")] = 3,
    max_length: Annotated[int, typer.Option(help="Longest sentence, in tokens.")] = 64,
    device: Annotated[str | None, typer.Option(help="Of the encoder: cpu, cuda, mps.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Store the run as data/results/ablation/STORE.json.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from an interrupted run's scores.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    download: Annotated[bool, typer.Option(help="Fetch a missing model or data set.")] = False,
) -> None:
    """Change the flow part by part, on validation sets: paper against released code."""
    with clear_errors():
        import torch

        from bertflow_lite import __version__
        from bertflow_lite.calibrators.flow_calibrator import PRESETS
        from bertflow_lite.datasets.sts import load_sts
        from bertflow_lite.encoders.transformer import load_encoder
        from bertflow_lite.experiments.ablation import (
            DATA,
            TEST_DATA,
            find_variants,
            run_ablation,
            run_test,
        )
        from bertflow_lite.experiments.ablation_summary import (
            average_models,
            best_width,
            format_effects,
            format_models,
            format_test,
            summarize,
        )
        from bertflow_lite.experiments.resume import KeptResults, no_keep
        from bertflow_lite.experiments.runs import load_run, provenance, store_run

        if compare is not None:
            runs = {name: load_run("ablation", name) for name in split_names(compare)}
            rows_of = {name: run["results"]["rows"] for name, run in runs.items()}
            averages = average_models(rows_of)
            typer.echo(json.dumps(averages, indent=1) if as_json else format_models(averages))
            return
        if threads is not None:
            torch.set_num_threads(threads)
        sets = split_names(data) if data else list(TEST_DATA if test else DATA)
        chosen = layers or ["last2avg"]
        variants = find_variants(["whiten"] if test else split_names(parts), dropout=dropout)
        if test:
            variants = [variant for variant in variants if variant.part == "whiten"]
        splits = {name: load_sts(name, None if test else "dev", download=download) for name in sets}
        encoder = load_encoder(model, max_length=max_length, device=device, download=download)
        settings: dict[str, Any] = {
            "layers": chosen,
            "parts": parts,
            "dropout": dropout,
            "max_length": max_length,
            "fit_on": fit_on,
            "fit_rows": fit_rows,
            "split": "test" if test else "dev",
            "presets": PRESETS,
            "data": {name: pairs.fingerprint for name, pairs in splits.items()},
        }
        kept = KeptResults(
            "ablation",
            settings | {"encoder": encoder.fingerprint, "seeds": seeds, "version": __version__},
        )
        if not resume:
            kept.remove()
        common: dict[str, Any] = {"download": download, "report": logger.info}
        common |= {"keep": kept if resume else no_keep}
        rows = run_ablation(
            encoder,
            chosen,
            variants,
            data=DATA if test else sets,
            fit_on=fit_on,
            fit_rows=fit_rows,
            seeds=seeds,
            **common,
        )
        results: dict[str, Any] = {"rows": rows}
        if test:
            results = {"widths": {label: best_width(rows, label) for label in chosen}}
            results["rows"] = run_test(encoder, results["widths"], data=sets, seeds=seeds, **common)
        how = provenance(
            model=model,
            fingerprint=encoder.fingerprint,
            seed=list(range(seeds)),
            device=str(getattr(encoder, "device", "cpu")),
            **settings,
            seconds=round(kept.seconds),
            cpu_seconds=round(kept.cpu_seconds),
        )
        if store is not None:
            store_run("ablation", store, how, results)
        kept.remove()
        if as_json:
            typer.echo(json.dumps({"how": how, "results": results}, indent=1))
        elif test:
            typer.echo(format_test(results["rows"]))
        else:
            typer.echo(format_effects(summarize(rows)))


REAL_SETS = "stsb,sick-r,sts12,sts13,sts14,sts15,sts16"
WHAT = ("encoders", "words", "pretraining", "rarity", "weights", "overlap")


@app.command()
def controls(
    what: Annotated[
        str,
        typer.Option(
            help="encoders: scores of a model. words: of encoders that count words. pretraining: "
            "what a model adds to a random one. rarity: how far TF-IDF explains it. weights: what "
            "each word weighs. overlap: where word overlap is balanced."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="random-bert-WIDTHxBLOCKS, or any other model.")
    ] = "random-bert-384x6",
    layers: Annotated[
        list[str], typer.Option(help="Layer choice; may be repeated. Names, or an index.")
    ] = ["last"],  # noqa: B006 (typer copies it)
    data: Annotated[str, typer.Option(help="Sets, separated by commas.")] = REAL_SETS,
    calibrate: Annotated[
        str, typer.Option(help="Calibrators, separated by commas.")
    ] = "none,sn,natsv:1,whiten,whiten:128,flow",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: weights and flows.")] = 3,
    control: Annotated[
        str, typer.Option(help="pretraining: the model that has learned nothing.")
    ] = "random-bert-384x6",
    control_layers: Annotated[str, typer.Option(help="pretraining: its layer choice.")] = "1",
    control_seeds: Annotated[int, typer.Option(min=1, help="pretraining: its seeds.")] = 5,
    aggregation: Annotated[str, typer.Option(help="pretraining: all, mean or wmean.")] = "all",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Store the run as data/results/controls/STORE.json.")
    ] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing model or data set.")] = False,
) -> None:
    """Compare with encoders that have learned nothing: random weights, and counted words."""
    with clear_errors():
        import torch

        from bertflow_lite.devices import find_device
        from bertflow_lite.encoders.random_models import is_random_name
        from bertflow_lite.encoders.transformer import Encoder, load_encoder
        from bertflow_lite.experiments.controls import overlap as overlap_runs
        from bertflow_lite.experiments.controls import runs
        from bertflow_lite.experiments.controls import token_weights as weight_runs
        from bertflow_lite.experiments.runs import provenance, store_run
        from bertflow_lite.experiments.scoring import sts_target

        if what not in WHAT:
            raise ValueError(f"--what is {what!r}; it must be one of {', '.join(WHAT)}.")
        if threads is not None:
            torch.set_num_threads(threads)
        system = runs.System(model, tuple(layers), seeds)
        targets = [sts_target(name, download=download) for name in split_names(data)]
        calibrators = split_names(calibrate)
        options: dict[str, Any] = {
            "device": device,
            "download": download,
            "progress": sys.stderr.isatty(),
        }
        settings: dict[str, Any] = {"layers": layers, "calibrators": calibrators}
        fingerprint = ""
        results: Any
        if what == "encoders":
            by_seed = list(runs.seeded_similarities(system, targets, calibrators, **options))
            fingerprint = ", ".join(dict.fromkeys(one for one, _ in by_seed))
            results = runs.encoder_scores(targets, [found for _, found in by_seed])
        elif what == "words":
            model, settings = "words", {"calibrators": calibrators}
            results = runs.run_words(targets, calibrators)
        elif what == "pretraining":
            other = runs.System(control, (control_layers,), control_seeds)
            settings |= {"control": vars(other), "aggregation": aggregation}
            results = runs.run_pretraining(
                system,
                other,
                targets,
                calibrators,
                aggregation=aggregation,  # type: ignore[arg-type]
                **options,
            )
        elif what == "rarity":
            results = runs.run_rarity(system, targets, calibrators, **options)
        elif what == "weights":
            encoder = load_encoder(
                model, device=device, download=download, cache=not is_random_name(model)
            )
            if not isinstance(encoder, Encoder):
                raise ValueError(f"{model!r} has no tokens to weigh; give a transformer.")
            fingerprint = encoder.fingerprint
            results = {
                "pooling": weight_runs.run_pooling(encoder, layers, targets),
                "influence": weight_runs.run_influence(encoder, layers, targets[0], calibrators),
            }
        else:
            results = {
                "within": overlap_runs.run_within(system, targets, calibrators, **options),
                "kinds": overlap_runs.run_kinds(system, calibrators, **options),
                "answers": overlap_runs.run_answers(system, calibrators, **options),
                "swaps": overlap_runs.run_swaps(system, calibrators, **options),
            }
        if what in ("pretraining", "rarity", "overlap"):
            fingerprint = runs.find_fingerprints(system, device=device, download=download)
        how = provenance(
            model=model,
            fingerprint=fingerprint,
            seed=list(range(seeds)),
            device=str(find_device(device)),
            **settings,
            max_length=64,
            fit_on="target",
            data={target.pairs.name: target.pairs.fingerprint for target in targets},
        )
        if store is not None:
            store_run("controls", store, how, results)
        for title, part in (results if isinstance(results, dict) else {what: results}).items():
            rows = [{key: _short(value) for key, value in row.items()} for row in part]
            typer.echo(f"\n{title}")
            typer.echo(tabulate(rows, headers="keys", disable_numparse=True))


def _short(value: Any) -> str:
    """Write a cell: a list of scores as its mean and spread, or as estimate [low, high]."""
    if isinstance(value, list):
        return " ".join(f"{one:.1f}" for one in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


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
        Experiment("table1", "word embeddings by word frequency", "cli.tables",
                   transformers_only=True),
        Experiment("table2", "seven STS sets, no NLI supervision", "experiments.tables2_3",
                   "experiments.tables2_3"),
        Experiment("table3", "seven STS sets, encoder fine-tuned on NLI", "experiments.tables2_3",
                   "experiments.tables2_3", transformers_only=True),
        Experiment("table4", "QNLI validation, AUC of the cosine", "experiments.table4"),
        Experiment("table5", "calibration baselines on STS-B", "experiments.table5"),
        Experiment("table6", "similarity and edit distance", "experiments.table6",
                   "experiments.table6"),
        Experiment("table8", "STS-B over several NLI models", "cli.tables",
                   several=True),
        Experiment("figure1", "embedding space and latent space", "experiments.figure1",
                   draw_module="figures.flows"),
        Experiment("figure2", "similarity against edit distance", "experiments.table6",
                   "experiments.table6", draw_module="figures.spelling"),
    )
}  # fmt: skip
"""The paper's tables and figures; its Table 7 lists settings (`flow_calibrator.PRESETS`)."""


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
