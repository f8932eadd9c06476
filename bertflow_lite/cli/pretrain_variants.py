"""The command that takes away one suspect after another: pretrain-variants."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors


@app.command()
def pretrain_variants(
    corpus: Annotated[
        Path,
        typer.Option(help="Text, one paragraph a line: .txt, .gz or .xz; or wikipedia, the hub's."),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Train each variant so far.")] = 500,
    only: Annotated[
        list[str] | None, typer.Option(help="Name of a variant; repeat. Default: all.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Store as data/results/pretraining/STORE.json.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Set whose validation pairs are scored; mini-sts where it is not.")
    ] = "stsb",
    config: Annotated[str, typer.Option(help="mini (4 blocks, 256-d) or tiny (seconds).")] = "mini",
    each: Annotated[
        int, typer.Option(min=1, help="Occurrences of each piece where all are equally frequent.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and masks.")] = 1,
    bf16: Annotated[
        bool | None,
        typer.Option(
            "--bf16/--no-bf16", help="Compute in bfloat16; default: where the hardware does."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing data set or text.")] = False,
    progress: Annotated[bool, typer.Option(help="Progress bar (on stderr).")] = True,
) -> None:
    """Train the first steps again with one thing changed: no bias, untied, equal frequencies ...

    Each finished variant is kept in the cache: stopped, the same command goes on from there, and
    several processes can each do some (--only) before one command stores them all.  With --only,
    --store stores those that are named.
    """
    with clear_errors():
        import torch

        from bertflow_lite import __version__
        from bertflow_lite.experiments.partial_runs import KeptResults
        from bertflow_lite.experiments.pretraining_runs import load_validation_pairs
        from bertflow_lite.models import find_device, load_model
        from bertflow_lite.pretraining.corpus import pack_corpus
        from bertflow_lite.pretraining.material import prepare
        from bertflow_lite.pretraining.precision import choose_bf16
        from bertflow_lite.pretraining.recipe import RECIPES
        from bertflow_lite.pretraining.training_run import HELD_OUT
        from bertflow_lite.pretraining.variants import FORMAT, STEPS, VARIANTS, train_variant
        from bertflow_lite.pretraining.wikipedia import find_corpus
        from bertflow_lite.runs import provenance, store_run

        if threads is not None:
            torch.set_num_threads(threads)
        if config not in RECIPES:
            raise ValueError(f"there is no config {config!r}; there are {', '.join(RECIPES)}.")
        names = [variant.name for variant in VARIANTS]
        for name in only or []:
            if name not in names:
                raise ValueError(f"there is no variant {name!r}; there are {', '.join(names)}.")
        recipe = RECIPES[config]
        show = progress and sys.stderr.isatty()
        tokenizer = load_model("minilm", device="cpu").tokenizer
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, tokenizer, length=recipe.length, progress=show)
        pairs = load_validation_pairs(data, download=download)
        held_out = min(HELD_OUT, len(packed.rows) // 10)
        material = prepare(packed, tokenizer, pairs, held_out=held_out, least_pairs=1)
        place = find_device(device)
        bf16 = choose_bf16(bf16, place)
        at = sorted({step for step in STEPS if step < steps} | {steps})
        settings: dict[str, Any] = {
            "recipe": recipe.as_dict(), "steps": at, "each": each, "of_tokens": 6e7,
            "corpus": packed.fingerprint, "data": pairs.fingerprint,
            "set": pairs.name if pairs.name == "mini-sts" else f"{pairs.name}-{pairs.split}",
            "n_words": len(material.words), "bf16": bf16, "seed": seed, "device": str(place),
        }  # fmt: skip
        found: list[dict[str, Any]] = []
        kept: list[KeptResults] = []
        try:
            for variant in VARIANTS:
                if only and variant.name not in only:
                    continue
                what = {**settings, "variant": dataclasses.asdict(variant), "made_by": __version__}
                what["format"] = FORMAT
                kept.append(KeptResults("pretrain-variant", what))

                def train(variant: Any = variant) -> Any:
                    return train_variant(
                        packed, tokenizer, variant, material, recipe=recipe, steps=at, each=each,
                        seed=seed, device=place, bf16=bf16, progress=show,
                    )  # fmt: skip

                found.append(kept[-1](variant.name, train))
        except KeyboardInterrupt:
            typer.echo("stopped; finished variants are in the cache", err=True)
            raise typer.Exit(130) from None
        if store is not None:
            how = provenance(
                model=f"pretrain:{config}", fingerprint="trained from scratch", seed=seed,
                device=str(place), corpus=packed.fingerprint, data={pairs.name: pairs.fingerprint},
                max_length=64,
            )  # fmt: skip
            store_run("pretraining", store, how, {"settings": settings, "variants": found})
            for one in kept:
                one.remove()
        typer.echo(tabulate(*_summary(found), disable_numparse=True))


def _summary(found: list[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Lay out the last snapshot of each variant."""
    head = ["variant", "step", "loss", "norm ~ log p", "output norm ~ log p", "words cos"]
    rows = []
    for one in found:
        last = one["snapshots"][-1]
        numbers = [last["held_out_loss"], last["norm"]["input"], last["norm"]["output"]]
        numbers.append(last["words_cosine"])
        scores = [f"{last['sts'][name]:.1f}" for name in last["sts"]]
        rows.append([one["name"], str(last["step"]), *(f"{x:.3f}" for x in numbers), *scores])
    return rows, [*head, *found[0]["snapshots"][-1]["sts"]]
