"""Commands for the paper's tables and figures: table, figure, all."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertflow_lite.cli.common import WRITERS, app, clear_errors, split_names

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
    from bertflow_lite.experiments.paper_tables import EXPERIMENTS

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

    from bertflow_lite.experiments.paper_tables import find_experiment
    from bertflow_lite.runs import store_run, write_text

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
    from bertflow_lite.encode import load_encoder
    from bertflow_lite.experiments.paper_tables import open_kept
    from bertflow_lite.runs import provenance

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

    from bertflow_lite.models import find_device
    from bertflow_lite.runs import provenance

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
