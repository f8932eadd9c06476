"""The command that fine-tunes an encoder on NLI: nli."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, check_place, clear_errors


@app.command()
def nli(
    model: Annotated[
        str, typer.Option(help="minilm, mini-bert, random-minilm, a folder, or a hub id.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to make: a transformers model.")],
    keep_blocks: Annotated[
        int | None, typer.Option(min=1, help="Cut the encoder to its first blocks before.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random state.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate of AdamW.")] = 2e-5,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs in a batch.")] = 16,
    warmup: Annotated[float, typer.Option(help="Share of steps with rising rate.")] = 0.1,
    validation: Annotated[int, typer.Option(min=0, help="Pairs held out for accuracy.")] = 2000,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many pairs only, drawn at random.")
    ] = None,
    sts: Annotated[
        str, typer.Option(help="Set to score before and after: stsb (validation), mini-sts.")
    ] = "stsb",
    classifier_bias: Annotated[
        bool, typer.Option(help="Softmax with a bias (Sentence-BERT and the paper: without).")
    ] = False,
    max_length: Annotated[int, typer.Option(help="Longest sentence, in tokens.")] = 64,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 500,
    overwrite: Annotated[bool, typer.Option(help="Replace what is in the folder.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    store: Annotated[
        str | None, typer.Option(help="Store the run as data/results/nli/STORE.json.")
    ] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing model or data set.")] = False,
    progress: Annotated[bool, typer.Option(help="Progress bar (on stderr).")] = True,
) -> None:
    """Fine-tune an encoder on NLI pairs as Sentence-BERT does (Table 3).

    Stopped by Ctrl-C or SIGTERM, it keeps a checkpoint; the same command then goes on from there.
    The paper's setting: --model bert-base-uncased --download, with all of SNLI and MNLI.
    """
    with clear_errors():
        import torch

        from bertflow_lite.devices import find_device
        from bertflow_lite.experiments.nli.runs import run_nli
        from bertflow_lite.experiments.runs import provenance, store_run

        if threads is not None:
            torch.set_num_threads(threads)
        try:
            results = run_nli(
                model,
                out,
                sts=sts,
                keep_blocks=keep_blocks,
                seed=seed,
                epochs=epochs,
                learning_rate=learning_rate,
                batch_size=batch_size,
                warmup=warmup,
                validation=validation,
                limit=limit,
                classifier_bias=classifier_bias,
                max_length=max_length,
                checkpoint_steps=checkpoint_steps,
                overwrite=overwrite,
                device=device,
                download=download,
                progress=progress and sys.stderr.isatty(),
            )
        except KeyboardInterrupt as stop:
            said = str(stop) or "stopped"
            typer.echo(f"{said}; the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(130) from None
        record = results["record"]
        how = provenance(
            model=record["base"],
            fingerprint=record["base_fingerprint"],
            seed=seed,
            device=str(find_device(device)),
            max_length=max_length,
            data=results["data"],
        )
        if store is not None:
            store_run("nli", store, how, results)
        if as_json:
            typer.echo(json.dumps({"how": how, "results": results}, indent=1))
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
    corpus: Annotated[
        Path,
        typer.Option(help="Text, one paragraph a line: .txt, .gz or .xz; or wikipedia, the hub's."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make, with final and snapshots.")],
    config: Annotated[str, typer.Option(help="mini (4 blocks, 256-d) or tiny (seconds).")] = "mini",
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Train so long; or give --tokens.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(min=1, help="Train on so many word pieces.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and masks.")] = 0,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest rate of AdamW; default: the config's.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(min=0, help="Of AdamW; default: the config's.")
    ] = None,
    masked: Annotated[
        float | None,
        typer.Option(help="Share of pieces to predict, all the time; default: the config's."),
    ] = None,
    tied: Annotated[bool, typer.Option(help="Output weights are the word embeddings.")] = True,
    bias: Annotated[
        str, typer.Option(help="Of the output: 'log p' or 'zero' (the start), or 'none'.")
    ] = "log p",
    bf16: Annotated[
        bool | None,
        typer.Option(
            "--bf16/--no-bf16", help="Compute in bfloat16; default: where the hardware does."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch Wikipedia from the hub.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what is in the folder.")] = False,
    progress: Annotated[
        bool, typer.Option(help="Progress on stderr: a bar; lines where that is no terminal.")
    ] = True,
) -> None:
    """Train a small BERT from scratch with the masked-language-model objective.

    Keeps the model at steps 0, 1, 2, 3, 5, 7, 10, 20 and so on. Stopped by Ctrl-C or SIGTERM, it
    writes a checkpoint; the same command then goes on from there. After the end, it shows what the
    run left. The tokenizer is that of minilm, BERT's own uncased word pieces.
    """
    with clear_errors():
        import torch

        from bertflow_lite.devices import find_device
        from bertflow_lite.encoders.models import load_model
        from bertflow_lite.experiments.pretraining.corpus import find_corpus, pack_corpus
        from bertflow_lite.experiments.pretraining.loop import pretrain as train
        from bertflow_lite.experiments.pretraining.recipe import RECIPES

        if threads is not None:
            torch.set_num_threads(threads)
        if config not in RECIPES:
            raise ValueError(f"there is no config {config!r}; there are {', '.join(RECIPES)}.")
        default = RECIPES[config]
        recipe = dataclasses.replace(
            default,
            tied=tied,
            bias=bias,
            learning_rate=default.learning_rate if learning_rate is None else learning_rate,
            weight_decay=default.weight_decay if weight_decay is None else weight_decay,
            masked=default.masked if masked is None else masked,
            masked_last=default.masked_last if masked is None else masked,
        )
        check_place(out)
        show = progress and sys.stderr.isatty()
        tokenizer = load_model("minilm", device="cpu").tokenizer
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, tokenizer, length=recipe.length, progress=show)
        if os.environ.get("RANK", "0") == "0":  # one of several processes speaks
            typer.echo(f"{packed.n_tokens:,} word pieces in {len(packed.rows):,} rows", err=True)

        def say(line: str) -> None:
            typer.echo(line, err=True)

        try:
            done = train(
                packed,
                tokenizer,
                out,
                recipe=recipe,
                tokens=tokens,
                minutes=minutes,
                seed=seed,
                device=find_device(device),
                bf16=bf16,
                overwrite=overwrite,
                progress=show,
                say=say if progress and not show else None,
            )
        except KeyboardInterrupt as stop:
            typer.echo(f"{stop or 'stopped'}; the same command goes on from there", err=True)
            raise typer.Exit(130) from None
        if not done.first:
            return
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
        from bertflow_lite.devices import choose_bf16, find_device
        from bertflow_lite.encoders.models import load_model
        from bertflow_lite.experiments.pretraining.corpus import find_corpus, pack_corpus
        from bertflow_lite.experiments.pretraining.loop import HELD_OUT
        from bertflow_lite.experiments.pretraining.recipe import RECIPES
        from bertflow_lite.experiments.pretraining.variants import (
            ASIDES,
            LADDER,
            compare_recipes,
            unigram_loss,
        )
        from bertflow_lite.experiments.pretraining.variants import COMPARE_FORMAT as FORMAT
        from bertflow_lite.experiments.resume import KeptResults
        from bertflow_lite.experiments.runs import provenance, store_run

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


@app.command()
def pretrain_measure(
    run: Annotated[Path, typer.Option(help="Folder that `pretrain --out` made.")],
    corpus: Annotated[
        Path, typer.Option(help="The text that it was trained on; or wikipedia, the hub's.")
    ],
    name: Annotated[
        str, typer.Option(help="Store as data/results/pretraining/NAME.json.")
    ] = "mini-bert",
    data: Annotated[
        str, typer.Option(help="Set whose validation pairs are scored; mini-sts where it is not.")
    ] = "stsb",
    out: Annotated[
        Path | None, typer.Option(help="Write to this JSON file, and not to data/results.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Measure an unfinished run, as far as it is.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Flows at the first and the last snapshot.")
    ] = 3,
    least_pairs: Annotated[
        int, typer.Option(min=1, help="Smallest count of neighbors whose PMI is compared.")
    ] = 20,
    resume: Annotated[bool, typer.Option(help="Use snapshots that were measured before.")] = True,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing data set or text.")] = False,
    progress: Annotated[bool, typer.Option(help="Progress bar (on stderr).")] = True,
) -> None:
    """Measure how words, sentences and STS scores change while a small BERT learns.

    Each snapshot's numbers are kept in the cache: stopped, the same command goes on from there.
    """
    with clear_errors():
        import torch
        from transformers import AutoTokenizer

        from bertflow_lite.devices import find_device
        from bertflow_lite.experiments.pretraining.checkpoints import (
            fingerprint_folder,
            read_training,
        )
        from bertflow_lite.experiments.pretraining.corpus import find_corpus, pack_corpus
        from bertflow_lite.experiments.pretraining.snapshots import (
            load_validation_pairs,
            measure_run,
        )
        from bertflow_lite.experiments.runs import provenance, store_run
        from bertflow_lite.files import write_json

        if threads is not None:
            torch.set_num_threads(threads)
        if out is not None and out.suffix != ".json":
            raise ValueError(f"--out {out.name}: the ending must be .json.")
        training = read_training(run, partial=partial)
        pairs = load_validation_pairs(data, download=download)
        if out is not None:
            check_place(out)
        show = progress and sys.stderr.isatty()
        last = list(training.snapshots.values())[-1]
        tokenizer = AutoTokenizer.from_pretrained(
            last, local_files_only=True, trust_remote_code=False
        )
        length = int(training.settings["recipe"]["length"])
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, tokenizer, length=length, progress=show)
        place = find_device(device)
        try:
            results = measure_run(
                training,
                packed,
                tokenizer,
                pairs,
                seeds=seeds,
                least_pairs=least_pairs,
                resume=resume,
                device=place,
                progress=show,
            )
        except KeyboardInterrupt:
            typer.echo("stopped; measured snapshots are in the cache", err=True)
            raise typer.Exit(130) from None
        how = provenance(
            model=name,
            fingerprint=results["snapshots"][-1]["fingerprint"],
            seed=list(range(seeds)),
            device=str(place),
            corpus=packed.fingerprint,
            weights=fingerprint_folder(last),
            data={pairs.name: pairs.fingerprint},
            max_length=64,
        )
        if out is None:
            store_run("pretraining", name, how, results)
        else:
            write_json(out, {"table": "pretraining", "how": how, "results": results})
        typer.echo(tabulate(*_measured_rows(results), disable_numparse=True))


def _measured_rows(results: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Lay out some columns of each snapshot."""
    head = ["step", "loss", "norm ~ log p", "words cos", "sentences cos", "PMI", "~ corpus"]
    calibrators = list(results["settings"]["calibrators"])
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
        rows.append(
            [str(one["step"]), *(f"{x:.3f}" for x in numbers), *(f"{x:.1f}" for x in scores)]
        )
    return rows, [*head, *calibrators]


@app.command()
def pretrain_publish(
    run: Annotated[Path, typer.Option(help="Folder that `pretrain --out` made.")],
    out: Annotated[Path, typer.Option(help="Model folder to make, as data/models/mini-bert.")],
    corpus: Annotated[
        str | None,
        typer.Option(help="What the text was and whose, for the card; the book's is known."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="What it was trained on, for the card.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a published model.")] = False,
) -> None:
    """Make a model folder of a finished pre-training run: weights, tokenizer, model card.

    The weights are stored in float16. An unfinished run is refused.
    """
    with clear_errors():
        from bertflow_lite.experiments.pretraining.publish import publish_model
        from bertflow_lite.experiments.runs import typed_command

        check_place(out)
        folder = publish_model(
            run,
            out,
            corpus=corpus,
            machine=machine,
            command=typed_command(sys.argv[1:]),
            overwrite=overwrite,
        )
        for path in sorted(folder.iterdir()):
            typer.echo(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")


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
        from bertflow_lite.devices import choose_bf16, find_device
        from bertflow_lite.encoders.models import load_model
        from bertflow_lite.experiments.pretraining.corpus import find_corpus, pack_corpus
        from bertflow_lite.experiments.pretraining.loop import HELD_OUT
        from bertflow_lite.experiments.pretraining.recipe import RECIPES
        from bertflow_lite.experiments.pretraining.snapshots import load_validation_pairs, prepare
        from bertflow_lite.experiments.pretraining.variants import (
            FORMAT,
            STEPS,
            VARIANTS,
            train_variant,
        )
        from bertflow_lite.experiments.resume import KeptResults
        from bertflow_lite.experiments.runs import provenance, store_run

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
        typer.echo(tabulate(*_variant_rows(found), disable_numparse=True))


def _variant_rows(found: list[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
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
