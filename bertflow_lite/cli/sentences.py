"""Commands for your own sentences: fit, encode, similar, check, export."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, check_place, clear_errors, warn
from bertflow_lite.cli.pipeline import (
    Pipeline,
    encode_texts,
    layers_of,
    open_encoder,
    warn_of_nothing_known,
    write_array,
)

ModelOption = Annotated[
    str, typer.Option(help="minilm, smollm2, mini-bert, glove, a folder, or a hub id.")
]
MaybeModel = Annotated[
    str | None,
    typer.Option(help="Encoder; default: the one that --with was fitted for."),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        help="Hidden states to average: a name, an index, or indices as 1,6; default: last2avg."
    ),
]
WithOption = Annotated[
    Path | None, typer.Option("--with", help="Folder of a calibrator that `fit` wrote.")
]
ColumnOption = Annotated[
    str | None, typer.Option(help="Column that holds the sentences; default: sentence or text.")
]
LengthOption = Annotated[int, typer.Option(help="Longest sentence, in tokens.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Random state of a flow.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
DownloadOption = Annotated[bool, typer.Option(help="Fetch a missing model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
OverwriteOption = Annotated[bool, typer.Option(help="Replace what is there.")]


@app.command()
def fit(
    sentences: Annotated[Path, typer.Argument(help=".txt, .tsv, .csv, .jsonl or .parquet")],
    out: Annotated[Path, typer.Option(help="Folder to write the calibrator to.")],
    model: ModelOption = "minilm",
    layers: LayersOption = None,
    calibrate: Annotated[
        str, typer.Option(help="sn, natsv:K, whiten[:WIDTH], flow[:PRESET], joined by +.")
    ] = "flow:recommended",
    column: ColumnOption = None,
    seed: SeedOption = 0,
    max_length: LengthOption = 64,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    overwrite: OverwriteOption = False,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a calibrator to your sentences and save it.

    Quotation marks enclose a cell in a CSV; in a TSV they are characters like any other, and a TSV
    with quoted cells is refused.
    """
    with clear_errors():
        from bertflow_lite.artifacts import read_description, save
        from bertflow_lite.calibrate import make_calibrator
        from bertflow_lite.diagnosis import FEW, directions_to_learn
        from bertflow_lite.sentence_files import read_sentences

        calibrator = make_calibrator(calibrate, random_state=seed, progress=sys.stderr.isatty())
        if calibrator is None:
            raise ValueError("--calibrate none fits nothing; choose sn, natsv, whiten or flow.")
        if out.exists() and not overwrite and any(out.iterdir() if out.is_dir() else [out]):
            raise FileExistsError(f"{out.name!r} exists; name another folder or pass --overwrite.")
        check_place(out)
        texts = list(dict.fromkeys(read_sentences(sentences, column=column).sentences))
        encoder = open_encoder(model, max_length, device, threads, download)
        layers_used = layers_of(encoder, layers)
        vectors = encode_texts(encoder, texts, layers_used)
        calibrator.fit(vectors)
        save(calibrator, out, encoder=encoder, layers=layers_used, data=texts, overwrite=overwrite)
        warn_of_nothing_known(encoder, vectors)
        directions = directions_to_learn(calibrator, encoder.dim)
        if len(texts) < FEW * directions:
            warn(
                f"{len(texts)} different sentences are few for the {directions} directions that "
                f"{calibrate} has to learn: bring more, or choose sn or whiten to a small width "
                "(whiten:64)"
            )
        description = read_description(out)
        if as_json:
            typer.echo(json.dumps(description, indent=1))
            return
        typer.echo(
            f"fitted {calibrate} on {len(texts)} different sentences of {sentences.name}, "
            f"{encoder.name}, layers {layers_used or 'mean'}, {encoder.dim} dimensions"
        )
        typer.echo(f"saved: {', '.join(sorted(p.name for p in out.iterdir()))} in {out.name}/")


@app.command()
def encode(
    sentences: Annotated[Path, typer.Argument(help=".txt, .tsv, .csv, .jsonl or .parquet")],
    out: Annotated[Path, typer.Option(help="Array to write, .npy: row i is line i.")],
    calibrator: WithOption = None,
    model: MaybeModel = None,
    layers: Annotated[str | None, typer.Option(help="As in fit; default: as fitted.")] = None,
    column: ColumnOption = None,
    max_length: Annotated[int | None, typer.Option(help="Longest sentence, in tokens.")] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    overwrite: OverwriteOption = False,
    download: DownloadOption = False,
) -> None:
    """Turn sentences into vectors, calibrated or raw, and write them as a .npy array."""
    with clear_errors():
        from bertflow_lite.sentence_files import read_sentences

        if out.suffix != ".npy":
            raise ValueError(f"--out {out.name}: the ending must be .npy.")
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out.name!r} exists; name another file or pass --overwrite.")
        check_place(out)
        found = read_sentences(sentences, column=column, keep_empty=True)
        pipe = Pipeline(calibrator, model, layers, max_length, device, threads, download)
        raw = pipe.raw(list(found.sentences))
        warn_of_nothing_known(pipe.encoder, raw)
        vectors = pipe.calibrated(raw)
        write_array(out, vectors)
        typer.echo(f"{out.name}: {vectors.shape[0]} x {vectors.shape[1]}, {vectors.dtype}")


@app.command()
def similar(
    query: Annotated[str, typer.Argument(help="A sentence; - reads one from standard input.")],
    within: Annotated[Path, typer.Option("--in", help="Sentences to search.")],
    top: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    calibrator: WithOption = None,
    model: MaybeModel = None,
    layers: Annotated[str | None, typer.Option(help="As in fit; default: as fitted.")] = None,
    column: ColumnOption = None,
    max_length: Annotated[int | None, typer.Option(help="Longest sentence, in tokens.")] = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the sentences of a file that come nearest to a query."""
    with clear_errors():
        from bertflow_lite.search import nearest
        from bertflow_lite.sentence_files import read_sentences

        asked = sys.stdin.read() if query == "-" else query
        if not asked.strip():
            raise ValueError("the query is empty.")
        found = read_sentences(within, column=column)
        pipe = Pipeline(calibrator, model, layers, max_length, device, threads, download)
        raw = pipe.raw([asked.strip(), *found.sentences])
        if not raw[0].any():
            raise ValueError(
                f"no word of the query is known to {pipe.encoder.name!r}: it has no vector to "
                "search with. Ask with other words, or by another --model."
            )
        vectors = pipe.calibrated(raw)
        rows, cosines = nearest(vectors[:1], vectors[1:], top=top)
        hits = [
            {"cosine": round(float(c), 4), "line": found.lines[i], "sentence": found.sentences[i]}
            for i, c in zip(rows[0], cosines[0], strict=True)
        ]
        if as_json:
            typer.echo(json.dumps({"query": asked.strip(), "hits": hits}))
            return
        lines = [[f"{hit['cosine']:.3f}", hit["line"], hit["sentence"]] for hit in hits]
        typer.echo(tabulate(lines, ["cosine", "line", "sentence"], disable_numparse=True))


@app.command()
def check(
    sentences: Annotated[Path, typer.Argument(help=".txt, .tsv, .csv, .jsonl or .parquet")],
    model: ModelOption = "minilm",
    layers: LayersOption = None,
    calibrate: Annotated[
        str, typer.Option(help="Calibrator to try: sn, natsv:K, whiten[:WIDTH], flow[:PRESET].")
    ] = "flow:recommended",
    column: ColumnOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Random state.")] = 0,
    max_length: LengthOption = 64,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure without labels how anisotropic a space is, and what calibration would change."""
    with clear_errors():
        from bertflow_lite.calibrate import make_calibrator
        from bertflow_lite.diagnosis import diagnose
        from bertflow_lite.sentence_files import read_sentences

        calibrator = make_calibrator(calibrate, random_state=seed)
        if calibrator is None:
            raise ValueError("--calibrate none changes nothing; choose sn, natsv, whiten or flow.")
        texts = list(dict.fromkeys(read_sentences(sentences, column=column).sentences))
        encoder = open_encoder(model, max_length, device, threads, download)
        vectors = encode_texts(encoder, texts, layers_of(encoder, layers))
        found = diagnose(vectors, calibrator, random_state=seed)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=1))
            return
        lines: list[list[Any]] = [
            ["mean cosine of random sentences", found.mean_cosine, found.mean_cosine_calibrated],
            ["IsoScore (0 to 1)", found.iso_score, found.iso_score_calibrated],
            ["effective rank", found.effective_rank, found.effective_rank_calibrated],
        ]
        typer.echo(f"{found.n} different sentences, {found.dim} dimensions, {calibrate}\n")
        typer.echo(tabulate(lines, ["", "raw", "calibrated"], floatfmt=".2f"))
        typer.echo(f"\nrank agreement of raw and calibrated cosines: {found.agreement:.2f}")
        typer.echo(f"nearest neighbors (10) that stay: {100 * found.kept_neighbors:.0f} %")
        typer.echo(f"... and between fits on two halves: {100 * found.steadiness:.0f} %\n")
        for sentence in found.advice:
            typer.echo(f"- {sentence}")


@app.command()
def export(
    calibrator: Annotated[Path, typer.Argument(help="Folder of a calibrator that `fit` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the sentence-transformers model.")],
    model: Annotated[
        str | None, typer.Option(help="Encoder; default: the one it was fitted for.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="As in fit; default: as fitted.")] = None,
    device: DeviceOption = None,
    download: DownloadOption = False,
) -> None:
    """Write encoder, layers and calibrator as one sentence-transformers model."""
    with clear_errors():
        from bertflow_lite.export import to_sentence_transformer

        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            raise FileExistsError(f"{out.name!r} exists; name a folder that does not.")
        check_place(out)
        pipe = Pipeline(calibrator, model, layers, None, device, None, download)
        if pipe.layers is None:
            raise ValueError("word vectors have no sentence-transformers form here.")
        whole = to_sentence_transformer(pipe.encoder, pipe.layers, pipe.calibrator)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            whole.save(f"{scratch}/model")
            if out.exists():
                out.rmdir()  # an empty folder
            Path(scratch, "model").rename(out)  # so that a model of that name is a whole one
        typer.echo(f"{out.name}/ loads with SentenceTransformer({out.name!r})")
