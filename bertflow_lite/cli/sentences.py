"""Commands for your own sentences: fit, encode, similar, check, map, export, evaluate."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli import common
from bertflow_lite.cli.common import app, clear_errors

SentenceFile = Annotated[Path, typer.Argument(help=".txt, .tsv, .csv, .jsonl or .parquet")]
MaybeModel = Annotated[
    str | None, typer.Option(help="Encoder; default: the one that the calibrator was fitted for.")
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Hidden states to average: a name, an index, or indices as 1,6; default: as the "
        "calibrator was fitted, or last2avg."
    ),
]
With = Annotated[Path | None, typer.Option("--with", help="File that `fit` wrote.")]
Column = Annotated[
    str | None, typer.Option(help="Column that holds the sentences; default: sentence or text.")
]
MaybeLength = Annotated[
    int | None, typer.Option(help="Longest sentence, in tokens; default: as fitted, or 64.")
]
TokenWeights = Annotated[
    str | None,
    typer.Option("--weights", help="Weigh tokens by rarity: idf, idf-1 or sif; default: equally."),
]


@app.command(rich_help_panel=common.SENTENCES)
def fit(
    sentences: SentenceFile,
    out: Annotated[Path, typer.Option(help="File to write, .safetensors.")],
    model: common.Model = "minilm",
    layers: Layers = None,
    weights: TokenWeights = None,
    calibrate: common.Calibrator = "flow:recommended",
    column: Column = None,
    seed: common.Seed = 0,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    card: Annotated[bool, typer.Option(help="Write a model card beside it.")] = False,
    overwrite: common.Overwrite = False,
    download: common.Download = False,
    as_json: common.AsJson = False,
) -> None:
    """Fit a calibrator to your sentences and save it with its encoder's name.

    Quotation marks enclose a cell in a CSV; in a TSV they are characters like any other, and a TSV
    with quoted cells is refused.
    """
    with clear_errors():
        from sklearn.pipeline import make_pipeline

        from bertflow_lite.calibrators import make_calibrator
        from bertflow_lite.datasets.own_files import read_sentences
        from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
        from bertflow_lite.export.pipeline import read_about, save
        from bertflow_lite.measures.diagnosis import FEW, directions_to_learn

        calibrator = make_calibrator(calibrate, random_state=seed, progress=sys.stderr.isatty())
        if calibrator is None and weights is None:
            raise ValueError(
                "--calibrate none fits nothing; choose sn, natsv, whiten or flow, or --weights."
            )
        if out.suffix != ".safetensors":
            raise ValueError(f"--out {out.name}: the ending must be .safetensors.")
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out.name!r} exists; name another file or pass --overwrite.")
        common.check_place(out)
        texts = list(dict.fromkeys(read_sentences(sentences, column=column).sentences))
        common.set_threads(threads)
        step = SentenceEncoder(
            model,
            layers=layers or "last2avg",
            weights=weights,
            max_length=max_length,
            device=device,
            download=download,
        )
        encoder = step.fit(texts).open()
        layers_used = layers_of(encoder, layers)
        vectors = encode_texts(encoder, texts, layers_used, step.fitted_weights())
        parts = []
        if calibrator is not None:
            calibrator.fit(vectors)
            parts = [part for _, part in getattr(calibrator, "steps", [("", calibrator)])]
        pipeline = make_pipeline(step, *parts)
        save(pipeline, out, data=texts, card=card, overwrite=overwrite)
        warn_of_nothing_known(encoder, vectors)
        directions = 0 if calibrator is None else directions_to_learn(calibrator, encoder.dim)
        if len(texts) < FEW * directions:
            common.warn(
                f"{len(texts)} different sentences are few for the {directions} directions that "
                f"{calibrate} has to learn: bring more, or choose sn or whiten to a small width "
                "(whiten:64)"
            )
        if as_json:
            common.say_json(read_about(out))
            return
        typer.echo(
            f"fitted {calibrate if weights is None else f'{weights} weights, {calibrate},'} "
            f"on {len(texts)} different sentences of {sentences.name}, "
            f"{encoder.name}, layers {layers_used}, {encoder.dim} dimensions"
        )
        typer.echo(f"saved: {out.name}" + (f", {out.with_suffix('.md').name}" if card else ""))


@app.command(rich_help_panel=common.SENTENCES)
def encode(
    sentences: SentenceFile,
    out: Annotated[Path, typer.Option(help="Array to write, .npy: row i is line i.")],
    calibrator: With = None,
    model: MaybeModel = None,
    layers: Layers = None,
    column: Column = None,
    max_length: MaybeLength = None,
    device: common.Device = None,
    threads: common.Threads = None,
    overwrite: common.Overwrite = False,
    download: common.Download = False,
) -> None:
    """Turn sentences into vectors, calibrated or raw, and write them as a .npy array."""
    with clear_errors():
        import numpy as np

        from bertflow_lite.datasets.own_files import read_sentences
        from bertflow_lite.files import replacing

        if out.suffix != ".npy":
            raise ValueError(f"--out {out.name}: the ending must be .npy.")
        if out.exists() and not overwrite:
            raise FileExistsError(f"{out.name!r} exists; name another file or pass --overwrite.")
        common.check_place(out)
        found = read_sentences(sentences, column=column, keep_empty=True)
        pipe = Pipeline(calibrator, model, layers, max_length, device, threads, download)
        raw = pipe.raw(list(found.sentences))
        warn_of_nothing_known(pipe.encoder, raw)
        vectors = pipe.calibrated(raw)
        with replacing(out) as file:  # a reader sees the old file or the new one, never a part
            np.save(file, vectors, allow_pickle=False)
        typer.echo(f"{out.name}: {vectors.shape[0]} x {vectors.shape[1]}, {vectors.dtype}")


@app.command(rich_help_panel=common.SENTENCES)
def similar(
    query: Annotated[
        str,
        typer.Argument(
            help="A sentence; - reads one from standard input; after -- it may begin with a dash."
        ),
    ],
    within: Annotated[Path, typer.Option("--in", help="Sentences to search.")],
    top: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    calibrator: With = None,
    model: MaybeModel = None,
    layers: Layers = None,
    column: Column = None,
    max_length: MaybeLength = None,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    as_json: common.AsJson = False,
) -> None:
    """Find the sentences of a file that come nearest to a query."""
    with clear_errors():
        from bertflow_lite.datasets.own_files import read_sentences
        from bertflow_lite.measures.similarity import nearest

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


@app.command(rich_help_panel=common.SENTENCES)
def check(
    sentences: SentenceFile,
    model: common.Model = "minilm",
    layers: Layers = None,
    calibrate: common.Calibrator = "flow:recommended",
    column: Column = None,
    seed: common.Seed = 0,
    max_length: common.MaxLength = 64,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    as_json: common.AsJson = False,
) -> None:
    """Measure without labels how anisotropic a space is, and what calibration would change."""
    with clear_errors():
        from bertflow_lite.calibrators import make_calibrator
        from bertflow_lite.datasets.own_files import read_sentences
        from bertflow_lite.measures.diagnosis import diagnose

        calibrator = make_calibrator(calibrate, random_state=seed)
        if calibrator is None:
            raise ValueError("--calibrate none changes nothing; choose sn, natsv, whiten or flow.")
        texts = list(dict.fromkeys(read_sentences(sentences, column=column).sentences))
        encoder = common.open_encoder(model, max_length, device, threads, download)
        vectors = encode_texts(encoder, texts, layers_of(encoder, layers))
        found = diagnose(vectors, calibrator, random_state=seed)
        if as_json:
            common.say_json(found.to_dict())
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


@app.command("map", rich_help_panel=common.SENTENCES)
def draw_map(
    sentences: Annotated[
        str, typer.Argument(help=".txt, .tsv, .csv, .jsonl or .parquet; or mini-sts, the book's.")
    ],
    out: Annotated[Path | None, typer.Option(help="Page to write, .html.")] = None,
    calibrate: Annotated[
        str,
        typer.Option("--with", help="Calibrators, by commas, to fit; or a file that `fit` wrote."),
    ] = "flow:recommended",
    weights: TokenWeights = None,
    model: MaybeModel = None,
    layers: Layers = None,
    column: Column = None,
    seed: common.Seed = 0,
    max_length: MaybeLength = None,
    device: common.Device = None,
    threads: common.Threads = None,
    overwrite: common.Overwrite = False,
    download: common.Download = False,
    store: common.StoreAs = None,
) -> None:
    """Draw sentences in a plane, raw and calibrated, as one page that works without a network.

    Needs umap-learn (`pip install 'bertflow-lite[maps]'`). Sentences that occur twice are drawn
    once. With --store, the coordinates are stored for the book as well.
    """
    with clear_errors():
        from bertflow_lite.calibrators import make_calibrator
        from bertflow_lite.datasets.own_files import read_sentences
        from bertflow_lite.datasets.pairs import fingerprint_of
        from bertflow_lite.datasets.sts import OWN_SETS, load_sts
        from bertflow_lite.experiments import maps
        from bertflow_lite.experiments.runs import provenance, store_run
        from bertflow_lite.figures.maps import explore_map, explore_map_of_pairs
        from bertflow_lite.files import write_text

        umap_learn = maps.check_umap()  # before the work
        if out is None and store is None:
            raise ValueError("name the page to write: --out map.html.")
        if out is not None and out.suffix != ".html":
            raise ValueError(f"--out {out.name}: the ending must be .html.")
        if out is not None and out.exists() and not overwrite:
            raise FileExistsError(f"{out.name!r} exists; name another file or pass --overwrite.")
        if out is not None:
            common.check_place(out)
        saved = Path(calibrate) if calibrate.endswith(".safetensors") else None
        names = [] if saved else common.split_names(calibrate)
        names = [name for name in names if make_calibrator(name) is not None]
        pairs = load_sts(sentences) if sentences in OWN_SETS else None
        found = read_sentences(Path(sentences), column=column) if pairs is None else pairs
        texts = list(dict.fromkeys(found.sentences))
        if len(texts) < maps.FEWEST:
            raise ValueError(
                f"{len(texts)} different sentences are too few for a map: bring {maps.FEWEST}."
            )
        pipe = Pipeline(saved, model, layers, max_length, device, threads, download)
        spaces = maps.make_spaces(
            pipe.encoder, texts, pipe.layers, weights, names, seed, sys.stderr.isatty()
        )
        if saved:
            spaces[saved.stem] = pipe.calibrated(pipe.raw(texts))
        warn_of_nothing_known(pipe.encoder, spaces["none"])
        if sys.stderr.isatty():
            typer.echo(f"laying out {len(texts)} sentences in {len(spaces)} spaces ...", err=True)
        layout = maps.make_map(spaces, random_state=seed)
        if store is not None:
            how = provenance(
                model=pipe.encoder.name,
                fingerprint=pipe.encoder.fingerprint,
                seed=seed,
                device=str(pipe.encoder.device),
                layers=str(pipe.layers),
                data={sentences: fingerprint_of(texts)},
                umap_learn=umap_learn,
            )
            store_run("map", store, how, layout)
        if out is None:
            return
        title = f"{len(texts)} sentences of {Path(sentences).name}, {pipe.encoder.name}"
        alt = (
            f"A map by UMAP: {title}, layers {pipe.layers}. A slider moves each sentence from the "
            "raw space to what calibration makes of it; a sentence's nearest are listed below."
        )
        explorer = (
            explore_map(layout, texts, maps.describe_sentences(texts), alt)
            if pairs is None
            else explore_map_of_pairs(layout, pairs, alt)
        )
        write_text(out, explorer.page(title))
        typer.echo(f"{out.name}: {len(texts)} sentences, {', '.join(layout['steps'])}")


@app.command(rich_help_panel=common.SENTENCES)
def export(
    calibrator: Annotated[Path, typer.Argument(help="File that `fit` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the sentence-transformers model.")],
    model: MaybeModel = None,
    layers: Layers = None,
    device: common.Device = None,
    download: common.Download = False,
    workers: Annotated[
        bool,
        typer.Option("--workers", help="Let several layers work in worker processes too; slower."),
    ] = False,
) -> None:
    """Write encoder, layers and calibrator as one sentence-transformers model."""
    with clear_errors():
        from bertflow_lite.export.sentence_transformers import to_sentence_transformer

        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            raise FileExistsError(f"{out.name!r} exists; name a folder that does not.")
        common.check_place(out)
        pipe = Pipeline(calibrator, model, layers, None, device, None, download)
        if not hasattr(pipe.encoder, "model"):
            raise ValueError("word vectors have no sentence-transformers form here.")
        whole = to_sentence_transformer(
            pipe.encoder, pipe.layers, pipe.calibrator, pipe.weights, workers=workers
        )
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            whole.save(f"{scratch}/model")
            if out.exists():
                out.rmdir()  # an empty folder
            Path(scratch, "model").rename(out)  # so that a model of that name is a whole one
        typer.echo(f"{out.name}/ loads with SentenceTransformer({out.name!r})")


class Pipeline:
    """An encoder with its layers and, where a file is named, a saved calibrator.

    The file is that of a pipeline that `fit` wrote, or of a calibrator alone.  Where model, layers
    or max_length are None, the file or, without one, the defaults say them.
    """

    def __init__(
        self,
        file: Path | None,
        model: str | None,
        layers: str | None,
        max_length: int | None,
        device: str | None,
        threads: int | None,
        download: bool,
    ) -> None:
        from sklearn.pipeline import Pipeline as Steps

        from bertflow_lite.encoders.sentence_encoder import SentenceEncoder

        common.set_threads(threads)
        self.calibrator = None
        step = None
        if file is not None:
            from bertflow_lite.export.pipeline import load

            whole = load(file, device=device)
            self.calibrator = whole
            if isinstance(whole, Steps) and isinstance(whole.steps[0][1], SentenceEncoder):
                step = whole.steps[0][1]
                self.calibrator = whole[1:] if len(whole) > 1 else None
            elif model is None or (layers is None and model != "glove"):
                raise ValueError(
                    f"{file.name!r} does not say which encoder it was fitted for: name it by "
                    "--model, and its layers by --layers."
                )
        saved = step is not None
        step = SentenceEncoder(device=device) if step is None else step
        step.set_params(model=model or step.model, layers=layers or step.layers, download=download)
        if max_length is not None:
            step.max_length = max_length
        try:
            self.encoder = step.open()
        except FileNotFoundError as error:
            if model is not None or not saved:
                raise
            # Of an encoder that was a folder, only its own name is kept.
            raise FileNotFoundError(
                f"the calibrator was fitted for the encoder {step.model!r}, which is not at hand: "
                f"say by --model where it is. ({error})"
            ) from error
        self.layers = layers_of(self.encoder, layers, step.layers)
        self.weights = step.fitted_weights()

    def raw(self, texts: list[str]) -> Any:
        """Encode, without calibrating; shape (n, dim)."""
        return encode_texts(self.encoder, texts, self.layers, self.weights)

    def calibrated(self, vectors: Any) -> Any:
        """Calibrate vectors, if there is a calibrator."""
        return vectors if self.calibrator is None else self.calibrator.transform(vectors)


def layers_of(encoder: Any, layers: str | None, default: Any = "last2avg") -> Any:
    """Give the layer choice; of word vectors, which have no layers, there is the mean alone."""
    from bertflow_lite.encoders.transformer import Encoder

    if isinstance(encoder, Encoder):
        return default if layers is None else layers
    if layers not in (None, "mean"):
        raise ValueError(
            f"{encoder.name!r} is a table of word vectors and has no layers: leave out --layers "
            f"{layers}, or name another --model."
        )
    return "mean"


def warn_of_nothing_known(encoder: Any, raw: Any) -> None:
    """Say how many vectors are zero, as those of sentences without any known word are."""
    n = int((~raw.any(axis=1)).sum())
    if n:
        common.warn(
            f"{n} of {len(raw)} sentences are empty or have no word that {encoder.name!r} knows: "
            "their vectors are zero before calibration, and mean nothing"
        )


def encode_texts(encoder: Any, texts: list[str], layers: Any, weights: Any = None) -> Any:
    """Encode with a progress bar, where somebody looks."""
    return encoder.encode(texts, layers, weights=weights, progress=sys.stderr.isatty())


@app.command(rich_help_panel=common.SENTENCES)
def evaluate(
    pairs: Annotated[Path, typer.Argument(help="Rated pairs: .tsv, .csv, .jsonl or .parquet")],
    calibrate: common.Calibrators = "none,sn,whiten,flow:recommended",
    weights: TokenWeights = None,
    fit_on: Annotated[
        Path | None, typer.Option(help="Sentences to fit on; default: those of the pairs.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of --fit-on that holds the sentences.")
    ] = None,
    calibrator: With = None,
    model: MaybeModel = None,
    layers: Layers = None,
    columns: Annotated[
        str | None, typer.Option(help="Two sentence columns and the rating, by commas.")
    ] = None,
    search: Annotated[
        float | None,
        typer.Option(help="Also search: first sentences for second ones rated so high or more."),
    ] = None,
    seed: common.Seed = 0,
    max_length: MaybeLength = None,
    device: common.Device = None,
    threads: common.Threads = None,
    download: common.Download = False,
    as_json: common.AsJson = False,
) -> None:
    """Score raw and calibrated cosines against your own ratings, with intervals.

    The gain is over the raw vectors, on the same pairs: an interval without 0 says that the two
    differ. With --weights, each calibrator is scored after weighted means too. With --search 4,
    the first sentence of each pair rated 4 or more looks for its second among all second ones, and
    those of --fit-on. Quotation marks in a CSV or TSV are taken as in fit.
    """
    with clear_errors():
        from bertflow_lite.calibrators import make_calibrator
        from bertflow_lite.datasets.own_files import read_pairs, read_sentences
        from bertflow_lite.experiments import search as found_by
        from bertflow_lite.measures.diagnosis import directions_to_learn
        from bertflow_lite.measures.scores import (
            bootstrap_difference,
            bootstrap_interval,
            score_sts,
        )

        if column is not None and fit_on is None:
            raise ValueError(
                "--column is the column of --fit-on; those of the pairs are --columns."
            )
        rated = read_pairs(pairs, columns=common.split_names(columns) if columns else None)
        names = common.split_names(calibrate)
        fitted = {name: make_calibrator(name, random_state=seed) for name in names}
        own = list(rated.sentences)
        texts = read_sentences(fit_on, column=column).sentences if fit_on else own
        texts = list(dict.fromkeys(texts))  # as in fit: a repeated sentence counts once
        task = None
        if search is not None:
            task = found_by.search_of(rated, search, texts if fit_on else ())
            own += task.texts
        n = len(rated.sentences)
        pipe = Pipeline(calibrator, model, layers, max_length, device, threads, download)
        kinds: dict[str, Any] = {"": None}
        if weights is not None:
            kinds[f"{weights}, "] = pipe.encoder.token_weights(texts, weights)
        spaces = {}
        for mark, counts in kinds.items():
            vectors = encode_texts(pipe.encoder, [*own, *texts], pipe.layers, counts)
            here, base = vectors[: len(own)], vectors[len(own) :]
            for name, one in fitted.items():
                spaces[mark + name] = here if one is None else one.fit(base).transform(here)
            if counts is None:
                raw = here
                warn_of_nothing_known(pipe.encoder, raw[:n])
        if calibrator is not None:
            spaces[f"saved in {calibrator.name}"] = pipe.calibrated(pipe.raw(own))
        rows = []
        for name, space in spaces.items():
            row: dict[str, Any] = {"calibrator": name}
            if task is not None:
                hits = task.scores(space[n:])
                over = found_by.difference(hits, task.scores(raw[n:]))["ndcg@10"]
                row["search"] = found_by.means(hits) | {"gain": None if space is raw else over}
            rows.append(row)
            if task is not None and len(set(rated.gold)) == 1:
                continue  # right answers only: nothing to rank
            interval = bootstrap_interval(rated, space[:n])
            row |= {
                "spearman": round(score_sts(rated, space[:n]).all, 4),
                "low": round(interval.low, 4),
                "high": round(interval.high, 4),
            }
            gain = None if space is raw else bootstrap_difference(rated, space[:n], raw[:n])
            for key, part in (("gain", "estimate"), ("gain_low", "low"), ("gain_high", "high")):
                row[key] = None if gain is None else round(getattr(gain, part), 4)
        learned = {name: one for name, one in fitted.items() if one is not None}
        counted = bool(learned) or weights is not None
        dim = pipe.encoder.dim
        blind = [k for k, one in learned.items() if len(texts) <= directions_to_learn(one, dim)]
        if counted and fit_on is None:
            common.warn(
                f"fitted on the {len(texts)} different sentences that are scored; name others by "
                "--fit-on to see what new sentences can expect"
            )
        if blind:
            common.warn(
                f"{len(texts)} different sentences are fewer than the directions that "
                f"{', '.join(blind)} must learn: bring more, or choose sn or a small width"
            )
        if as_json:
            used = len(texts) if counted else None
            common.say_json({"pairs": len(rated), "fitted_on": used, "results": rows})
            return
        typer.echo(f"{len(rated)} rated pairs of {pairs.name}; Spearman x 100, 95 % intervals")
        if counted:
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
            if "spearman" in r
        ]
        titles = ["calibrator", "score", "interval", "gain over none [low, high]"]
        align = ("left", "right", "left", "left")
        if lines:
            typer.echo(tabulate(lines, titles, disable_numparse=True, colalign=align))
        if task is not None:
            typer.echo(
                f"\n{len(task.questions)} first sentences search {len(task.sentences)} others "
                f"for those rated {search:g} or more; the gain is in nDCG@10"
            )
            lines = [
                [
                    r["calibrator"],
                    *(f"{r['search'][name]:.1f}" for name in found_by.MEASURES),
                    "" if (gain := r["search"]["gain"]) is None else found_by.show_gain(gain),
                ]
                for r in rows
            ]
            titles = ["calibrator", *found_by.MEASURES, titles[-1]]
            typer.echo(tabulate(lines, titles, disable_numparse=True))
