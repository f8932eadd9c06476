"""Commands that make the book's stored runs: table, figure, all, ablation, controls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from tabulate import tabulate

from bertflow_lite.cli import common
from bertflow_lite.cli.common import app, clear_errors


class Functions(NamedTuple):
    """What measures an experiment, lays its result out as text, and draws it if it is a figure."""

    run: Callable[..., dict[str, Any]]
    format: Callable[..., str]
    draw: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str  # "table2", "figure1" ...: also the folder of its stored runs
    title: str
    several: bool = False  # about several models at once (Table 8)
    transformers_only: bool = False  # says nothing about word vectors
    fits_nli: bool = False  # a flow is fitted on NLI sentences

    @property
    def kind(self) -> str:
        """``"table"`` or ``"figure"``."""
        return self.name[:-1]

    @property
    def number(self) -> int:
        """Its number in the paper."""
        return int(self.name[-1])

    def load(self) -> Functions:
        """Import its functions: torch takes seconds, for which `--help` shall not wait."""
        from bertflow_lite.experiments import figure1, table1, table4, table5, table6, table8
        from bertflow_lite.experiments import tables2_3 as sts
        from bertflow_lite.figures.flows import draw_figure1
        from bertflow_lite.figures.spelling import draw_figure2

        return {
            "table1": Functions(table1.run_table1, table1.format_table1),
            "table2": Functions(sts.run_table2, sts.format_table2),
            "table3": Functions(sts.run_table3, sts.format_table3),
            "table4": Functions(table4.run_table4, table4.format_table4),
            "table5": Functions(table5.run_table5, table5.format_table5),
            "table6": Functions(table6.run_table6, table6.format_table6),
            "table8": Functions(table8.run_table8, table8.format_table8),
            "figure1": Functions(figure1.run_figure1, figure1.format_figure1, draw_figure1),
            "figure2": Functions(table6.run_figure2, table6.format_figure2, draw_figure2),
        }[self.name]


EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Experiment("table1", "word embeddings by word frequency", transformers_only=True),
        Experiment("table2", "seven STS sets, no NLI supervision", fits_nli=True),
        Experiment("table3", "seven STS sets, encoder fine-tuned on NLI",
                   transformers_only=True, fits_nli=True),
        Experiment("table4", "QNLI validation, AUC of the cosine", fits_nli=True),
        Experiment("table5", "calibration baselines on STS-B"),
        Experiment("table6", "similarity and edit distance"),
        Experiment("table8", "STS-B over several NLI models", several=True),
        Experiment("figure1", "embedding space and latent space"),
        Experiment("figure2", "similarity against edit distance"),
    )
}  # fmt: skip
"""The paper's tables and figures; its Table 7 lists settings (`flow_calibrator.PRESETS`)."""


def find_experiment(kind: str, number: int) -> Experiment:
    """Give ``EXPERIMENTS[kind + number]``; a ValueError names those that the paper has."""
    name = f"{kind}{number}"
    if name not in EXPERIMENTS:
        there = [one.removeprefix(kind) for one in EXPERIMENTS if one.startswith(kind)]
        extra = (
            " Table 7 lists the flow's settings: the preset 'paper'." if name == "table7" else ""
        )
        raise ValueError(f"there is no {kind} {number}; there are {', '.join(there)}.{extra}")
    return EXPERIMENTS[name]


Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        help="minilm, smollm2, mini-bert, glove, a folder, or a hub id; several in Table 8.",
    ),
]
MoreLayers = Annotated[
    list[str],
    typer.Option(help="A layer choice beside the experiment's own; may be repeated."),
]
SomeSets = Annotated[str | None, typer.Option(help="Some of the sets only, separated by commas.")]
NliSentences = Annotated[
    int | None,
    typer.Option(min=20, help="Fit flow (NLI) on this many NLI sentences only, drawn at random."),
]
Name = Annotated[str | None, typer.Option(help="Name of the stored run; default: the model's.")]
Store = Annotated[bool, typer.Option(help="Store the run as data/results/tableN/NAME.json.")]


@app.command("figure", help="Measure what one of the paper's figures shows, and draw it.")
@app.command("table", help="Run one of the paper's tables on a model, beside the paper's numbers.")
def run_one(
    context: typer.Context,
    number: Annotated[
        int, typer.Argument(help="As in the paper: tables 1, 2, 3, 4, 5, 6 or 8, figures 1 or 2.")
    ],
    model: Models,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Flows fitted, with seeds 0, 1, ...; default: 3, in a figure 1."),
    ] = None,
    layers: MoreLayers = [],  # noqa: B006 (typer copies it)
    data: SomeSets = None,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    nli_sentences: NliSentences = None,
    name: Name = None,
    store: Store = True,
    resume: common.Resume = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Write it: .json; a table .md, .tex; a figure .html (interactive)."),
    ] = None,
    as_json: common.AsJson = False,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Run one experiment; the command's name says whether it is a table or a figure."""
    options = dict(locals()) | {"strict": True}
    with clear_errors():
        kind = str(options.pop("context").info_name)
        options["seeds"] = seeds or (3 if kind == "table" else 1)
        _measure(kind, options.pop("number"), options)


@app.command(name="all")
def run_all(
    model: Models,
    seeds: common.Seeds = 3,
    layers: MoreLayers = [],  # noqa: B006
    data: SomeSets = None,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    nli_sentences: NliSentences = None,
    name: Name = None,
    store: Store = True,
    resume: common.Resume = True,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Run every table and figure that makes sense for a model, one after the other.

    Table 8, which is about several fine-tuned models, runs where several are given.
    """
    options = dict(locals()) | {"out": None, "as_json": False, "strict": False}
    failed = []
    for experiment in EXPERIMENTS.values():
        if experiment.several != (len(model) > 1):
            continue
        if experiment.transformers_only and model[0] == "glove":
            continue
        label = f"{experiment.kind} {experiment.number}"
        typer.echo(f"\n== {label}: {experiment.title}\n")
        try:
            with clear_errors():
                _measure(experiment.kind, experiment.number, options)
        except typer.Exit as ended:
            if ended.exit_code != 1:
                raise
            failed.append(label)
    if failed:
        typer.echo(f"\nnot done, for the reasons above: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _measure(kind: str, number: int, options: dict[str, Any]) -> None:
    """Run one experiment; `options` are the command's, ``strict`` where it must fit them all."""
    from bertflow_lite.experiments.runs import provenance, store_run
    from bertflow_lite.files import write_text

    experiment = find_experiment(kind, number)
    out: Path | None = options["out"]
    endings = [".json", ".html"] if kind == "figure" else [".json", ".md", ".tex"]
    if out is not None and out.suffix not in endings:
        raise ValueError(f"--out {out.name}: the ending must be {', '.join(endings)}.")
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no folder {out.parent}; make it first.")
    several = experiment.several
    if not several and len(options["model"]) > 1:
        raise ValueError(f"{kind} {number} is about one model; --model was given more than once.")
    if options["nli_sentences"] is not None and options["strict"] and not experiment.fits_nli:
        raise ValueError(f"{experiment.name} has no flow (NLI): --nli-sentences is not for it.")
    common.set_threads(options["threads"])
    functions = experiment.load()
    results, about, kept = (_run_several if several else _run_encoder)(experiment, options)
    how = provenance(**about, data=results["settings"]["data"])
    text = json.dumps({"how": how, "results": results}, indent=1, ensure_ascii=False)
    if out is not None:
        if out.suffix == ".json":
            write_text(out, text + "\n")
        elif functions.draw is not None:
            write_text(out, functions.draw(results).to_html())  # plotly.js inside: works offline
        else:
            write_text(out, functions.format(results, common.WRITERS[out.suffix]) + "\n")
    name = options["name"] or how["model"]
    if options["store"]:
        store_run(experiment.name, name, how, results)
    if kept is not None:
        kept.remove()
    if options["as_json"]:
        typer.echo(text)
        return
    typer.echo(f"{how['model']}: {experiment.title} ({how['seconds']:.0f} s)\n")
    typer.echo(functions.format(results))
    if options["store"]:
        typer.echo(f"\nstored as {experiment.name}/{name.replace('/', '--')}.json in data/results")


def _run_encoder(
    experiment: Experiment, options: dict[str, Any]
) -> tuple[Any, dict[str, Any], Any]:
    from bertflow_lite.experiments.scoring import RunOptions, open_kept

    (model,) = options["model"]
    chosen = RunOptions(
        seeds=options["seeds"],
        layers=options["layers"],
        data=common.split_names(options["data"]) if options["data"] is not None else None,
        nli_sentences=options["nli_sentences"] if experiment.fits_nli else None,
        download=options["download"],
        progress=options["progress"] and sys.stderr.isatty(),
    )
    encoder = common.open_encoder(
        model, options["max_length"], options["device"], None, options["download"]
    )
    kept = open_kept(experiment.name, encoder, chosen)
    if not options["resume"]:
        kept.remove()
    if kept.found:
        typer.echo(f"going on from {kept.found} finished parts of an earlier run", err=True)
    results = experiment.load().run(encoder, replace(chosen, keep=kept))
    about = {
        "model": _name(model),
        "fingerprint": encoder.fingerprint,
        "seed": list(range(options["seeds"])),
        "device": str(encoder.device),
        "max_length": getattr(encoder, "max_length", None),
        "seconds": round(kept.seconds, 1),
        "cpu_seconds": round(kept.cpu_seconds, 1),
    }
    return results, about, kept


def _run_several(
    experiment: Experiment, options: dict[str, Any]
) -> tuple[Any, dict[str, Any], None]:
    from bertflow_lite.devices import find_device

    started, worked = time.perf_counter(), time.process_time()
    results = experiment.load().run(
        options["model"],
        max_length=options["max_length"],
        device=options["device"],
        download=options["download"],
        progress=options["progress"] and sys.stderr.isatty(),
    )
    models = results["models"]
    about = {
        "model": options["name"] or ", ".join(map(_name, options["model"])),
        "fingerprint": ", ".join(one["fingerprint"] for one in models),
        "seed": [one["seed"] for one in models],
        "device": str(find_device(options["device"])),
        "max_length": options["max_length"],
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
    }
    return results, about, None


def _name(model: str) -> str:
    """Name a model: a folder by its last part, which says the same on every machine."""
    return Path(model).resolve().name if Path(model).is_dir() else model


@app.command()
def ablation(
    model: common.Model = "minilm",
    layers: common.LayerChoices = ["last2avg"],  # noqa: B006
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
    seeds: common.Seeds = 3,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    store: common.StoreAs = None,
    resume: common.Resume = True,
    as_json: common.AsJson = False,
    download: common.Download = False,
) -> None:
    """Change the flow part by part, on validation sets: paper against released code."""
    with clear_errors():
        from bertflow_lite import __version__
        from bertflow_lite.calibrators.flow_calibrator import PRESETS
        from bertflow_lite.datasets.sts import load_sts
        from bertflow_lite.experiments import ablation as runs
        from bertflow_lite.experiments.runs import KeptResults, no_keep, provenance
        from bertflow_lite.experiments.scoring import RunOptions, format_results

        sets = common.split_names(data) if data else list(runs.TEST_DATA if test else runs.DATA)
        wanted = ["whiten"] if test else common.split_names(parts) if parts else []
        variants = runs.find_variants(wanted, dropout=dropout)
        if test:
            variants = [variant for variant in variants if variant.part == "whiten"]
        splits = {name: load_sts(name, None if test else "dev", download=download) for name in sets}
        encoder = common.open_encoder(model, max_length, device, threads, download)
        settings: dict[str, Any] = {
            "layers": layers,
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

        def options(sets: Sequence[str]) -> RunOptions:
            keep = kept if resume else no_keep
            return RunOptions(seeds=seeds, data=sets, download=download, keep=keep)

        rows = runs.run_ablation(
            encoder,
            layers,
            variants,
            options(runs.DATA if test else sets),
            fit_on=fit_on,
            fit_rows=fit_rows,
        )
        results: dict[str, Any] = {"rows": rows}
        if test:
            results = {"widths": {label: runs.best_width(rows, label) for label in layers}}
            results["rows"] = runs.run_test(encoder, results["widths"], options(sets))
        how = provenance(
            model=model,
            fingerprint=encoder.fingerprint,
            seed=list(range(seeds)),
            device=str(getattr(encoder, "device", "cpu")),
            **settings,
            seconds=round(kept.seconds),
            cpu_seconds=round(kept.cpu_seconds),
        )
        show = common.deliver("ablation", how, results, store, as_json)
        kept.remove()
        if show and test:
            typer.echo(format_results(results["rows"], "wmean", note=", test", average=True))
        elif show:
            typer.echo(runs.format_effects(runs.summarize(rows)))


REAL_SETS = "stsb,sick-r,sts12,sts13,sts14,sts15,sts16"
WHAT = ("encoders", "words", "pretraining", "rarity", "weights", "influence", "overlap", "parts")


@app.command()
def today(
    what: Annotated[
        str,
        typer.Option(
            help="prompts: a language model, asked by a prompt or given the text twice. static: a "
            "vector for each token, as Model2Vec makes them, beside the encoder it comes from."
        ),
    ],
    model: common.Model = "smollm2",
    layers: common.LayerChoices = ["last"],  # noqa: B006
    data: common.Sets = REAL_SETS,
    calibrate: common.Calibrators = "none,sn,whiten,whiten:128,flow",
    seed: common.Seed = 0,
    some: Annotated[
        int | None, typer.Option(min=20, help="This many pairs of each set only, drawn at random.")
    ] = None,
    max_length: common.MaxLength = 256,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16; auto is bfloat16 on a GPU that has it.")
    ] = "auto",
    device: common.Device = None,
    threads: common.Threads = None,
    store: common.StoreAs = None,
    download: common.Download = False,
) -> None:
    """Score what people do today instead of calibrating: prompts, and static vectors."""
    with clear_errors():
        from bertflow_lite import __version__
        from bertflow_lite.datasets.sts import load_sts
        from bertflow_lite.encoders.transformer import Encoder, load_encoder
        from bertflow_lite.experiments import today as runs
        from bertflow_lite.experiments.runs import KeptResults, provenance

        if what not in ("prompts", "static"):
            raise ValueError(f"--what is {what!r}; it must be prompts or static.")
        common.set_threads(threads)
        encoder = load_encoder(
            model, max_length=max_length, precision=precision, device=device, download=download
        )
        if not isinstance(encoder, Encoder):
            raise ValueError(f"{model!r} has no tokens that read each other; give a transformer.")
        calibrators = common.split_names(calibrate)
        settings: dict[str, Any] = {
            "what": what,
            "layers": layers if what == "prompts" else ["last"],
            "calibrators": calibrators,
            "max_length": max_length,
            "precision": str(encoder.autocast or "float32"),
            "pairs": some,
            "fit_on": "the different sentences of the scored pairs",
            "intervals": f"{runs.RESAMPLES} resamples of pairs, aggregation all",
        }
        if what == "prompts":
            settings["ways"] = {name: vars(way) for name, way in runs.WAYS.items()}
        key = {"encoder": encoder.fingerprint, "seed": seed, "version": __version__}
        kept = KeptResults("today", settings | key)
        static = runs.static_encoders(encoder) if what == "static" else {}

        def measure(pairs: Any) -> list[dict[str, Any]]:
            texts = list(dict.fromkeys(pairs.sentences))
            if what == "static":
                vectors = runs.encode_static(encoder, static, texts)
            else:
                vectors = runs.encode_ways(encoder, texts, layers, runs.WAYS)
            return runs.compare(pairs, vectors, calibrators, seed=seed)

        names = common.split_names(data)
        sets = [runs.draw(load_sts(name, download=download), some) for name in names]
        rows = []
        for one in sets:
            rows += kept(f"{one.name} {one.fingerprint}", partial(measure, one))
        about = provenance(
            model=_name(model),
            fingerprint=encoder.fingerprint,
            seed=seed,
            device=str(encoder.device),
            **settings,
            data={pairs.name: pairs.fingerprint for pairs in sets},
            seconds=round(kept.seconds),
            cpu_seconds=round(kept.cpu_seconds),
        )
        common.deliver("today", about, rows, store, as_json=False)
        kept.remove()
        shown = [{key: _short(value) for key, value in row.items()} for row in rows]
        typer.echo(tabulate(shown, headers="keys", disable_numparse=True))


@app.command()
def controls(
    what: Annotated[
        str,
        typer.Option(
            help="encoders: scores of a model. words: of encoders that count words. pretraining: "
            "what a model adds to a random one. rarity: how far TF-IDF explains it. weights: what "
            "weights by rarity give instead of a calibrator. influence: what each token weighs. "
            "overlap: where word overlap is balanced. parts: words regressed out, halves, "
            "spectrum, holes and frequency, on one set."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="random-bert-WIDTHxBLOCKS, or any other model.")
    ] = "random-bert-384x6",
    layers: common.LayerChoices = ["last"],  # noqa: B006
    data: common.Sets = REAL_SETS,
    calibrate: common.Calibrators = "none,sn,natsv:1,whiten,whiten:128,flow",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: weights and flows.")] = 3,
    control: Annotated[
        str, typer.Option(help="pretraining: the model that has learned nothing.")
    ] = "random-bert-384x6",
    control_layers: Annotated[str, typer.Option(help="pretraining: its layer choice.")] = "1",
    control_seeds: Annotated[int, typer.Option(min=1, help="pretraining: its seeds.")] = 5,
    corpus: Annotated[
        Path | None,
        typer.Option(help="weights: a text (.txt, .xz) to count frequencies in, for SIF."),
    ] = None,
    permute: Annotated[
        bool, typer.Option(help="weights: exchange the words of the vocabulary at random.")
    ] = False,
    resume: common.Resume = True,
    device: common.Device = None,
    threads: common.Threads = None,
    store: common.StoreAs = None,
    download: common.Download = False,
) -> None:
    """Compare with encoders that have learned nothing: random weights, and counted words."""
    with clear_errors():
        from bertflow_lite.datasets.sts import load_sts
        from bertflow_lite.devices import find_device
        from bertflow_lite.encoders.transformer import Encoder, load_encoder
        from bertflow_lite.experiments.controls import overlap, parts, runs, weights
        from bertflow_lite.experiments.runs import provenance
        from bertflow_lite.experiments.scoring import sts_target

        if what not in WHAT:
            raise ValueError(f"--what is {what!r}; it must be one of {', '.join(WHAT)}.")
        common.set_threads(threads)
        system = runs.System(model, tuple(layers), seeds)
        if what == "weights":
            _run_weights(
                system,
                common.split_names(data),
                common.split_names(calibrate),
                store,
                corpus=corpus,
                permute=permute,
                resume=resume,
                device=device,
                download=download,
            )
            return
        targets = [sts_target(name, download=download) for name in common.split_names(data)]
        calibrators = common.split_names(calibrate)
        progress = sys.stderr.isatty()
        options: dict[str, Any] = {"device": device, "download": download, "progress": progress}
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
            settings |= {"control": vars(other), "aggregation": "all"}
            results = runs.run_pretraining(system, other, targets, calibrators, **options)
        elif what == "rarity":
            results = runs.run_rarity(system, targets, calibrators, **options)
        elif what == "influence":
            encoder = load_encoder(model, device=device, download=download)
            if not isinstance(encoder, Encoder):
                raise ValueError(f"{model!r} has no tokens to leave out; give a transformer.")
            fingerprint = encoder.fingerprint
            results = weights.run_influence(encoder, layers, targets[0], calibrators)
        elif what == "parts":
            encoder = load_encoder(model, device=device, download=download, cache=False)
            fingerprint, pairs, others = encoder.fingerprint, targets[0].pairs, []
            if pairs.name in ("stsb", "sick-r"):
                others = load_sts(pairs.name, "train", download=download).sentences
            results = parts.run_parts(encoder, layers, pairs, others, seeds=seeds)
            settings = {"layers": layers, "intervals": "1000 resamples of pairs, aggregation all"}
        else:
            results = overlap.run_overlap(system, targets, calibrators, **options)
        if what in ("pretraining", "rarity", "overlap"):
            fingerprint = runs.find_fingerprints(system, device=device, download=download)
        how = provenance(
            model=model,
            fingerprint=fingerprint,
            seed=list(range(seeds)),
            device=str(find_device(device)),
            **settings,
            max_length=64,
            fit_on="the different sentences of the scored split" if what == "parts" else "target",
            data={target.pairs.name: target.pairs.fingerprint for target in targets},
            cpu_seconds=round(time.process_time()),
        )
        common.deliver("controls", how, results, store, as_json=False)
        for title, part in (results if isinstance(results, dict) else {what: results}).items():
            rows = [{key: _short(value) for key, value in row.items()} for row in part]
            typer.echo(f"\n{title}")
            typer.echo(tabulate(rows, headers="keys", disable_numparse=True))


def _run_weights(
    system: Any,
    data: Sequence[str],
    calibrators: Sequence[str],
    store: str | None,
    *,
    corpus: Path | None,
    permute: bool,
    resume: bool,
    device: str | None,
    download: bool,
) -> None:
    """Measure weights by rarity; what is done is stored after each set."""
    from bertflow_lite import __version__
    from bertflow_lite.datasets.sts import load_sts
    from bertflow_lite.devices import find_device
    from bertflow_lite.experiments.controls import weights
    from bertflow_lite.experiments.runs import KeptResults, no_keep, provenance

    if corpus is None:
        raise ValueError("--what weights needs --corpus, a text to count word frequencies in.")
    text, counted = weights.read_text(corpus)
    name = _name(system.model)
    settings: dict[str, Any] = {
        "layers": list(system.layers),
        "weights": list(weights.WEIGHTS),
        "calibrators": list(calibrators),
        "sif": {"text": corpus.name, "sentences": len(text), "fingerprint": counted},
        "permuted": permute,
        "max_length": 64,
        "fit_on": "the different sentences of the scored split",
        "intervals": f"{weights.RESAMPLES} resamples of pairs, aggregation all",
    }
    kept = KeptResults(
        "weights", settings | {"model": name, "seeds": system.seeds, "version": __version__}
    )
    if not resume:
        kept.remove()
    found = weights.run_weights(
        system,
        data,
        calibrators,
        text,
        permute=permute,
        device=device,
        download=download,
        keep=kept if resume else no_keep,
    )
    results: dict[str, Any] = {}
    for done, (fingerprint, results) in enumerate(found, start=1):
        sets = {one: load_sts(one, download=download).fingerprint for one in data[:done]}
        how = provenance(
            model=name,
            fingerprint=fingerprint,
            seed=list(range(system.seeds)),
            device=str(find_device(device)),
            **settings,
            data=sets,
            seconds=round(kept.seconds),
            cpu_seconds=round(kept.cpu_seconds),
        )
        common.deliver("controls", how, results, store, as_json=False)
    if set(data) >= set(REAL_SETS.split(",")):  # fewer may be the beginning of all
        kept.remove()
    last = "mean" if len(data) > 1 else results["rows"][0]["data"]
    rows = [
        {"layers": row["layers"], "difference": row["what"], last: _short(row["difference"])}
        for row in results["differences"]
        if row["data"] == last
    ]
    typer.echo(tabulate(rows, headers="keys", disable_numparse=True))


def _short(value: Any) -> str:
    """Write a cell: a list of scores as its mean and spread, or as estimate [low, high]."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(f"{one:.1f}" for one in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
