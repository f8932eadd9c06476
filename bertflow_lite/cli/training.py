"""The commands that train: nli fine-tunes an encoder; pretrain and its kin train a BERT."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli import common
from bertflow_lite.cli.common import app, clear_errors

Bf16 = Annotated[
    bool | None,
    typer.Option("--bf16/--no-bf16", help="Compute in bfloat16; default: where the hardware does."),
]
Config = Annotated[str, typer.Option(help="mini (4 blocks, 256-d) or tiny (seconds).")]
Corpus = Annotated[
    Path,
    typer.Option(help="Text, one paragraph a line: .txt, .gz or .xz; or wikipedia, the hub's."),
]
Validation = Annotated[
    str, typer.Option(help="Set whose validation pairs are scored; mini-sts where it is not.")
]


@contextlib.contextmanager
def _at_work(threads: int | None, kept: str) -> Iterator[None]:
    """Set the threads; when stopped, say what is kept."""
    with clear_errors():
        common.set_threads(threads)
        try:
            yield
        except KeyboardInterrupt as stop:
            typer.echo(f"{str(stop) or 'stopped'}; {kept}", err=True)
            raise typer.Exit(130) from None


def _options(given: dict[str, Any], *own: str) -> dict[str, Any]:
    """Give what a command passes on: all but its own options; bars only where somebody looks."""
    passed = {name: value for name, value in given.items() if name not in own}
    return passed | {"progress": given["progress"] and sys.stderr.isatty()}


@app.command()
def nli(
    model: Annotated[
        str, typer.Option(help="minilm, mini-bert, random-minilm, a folder, or a hub id.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to make: a transformers model.")],
    keep_blocks: Annotated[
        int | None, typer.Option(min=1, help="Cut the encoder to its first blocks before.")
    ] = None,
    seed: common.Seed = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate of AdamW.")] = 2e-5,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs in a batch.")] = 16,
    validation: Annotated[int, typer.Option(min=0, help="Pairs held out for accuracy.")] = 2000,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many pairs only, drawn at random.")
    ] = None,
    sts: Annotated[
        str, typer.Option(help="Set to score before and after: stsb (validation), mini-sts.")
    ] = "stsb",
    max_length: common.MaxLength = 64,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 500,
    overwrite: common.Overwrite = False,
    device: common.Device = None,
    threads: common.Threads = None,
    as_json: common.AsJson = False,
    store: common.StoreAs = None,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Fine-tune an encoder on NLI pairs as Sentence-BERT does (Table 3).

    Stopped by Ctrl-C or SIGTERM, it keeps a checkpoint; the same command then goes on from there.
    The paper's setting: --model bert-base-uncased --download, with all of SNLI and MNLI.
    """
    options = _options(locals(), "threads", "as_json", "store")
    with _at_work(threads, "the same command goes on from the last checkpoint"):
        from bertflow_lite.devices import find_device
        from bertflow_lite.experiments.nli_fine_tune import run_nli
        from bertflow_lite.experiments.runs import provenance

        results = run_nli(**options)
        record = results["record"]
        how = provenance(
            model=record["base"],
            fingerprint=record["base_fingerprint"],
            seed=seed,
            device=str(find_device(device)),
            max_length=max_length,
            data=results["data"],
        )
        if not common.deliver("nli", how, results, store, as_json):
            return
        history = record["history"]
        typer.echo(
            f"{record['base']}: {history['n_train']} pairs, {history['steps']} steps, "
            f"{history['seconds']:.0f} s, {record['device']}"
        )
        if history["accuracy"] is not None:
            typer.echo(
                f"held-out accuracy {history['accuracy']:.3f} on {history['n_validation']} pairs "
                f"(most frequent class: {history['majority']:.3f}; "
                f"premises of other pairs: {history['without_premise']:.3f})\n"
            )
        before, after = results["sts"]["before"], results["sts"]["after"]
        lines = [[name, before[name], after[name]] for name in after]
        scored = next(name for name in results["data"] if name != "nli")
        head = [f"{scored}, Spearman x 100", "before", "after"]
        typer.echo(tabulate(lines, head, floatfmt=".2f"))


@app.command()
def pretrain(
    corpus: Corpus,
    out: Annotated[Path, typer.Option(help="Folder to make, with final and snapshots.")],
    tokens: Annotated[float, typer.Option(min=1, help="Train on so many word pieces.")],
    config: Config = "mini",
    seed: common.Seed = 0,
    bias: Annotated[
        str, typer.Option(help="Of the output: 'log p' or 'zero' (the start), or 'none'.")
    ] = "log p",
    bf16: Bf16 = None,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    overwrite: common.Overwrite = False,
    progress: common.Progress = True,
) -> None:
    """Train a small BERT from scratch with the masked-language-model objective.

    Keeps the model at steps 0, 1, 2, 3, 5, 7, 10, 20 and so on. Stopped by Ctrl-C or SIGTERM, it
    writes a checkpoint; the same command then goes on from there. After the end, it shows what the
    run left. The tokenizer is that of minilm, BERT's own uncased word pieces.
    """
    with _at_work(threads, "the same command goes on from there"):
        from bertflow_lite.devices import find_device
        from bertflow_lite.encoders.models import load_model
        from bertflow_lite.experiments.pretraining.corpus import open_corpus
        from bertflow_lite.experiments.pretraining.loop import pretrain as train
        from bertflow_lite.experiments.pretraining.recipe import find_recipe

        recipe = dataclasses.replace(find_recipe(config), bias=bias)
        common.check_place(out)
        tokenizer = load_model("minilm", device="cpu").tokenizer
        show = progress and sys.stderr.isatty()
        text = open_corpus(corpus, tokenizer, recipe.length, download=download, progress=show)
        typer.echo(f"{text.n_tokens:,} word pieces in {len(text.rows):,} rows", err=True)
        done = train(
            text, tokenizer, out, recipe=recipe, tokens=tokens, seed=seed,
            device=find_device(device), bf16=bf16, overwrite=overwrite, progress=progress,
        )  # fmt: skip
        if not done.trained:
            typer.echo(
                f"{out.name} holds this run already, trained to its end: here is what it left. "
                "--overwrite trains it again.",
                err=True,
            )
        head = ["step", "tokens", "training loss", "held-out loss"]
        typer.echo(tabulate(done.loss, head, floatfmt=".3f"))
        rate = done.tokens / max(done.seconds, 1e-9)
        typer.echo(f"{done.seconds:.0f} s, {rate:,.0f} tokens a second; models in {out.name}")


@app.command()
def pretrain_compare(
    corpus: Corpus,
    tokens: Annotated[float, typer.Option(min=1, help="Word pieces for each recipe.")] = 5e5,
    store: common.StoreAs = None,
    config: Config = "mini",
    seed: common.Seed = 0,
    bf16: Bf16 = None,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Train a small BERT for a short while by several recipes, to see what each change does.

    Each finished recipe is kept in the cache: stopped, the same command goes on from there.
    """
    options = _options(locals(), "threads")
    with _at_work(threads, "finished recipes are in the cache"):
        from bertflow_lite.experiments.pretraining.variants import run_comparison

        results = run_comparison(**options)
        found = results["recipes"]
        rows = [[one["name"], *(loss for _, _, loss in one["curve"])] for one in found]
        head = ["recipe", *(f"{seen:,}" for _, seen, _ in found[0]["curve"])]
        typer.echo(tabulate(rows, head, floatfmt=".3f"))
        typer.echo(f"held-out loss in nats; unigram {results['settings']['unigram_loss']:.3f}")


@app.command()
def pretrain_measure(
    run: Annotated[Path, typer.Option(help="Folder that `pretrain --out` made.")],
    corpus: Annotated[
        Path, typer.Option(help="The text that it was trained on; or wikipedia, the hub's.")
    ],
    name: Annotated[
        str, typer.Option(help="Store as data/results/pretraining/NAME.json.")
    ] = "mini-bert",
    data: Validation = "stsb",
    partial: Annotated[
        bool, typer.Option("--partial", help="Measure an unfinished run, as far as it is.")
    ] = False,
    seeds: common.Seeds = 3,
    least_pairs: Annotated[
        int, typer.Option(min=1, help="Smallest count of neighbors whose PMI is compared.")
    ] = 20,
    resume: common.Resume = True,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Measure how words, sentences and STS scores change while a small BERT learns.

    Each snapshot's numbers are kept in the cache: stopped, the same command goes on from there.
    """
    options = _options(locals(), "threads")
    with _at_work(threads, "measured snapshots are in the cache"):
        from bertflow_lite.experiments.pretraining.snapshots import measure_folder

        results = measure_folder(**options)
        calibrators = list(results["settings"]["calibrators"])
        head = ["step", "loss", "norm ~ log p", "words cos", "sentences cos", "PMI", "~ corpus"]
        rows = []
        for one in results["snapshots"]:
            numbers = [
                one["held_out_loss"],
                one["words"]["norm_log_frequency"]["spearman"],
                one["words"]["mean_cosine"]["estimate"],
                one["sentences"]["last2avg"]["mean_cosine"]["estimate"],
                one["gain"]["pmi"],
                one["neighbors"]["spearman"],
            ]
            scores = [one["sts"]["last2avg"][calibrator][0] for calibrator in calibrators]
            rows.append(_row([one["step"]], numbers, scores))
        typer.echo(tabulate(rows, [*head, *calibrators], disable_numparse=True))


@app.command()
def pretrain_variants(
    corpus: Corpus,
    steps: Annotated[int, typer.Option(min=1, help="Train each variant so far.")] = 500,
    store: common.StoreAs = None,
    data: Validation = "stsb",
    config: Config = "mini",
    seed: common.Seed = 1,
    bf16: Bf16 = None,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    progress: common.Progress = True,
) -> None:
    """Train the first steps again with one thing changed: no bias, untied, equal frequencies ...

    Each finished variant is kept in the cache: stopped, the same command goes on from there.
    """
    options = _options(locals(), "threads")
    with _at_work(threads, "finished variants are in the cache"):
        from bertflow_lite.experiments.pretraining.variants import run_variants

        results = run_variants(**options)
        head = ["variant", "step", "loss", "norm ~ log p", "output norm ~ log p", "words cos"]
        rows = []
        for one in results["variants"]:
            last = one["snapshots"][-1]
            norms = last["norm"]["input"], last["norm"]["output"]
            numbers = [last["held_out_loss"], *norms, last["words_cosine"]]
            rows.append(_row([one["name"], last["step"]], numbers, list(last["sts"].values())))
        typer.echo(tabulate(rows, [*head, *last["sts"]], disable_numparse=True))


def _row(names: list[Any], numbers: list[float], scores: list[float]) -> list[str]:
    return [*map(str, names), *(f"{x:.3f}" for x in numbers), *(f"{x:.1f}" for x in scores)]
