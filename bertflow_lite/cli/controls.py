"""The command that measures encoders that have learned nothing: controls."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors, split_names

REAL_SETS = "stsb,sick-r,sts12,sts13,sts14,sts15,sts16"


@app.command()
def controls(
    what: Annotated[str, typer.Option(help="encoders, words, pretraining, rarity, overlap.")],
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
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...: weights and flows.")] = 5,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Store the run as data/results/controls/STORE.json.")
    ] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing model or data set.")] = False,
) -> None:
    """Compare with encoders that have learned nothing: random weights, and counted words."""
    with clear_errors():
        import numpy as np
        import torch

        from bertflow_lite.calibrated_similarities import sts_target
        from bertflow_lite.control_runs import encoder_scores, seeded_similarities
        from bertflow_lite.models import find_device
        from bertflow_lite.runs import provenance, store_run

        if threads is not None:
            torch.set_num_threads(threads)
        targets = [sts_target(name, download=download) for name in split_names(data)]
        calibrators = split_names(calibrate)
        prints, by_seed = [], []
        for fingerprint, found in seeded_similarities(
            model,
            targets,
            layers,
            calibrators,
            seeds,
            device=device,
            download=download,
            progress=sys.stderr.isatty(),
        ):
            prints.append(fingerprint)
            by_seed.append(found)
        rows = encoder_scores(targets, by_seed)
        how = provenance(
            model=model,
            fingerprint=", ".join(dict.fromkeys(prints)),
            seed=list(range(seeds)),
            device=str(find_device(device)),
            layers=layers,
            calibrators=calibrators,
            max_length=64,
            fit_on="target",
            data={target.pairs.name: target.pairs.fingerprint for target in targets},
        )
        if store is not None:
            store_run("controls", store, how, rows)
        lines = [
            [row["data"], row["layers"], row["calibrator"]]
            + [f"{np.mean(row[k]):.2f} ± {np.std(row[k]):.2f}" for k in ("all", "wmean")]
            for row in rows
        ]
        typer.echo(tabulate(lines, ["data", "layers", "calibrator", "all", "wmean"]))
