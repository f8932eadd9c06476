"""Commands for the choice of a preset: ablation."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any

import typer

from bertflow_lite.cli.common import app, clear_errors, split_names

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
        from bertflow_lite.calibrate import PRESETS
        from bertflow_lite.datasets import load_sts
        from bertflow_lite.encode import load_encoder
        from bertflow_lite.experiments.ablation import DATA, find_variants, run_ablation
        from bertflow_lite.experiments.ablation_summary import (
            average_models,
            best_width,
            format_effects,
            format_models,
            format_test,
            summarize,
        )
        from bertflow_lite.experiments.final_scores import TEST_DATA, run_test
        from bertflow_lite.experiments.partial_runs import KeptResults, no_keep
        from bertflow_lite.runs import load_run, provenance, store_run

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
