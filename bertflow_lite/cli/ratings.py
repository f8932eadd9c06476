"""The command for your own ratings: evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors, split_names, warn
from bertflow_lite.cli.pipeline import Pipeline, warn_of_nothing_known
from bertflow_lite.cli.sentences import (
    DeviceOption,
    DownloadOption,
    JsonOption,
    MaybeModel,
    SeedOption,
    ThreadsOption,
    WithOption,
)


@app.command()
def evaluate(
    pairs: Annotated[Path, typer.Argument(help="Rated pairs: .tsv, .csv, .jsonl or .parquet")],
    calibrate: Annotated[
        str, typer.Option(help="none, sn, natsv:K, whiten[:WIDTH], flow[:PRESET], by commas.")
    ] = "none,sn,whiten,flow:recommended",
    fit_on: Annotated[
        Path | None, typer.Option(help="Sentences to fit on; default: those of the pairs.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of --fit-on that holds the sentences.")
    ] = None,
    calibrator: WithOption = None,
    model: MaybeModel = None,
    layers: Annotated[str | None, typer.Option(help="As in fit.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Two sentence columns and the rating, by commas.")
    ] = None,
    seed: SeedOption = 0,
    max_length: Annotated[int | None, typer.Option(help="Longest sentence, in tokens.")] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score raw and calibrated cosines against your own ratings, with intervals.

    The gain is over the raw vectors, on the same pairs: an interval without 0 says that the two
    differ. Quotation marks in a CSV or TSV are taken as in fit.
    """
    with clear_errors():
        from bertflow_lite.calibrate import make_calibrator
        from bertflow_lite.diagnosis import directions_to_learn
        from bertflow_lite.evaluate import bootstrap_difference, bootstrap_interval, score_sts
        from bertflow_lite.sentence_files import read_pairs, read_sentences

        if column is not None and fit_on is None:
            raise ValueError(
                "--column is the column of --fit-on; those of the pairs are --columns."
            )
        rated = read_pairs(pairs, columns=split_names(columns) if columns else None)
        names = split_names(calibrate)
        fitted = {name: make_calibrator(name, random_state=seed) for name in names}
        own = rated.sentences
        texts = read_sentences(fit_on, column=column).sentences if fit_on else own
        texts = list(dict.fromkeys(texts))  # as in fit: a repeated sentence counts once
        pipe = Pipeline(calibrator, model, layers, max_length, device, threads, download)
        vectors = pipe.raw([*own, *texts])
        raw, base = vectors[: len(own)], vectors[len(own) :]
        warn_of_nothing_known(pipe.encoder, raw)
        spaces = {}
        for name, one in fitted.items():
            spaces[name] = raw if one is None else one.fit(base).transform(raw)
        if calibrator is not None:
            spaces[f"saved in {calibrator.name}"] = pipe.calibrated(raw)
        rows = []
        for name, space in spaces.items():
            interval = bootstrap_interval(rated, space)
            row: dict[str, Any] = {
                "calibrator": name,
                "spearman": round(score_sts(rated, space).all, 4),
                "low": round(interval.low, 4),
                "high": round(interval.high, 4),
            }
            gain = None if space is raw else bootstrap_difference(rated, space, raw)
            for key, part in (("gain", "estimate"), ("gain_low", "low"), ("gain_high", "high")):
                row[key] = None if gain is None else round(getattr(gain, part), 4)
            rows.append(row)
        learned = {name: one for name, one in fitted.items() if one is not None}
        dim = pipe.encoder.dim
        blind = [k for k, one in learned.items() if len(texts) <= directions_to_learn(one, dim)]
        if learned and fit_on is None:
            warn(
                f"fitted on the {len(texts)} different sentences that are scored; name others by "
                "--fit-on to see what new sentences can expect"
            )
        if blind:
            warn(
                f"{len(texts)} different sentences are fewer than the directions that "
                f"{', '.join(blind)} must learn: bring more, or choose sn or a small width"
            )
        if as_json:
            content = {
                "pairs": len(rated),
                "fitted_on": len(texts) if learned else None,
                "results": rows,
            }
            typer.echo(json.dumps(content, indent=1))
            return
        typer.echo(f"{len(rated)} rated pairs of {pairs.name}; Spearman x 100, 95 % intervals")
        if learned:
            where = (fit_on or pairs).name
            typer.echo(f"fitted on {len(texts)} different sentences of {where}")
        typer.echo("")
        lines = [
            [
                r["calibrator"],
                f"{r['spearman']:.1f}",
                f"{r['low']:.1f} to {r['high']:.1f}",
                ""
                if r["gain"] is None
                else f"{r['gain']:+.1f} [{r['gain_low']:+.1f}, {r['gain_high']:+.1f}]",
            ]
            for r in rows
        ]
        titles = ["calibrator", "score", "interval", "gain over none [low, high]"]
        align = ("left", "right", "left", "left")
        typer.echo(tabulate(lines, titles, disable_numparse=True, colalign=align))
