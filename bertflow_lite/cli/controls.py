"""The command that measures encoders that have learned nothing: controls."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors, split_names

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

        from bertflow_lite.encode import Encoder, load_encoder
        from bertflow_lite.experiments import control_runs as runs
        from bertflow_lite.experiments import overlap_runs, weight_runs
        from bertflow_lite.experiments.calibrated_similarities import sts_target
        from bertflow_lite.models import find_device
        from bertflow_lite.random_models import is_random_name
        from bertflow_lite.runs import provenance, store_run

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
