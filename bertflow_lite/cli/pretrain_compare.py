"""The command that compares recipes of pre-training: pretrain-compare."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors


@app.command()
def pretrain_compare(
    corpus: Annotated[
        Path,
        typer.Option(help="Text, one paragraph a line: .txt, .gz or .xz; or wikipedia, the hub's."),
    ],
    tokens: Annotated[float, typer.Option(min=1, help="Word pieces for each recipe.")] = 5e5,
    store: Annotated[
        str | None, typer.Option(help="Store as data/results/pretraining/STORE.json.")
    ] = None,
    config: Annotated[str, typer.Option(help="Shape: mini (4 blocks, 256-d) or tiny.")] = "mini",
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and masks.")] = 0,
    bf16: Annotated[
        bool | None,
        typer.Option(
            "--bf16/--no-bf16", help="Compute in bfloat16; default: where the hardware does."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch Wikipedia from the hub.")] = False,
    progress: Annotated[
        bool, typer.Option(help="Progress on stderr: a bar; lines where that is no terminal.")
    ] = True,
) -> None:
    """Train a small BERT for a short while by several recipes, to see what each change does.

    Each finished recipe is kept in the cache: stopped, the same command goes on from there.
    """
    with clear_errors():
        import torch

        from bertflow_lite import __version__
        from bertflow_lite.experiments.partial_runs import KeptResults
        from bertflow_lite.models import find_device, load_model
        from bertflow_lite.pretraining.compare import (
            ASIDES,
            FORMAT,
            LADDER,
            compare_recipes,
            unigram_loss,
        )
        from bertflow_lite.pretraining.corpus import pack_corpus
        from bertflow_lite.pretraining.precision import choose_bf16
        from bertflow_lite.pretraining.recipe import RECIPES
        from bertflow_lite.pretraining.training_run import HELD_OUT
        from bertflow_lite.pretraining.wikipedia import find_corpus
        from bertflow_lite.runs import provenance, store_run

        if threads is not None:
            torch.set_num_threads(threads)
        if config not in RECIPES:
            raise ValueError(f"there is no config {config!r}; there are {', '.join(RECIPES)}.")
        shape = {
            name: getattr(RECIPES[config], name) for name in ("blocks", "width", "heads", "length")
        }
        show = progress and sys.stderr.isatty()
        loaded = load_model("minilm", device="cpu")
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, loaded.tokenizer, length=shape["length"], progress=show)
        place = find_device(device)
        bf16 = choose_bf16(bf16, place)
        settings: dict[str, Any] = {
            "tokens": tokens, "config": config, "shape": shape, "corpus": packed.fingerprint,
            "bf16": bf16, "seed": seed, "device": str(place),
        }  # fmt: skip
        # Numbers of another version, or of another meaning, are not used again.
        kept = KeptResults(
            "pretrain-compare", {**settings, "format": FORMAT, "version": __version__}
        )
        found = []
        try:
            for trial in (*LADDER, *ASIDES):
                options: dict[str, Any] = {
                    "tokens": tokens, "shape": shape, "seed": seed, "device": place, "bf16": bf16,
                    "progress": show,
                }  # fmt: skip
                key = f"{trial.name} {sorted(dataclasses.asdict(trial.recipe).items())}"

                def train(trial: Any = trial, options: dict[str, Any] = options) -> Any:
                    return compare_recipes(packed, loaded.tokenizer, trial, **options)

                found.append(kept(key, train))
                if progress and not show:
                    loss, seconds = found[-1]["curve"][-1][2], found[-1]["seconds"]
                    typer.echo(f"{trial.name}: held-out loss {loss:.3f}, {seconds:.0f} s", err=True)
        except KeyboardInterrupt:
            typer.echo("stopped; finished recipes are in the cache", err=True)
            raise typer.Exit(130) from None
        held_out = min(HELD_OUT, len(packed.rows) // 10)
        base = {**dataclasses.asdict(LADDER[0].recipe), **shape}
        unigram = unigram_loss(packed, held_out)
        results = {
            "settings": {**settings, "base": base, "unigram_loss": round(unigram, 4)},
            "ladder": len(LADDER),
            "recipes": found,
        }
        if store is not None:
            how = provenance(
                model=f"pretrain:{config}", fingerprint="trained from scratch", seed=seed,
                device=str(place), corpus=packed.fingerprint,
            )  # fmt: skip
            store_run("pretraining", store, how, results)
            kept.remove()
        rows = [[one["name"], *(loss for _, _, loss in one["curve"])] for one in found]
        head = ["recipe", *(f"{seen:,}" for _, seen, _ in found[0]["curve"])]
        typer.echo(tabulate(rows, head, floatfmt=".3f"))
        typer.echo(f"held-out loss in nats; unigram {unigram:.3f}")
