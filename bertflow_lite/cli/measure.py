"""Commands that measure a model: info, sts, geometry, retrieval, pmi."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli import common
from bertflow_lite.cli.common import app, clear_errors


@app.command(rich_help_panel=common.MEASURE)
@clear_errors()
def info(as_json: common.AsJson = False) -> None:
    """Show models and data sets: where each was found, or how to get it."""
    from bertflow_lite import __version__
    from bertflow_lite.datasets.catalog import list_datasets
    from bertflow_lite.devices import find_device
    from bertflow_lite.encoders.models import list_models
    from bertflow_lite.files import cache_dir, tidy_path

    models, sets = list_models(), list_datasets()
    cache, device = tidy_path(cache_dir()), str(find_device())
    if as_json:
        content = {
            "version": __version__,
            "device": device,
            "cache": cache,
            "models": [vars(m) for m in models],
            "data": [{**vars(d), "found": d.found} for d in sets],
        }
        typer.echo(json.dumps(content, indent=1, default=list))
        return
    typer.echo(f"bertflow-lite {__version__} · device {device} · cache {cache}\n")
    here = {True: "yes", False: "no"}
    lines: list[list[Any]] = [[m.name, m.description, here[m.found], m.where] for m in models]
    typer.echo(tabulate(lines, ["model", "what it is", "here", "where, or how to get it"]))
    typer.echo("Also: any transformers folder, or a hub id with --download.\n")
    lines = [[d.name, d.pairs, here[d.found], d.where] for d in sets]
    typer.echo(tabulate(lines, ["data", "pairs", "here", "where, or how to get it"]))


@app.command(rich_help_panel=common.MEASURE)
def sts(
    model: common.Model,
    layers: common.LayerChoices = ["last2avg"],  # noqa: B006 (typer copies it)
    data: common.Sets = "mini-sts",
    calibrate: common.Calibrators = "none,sn,whiten,flow",
    split: Annotated[str | None, typer.Option(help="Split to score; default: test.")] = None,
    fit_on: Annotated[
        str, typer.Option(help="Sentences to fit on: target (all splits), train, test.")
    ] = "target",
    seeds: common.Seeds = 1,
    aggregation: common.Aggregation = "all",
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the table: .json, .csv, .md or .tex.")
    ] = None,
    as_json: common.AsJson = False,
    store: common.StoreAs = None,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Score an encoder on STS sets, raw and calibrated."""
    with clear_errors():
        import pandas as pd

        from bertflow_lite.datasets.sts import load_sts
        from bertflow_lite.experiments.runs import provenance
        from bertflow_lite.experiments.scoring import format_results, run_sts
        from bertflow_lite.files import write_text

        if fit_on not in ("target", "train", "test"):
            raise ValueError(f"--fit-on is {fit_on!r}; it must be target, train or test.")
        if out is not None and out.suffix not in common.WRITERS:
            raise ValueError(f"--out {out.name}: the ending must be {', '.join(common.WRITERS)}.")
        if aggregation not in ("all", "mean", "wmean"):
            raise ValueError(f"--aggregation is {aggregation!r}; it must be all, mean or wmean.")
        if out is not None:
            common.check_place(out)
        names, calibrators = common.split_names(data), common.split_names(calibrate)
        sets = [load_sts(name, split, download=download) for name in names]  # fail before the work
        encoder = common.open_encoder(model, max_length, device, threads, download)
        rows = list(
            run_sts(
                encoder,
                names,
                layers,
                calibrators,
                split=split,
                fit_on=fit_on,  # type: ignore[arg-type]
                seeds=seeds,
                progress=progress and sys.stderr.isatty(),
                download=download,
            )
        )
        how = provenance(
            model=model,
            fingerprint=encoder.fingerprint,
            seed=list(range(seeds)),
            device=str(getattr(encoder, "device", "cpu")),
            layers=layers,
            calibrators=calibrators,
            max_length=max_length,
            fit_on=fit_on,
            data={pairs.name: pairs.fingerprint for pairs in sets},
        )
        if out is not None:
            if out.suffix == ".json":
                text = json.dumps({"how": how, "results": rows}, indent=1) + "\n"
            elif out.suffix == ".csv":
                text = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
            else:
                text = format_results(rows, aggregation, common.WRITERS[out.suffix]) + "\n"
            write_text(out, text)
        if not common.deliver("sts", how, rows, store, as_json):
            return
        typer.echo(f"{model}, {encoder.dim}-d; calibrators fitted on: {fit_on}\n")
        typer.echo(format_results(rows, aggregation))


@app.command(rich_help_panel=common.MEASURE)
def geometry(
    model: common.Model,
    device: common.Device = None,
    as_json: common.AsJson = False,
    store: common.StoreAs = None,
    download: common.Download = False,
) -> None:
    """Measure word and sentence spaces: Table 1, isotropy by layer, before and after."""
    with clear_errors():
        from bertflow_lite.encoders.transformer import Encoder, load_encoder
        from bertflow_lite.experiments.geometry import run_geometry
        from bertflow_lite.experiments.runs import provenance
        from bertflow_lite.experiments.table1 import format_table1

        encoder = load_encoder(model, device=device, download=download)
        if not isinstance(encoder, Encoder):
            raise ValueError(f"{model!r} has no layers to measure; give a transformer.")
        results = run_geometry(encoder, progress=sys.stderr.isatty())
        how = provenance(
            model=model,
            fingerprint=encoder.fingerprint,
            seed=results["settings"]["random_state"],
            device=str(encoder.device),
            max_length=encoder.max_length,
            data=results["settings"]["sets"],
        )
        if not common.deliver("geometry", how, results, store, as_json):
            return
        typer.echo(format_table1(results["words"]))


@app.command(rich_help_panel=common.MEASURE)
def retrieval(
    model: common.Model,
    layers: common.LayerChoices = ["last"],  # noqa: B006
    calibrate: common.Calibrators = "none,sn,whiten,whiten:128,flow:recommended",
    first: Annotated[
        int | None, typer.Option(min=20, help="Take only the first so many pairs; default: all.")
    ] = None,
    weigh: Annotated[bool, typer.Option(help="Also with tokens weighed by rarity (idf).")] = True,
    seed: common.Seed = 0,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    as_json: common.AsJson = False,
    store: common.StoreAs = None,
    download: common.Download = False,
) -> None:
    """Search QNLI's sentences with its questions: calibrated, with BM25, in smaller vectors."""
    with clear_errors():
        from bertflow_lite.encoders.transformer import Encoder
        from bertflow_lite.experiments import search as runs
        from bertflow_lite.experiments.runs import provenance

        started, worked = time.perf_counter(), time.process_time()
        encoder = common.open_encoder(model, max_length, device, threads, download)
        if not isinstance(encoder, Encoder):
            raise ValueError(f"{model!r} has no layers to search with; give a transformer.")
        results = runs.run_retrieval(
            encoder,
            layers,
            common.split_names(calibrate),
            first=first,
            weigh=weigh,
            seed=seed,
            download=download,
            progress=sys.stderr.isatty(),
        )
        how = provenance(
            model=model,
            fingerprint=encoder.fingerprint,
            seed=seed,
            device=str(encoder.device),
            max_length=max_length,
            **results["settings"],
            seconds=round(time.perf_counter() - started),
            cpu_seconds=round(time.process_time() - worked),
        )
        if common.deliver("retrieval", how, results, store, as_json):
            typer.echo(runs.format_retrieval(results))


@app.command(rich_help_panel=common.MEASURE)
def pmi(
    model: Annotated[
        str,
        typer.Option(help="toy (the exact toy world), smollm2, mini-bert, a folder, or a hub id."),
    ] = "toy",
    contexts: Annotated[int, typer.Option(min=4, help="Contexts of a model to probe.")] = 3000,
    seed: common.Seed = 0,
    device: common.Device = None,
    as_json: common.AsJson = False,
    store: common.StoreAs = None,
    download: common.Download = False,
) -> None:
    """Show Equations 1 to 3 of the paper in numbers: in an exact toy world or a language model."""
    with clear_errors():
        from bertflow_lite.devices import find_device
        from bertflow_lite.experiments.pmi.probe import run_probe
        from bertflow_lite.experiments.pmi.toy_world import run_toy
        from bertflow_lite.experiments.runs import provenance

        toy = model == "toy"
        where = "cpu" if toy else str(find_device(device))
        if toy:
            results = run_toy(seed=seed)
            shares = {"trained": results["fit"]["shares"]}
        else:
            options: dict[str, Any] = {"seed": seed, "device": where, "download": download}
            results = run_probe(model, n_contexts=contexts, **options)
            shares = {name: row["shares"] for name, row in results["regression"].items()}
        how = provenance(
            model=model,
            fingerprint="" if toy else results["model"]["fingerprint"],
            seed=seed,
            device=where,
            data={} if toy else results["contexts"]["source"],
        )
        if not common.deliver("pmi", how, results, store, as_json):
            return
        terms = list(next(iter(shares.values())))
        lines = [[name, *(row[term] for term in terms)] for name, row in shares.items()]
        typer.echo(tabulate(lines, ["share of the variance of h.w", *terms], floatfmt=".3f"))
