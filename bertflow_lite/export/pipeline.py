"""Save and load a pipeline of encoder and calibrator, or a calibrator alone, as one file."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from bertflow_lite.calibrators import CALIBRATORS
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.datasets.pairs import SentencePairs, fingerprint_of
from bertflow_lite.devices import find_device
from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
from bertflow_lite.files import write_text
from bertflow_lite.saving import (
    Savable,
    describe,
    join,
    make_again,
    package_versions,
    part,
    read_file,
    write_file,
)
from bertflow_lite.text import check_sentences

__all__ = ["DataArgument", "load", "read_about", "save"]

DataArgument = str | SentencePairs | Sequence[SentencePairs] | Sequence[str]


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    data: DataArgument | None = None,
    card: bool = False,
    overwrite: bool = False,
) -> Path:
    """Save a fitted pipeline or calibrator as one ``.safetensors`` file.

    Parameters
    ----------
    model : Pipeline, or fitted calibrator
        A Pipeline of a `SentenceEncoder` and calibrators, or of calibrators alone; or one
        `FlowCalibrator`, `Standardizer`, `TopDirectionRemover` or `Whitener`.  Of an encoder its
        name, settings and fingerprint are kept, not its weights.  ``"passthrough"`` steps are
        left out.
    path : str or path
        Ends in ``.safetensors``; its folder is made if missing.
    data : str, SentencePairs, list of SentencePairs, or list of str, optional
        The sentences it was fitted on (their number and a fingerprint are kept, not the text), or
        a description in your own words.
    card : bool, default False
        Write a model card beside it, the same name with the ending ``.md``.
    overwrite : bool, default False
        Replace a file that is there.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If a step is not fitted, is none of ours, or had its settings changed since the fit; or
        for another ending.
    FileExistsError
        If there is a file already and ``overwrite`` is False.

    Examples
    --------
    >>> import tempfile
    >>> import bertflow_lite as bf
    >>> from sklearn.pipeline import make_pipeline
    >>> sentences = bf.load_sts("mini-sts").sentences[:100]
    >>> pipeline = make_pipeline(bf.SentenceEncoder("glove"), bf.Whitener(16)).fit(sentences)
    >>> path = bf.save(pipeline, tempfile.mkdtemp() + "/mine.safetensors", data=sentences)
    >>> bf.load(path).transform(["A cat sat on a mat."]).shape
    (1, 16)
    """
    path = Path(path)
    names, steps = _steps_of(model)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path.name!r} must end in .safetensors, the format that is written.")
    path = Path(os.path.realpath(path))  # a link keeps pointing to where it pointed
    if path.is_symlink():
        raise ValueError(f"{os.fspath(path)!r} is a link back to itself: name a file.")
    beside = [path, path.with_suffix(".md")] if card else [path]
    for place in beside:
        if place.is_dir():
            raise ValueError(f"{place.name!r} is a folder: name a file.")
        if place.exists() and not overwrite:
            raise FileExistsError(
                f"{place.name!r} exists already. Pass overwrite=True to replace it, or name "
                "another file."
            )
    described, arrays = zip(*map(describe, steps), strict=True)
    content = {
        "pipeline": isinstance(model, Pipeline),
        "steps": [{"name": n, **d} for n, d in zip(names, described, strict=True)],
        "data": None if data is None else _describe_data(data),
        "versions": {"python": platform.python_version()} | package_versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    write_file(path, content, join(arrays))
    if card:
        write_text(path.with_suffix(".md"), _model_card(content, path.name))
    return path


def load(
    path: str | os.PathLike[str], *, model: str | None = None, device: str | None = None
) -> Any:
    """Load what `save` wrote; nothing in it is executed.

    Parameters
    ----------
    path : str or path
        The file.
    model : str, optional
        Where the encoder is now, if it was a folder and has moved.  Its fingerprint must be that
        of the fit, which is checked when it is opened.
    device : str, optional
        Where encoder and flow shall run; default: the GPU if there is one, else the CPU.

    Returns
    -------
    Pipeline or calibrator
        Gives the same vectors as what was saved, bit for bit on the same machine.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from bertflow_lite import Whitener
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> whitener = Whitener(2).fit(x)
    >>> again = load(save(whitener, tempfile.mkdtemp() + "/whitener.safetensors"))
    >>> again, bool((again.transform(x) == whitener.transform(x)).all())
    (Whitener(n_components=2), True)
    """
    content, arrays = read_file(path)
    place = None if device is None else str(find_device(device))
    try:
        return _restore(content, arrays, model, place)
    except ValueError as error:
        raise ValueError(
            f"{os.fspath(path)!r} holds nothing that this version can use: "
            f"{str(error).rstrip('.')}."
        ) from error


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a saved file says of itself, once it is found whole.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    dict
        ``steps`` (classes, settings, what the fit found), ``data``, ``versions``, ``date``.
    """
    return read_file(path)[0]


def _restore(
    content: dict[str, Any], arrays: dict[str, NDArray[Any]], model: str | None, device: str | None
) -> Any:
    described, whole = content.get("steps"), content.get("pipeline")
    if not isinstance(described, list) or not described or not isinstance(whole, bool):
        raise ValueError("'steps' is not a list of steps")
    if len(described) > 1 and not whole:
        raise ValueError("there are several steps, but no pipeline")
    steps: list[tuple[str, Any]] = []
    width: int | None = None
    for number, said in enumerate(described):
        step = make_again(said, part(arrays, number))
        if not isinstance(said.get("name"), str):
            raise ValueError(f"step {number} has no name")
        if isinstance(step, SentenceEncoder):
            if number:
                raise ValueError("an encoder is no first step")
            step.model = model or step.model
        elif width is not None and step.n_features_in_ != width:
            raise ValueError(f"step {number} takes width {step.n_features_in_}, but gets {width}")
        width = int(step._fitted_width)
        if hasattr(step, "device"):
            step.device = device
        if isinstance(step, FlowCalibrator):
            step.flow_.to(find_device(device))
        steps.append((said["name"], step))
    if arrays:
        raise ValueError(
            f"there are arrays that belong to no step: {', '.join(sorted(arrays)[:5])}"
        )
    if model is not None and not isinstance(steps[0][1], SentenceEncoder):
        raise ValueError("it has no encoder, so that model names nothing: leave it out")
    if not whole:
        return steps[0][1]
    if len({name for name, _ in steps}) < len(steps):
        raise ValueError("two steps have the same name")
    return Pipeline(steps)


def calibrators_of(model: Any) -> list[Any]:
    """Give the fitted calibrators of a pipeline, or the one that is given, in their order."""
    steps = [step for step in _steps_of(model)[1] if not isinstance(step, SentenceEncoder)]
    for step in steps:
        describe(step)  # refuses what is none of ours, and settings changed since the fit
    return steps


def _steps_of(model: Any) -> tuple[list[str], list[Any]]:
    named = [("", model)]
    if isinstance(model, Pipeline):
        named = [(str(n), s) for n, s in model.steps if s not in (None, "passthrough")]
    if not named:
        raise ValueError("the pipeline has no steps that do anything: there is nothing to save.")
    for _, step in named:
        if isinstance(step, Savable):  # `describe` refuses all else
            check_is_fitted(step)
    return [name for name, _ in named], [step for _, step in named]


def _describe_data(data: DataArgument) -> dict[str, Any]:
    """Say what it was fitted on: never the sentences themselves."""
    if isinstance(data, str):
        return {"description": data}
    parts = [data] if isinstance(data, SentencePairs) else list(data)
    pairs = [one for one in parts if isinstance(one, SentencePairs)]
    if pairs and len(pairs) == len(parts):
        names = [f"{each.name} ({each.split}, {len(each)} pairs)" for each in pairs]
        return {
            "description": ", ".join(names),
            "sentences": sum(2 * len(each) for each in pairs),
            "fingerprint": " ".join(each.fingerprint for each in pairs),
        }
    texts = check_sentences(parts)  # type: ignore[arg-type]
    return {
        "description": f"{len(texts)} sentences",
        "sentences": len(texts),
        "fingerprint": fingerprint_of(texts),
    }


def _model_card(content: Mapping[str, Any], name: str) -> str:
    """Fill the template with what the file says of itself."""
    kinds = {cls.__name__: cls.summary for cls in CALIBRATORS.values()}
    kinds["SentenceEncoder"] = "an encoder turns sentences into vectors"
    steps, data = content["steps"], content["data"]
    rows: list[tuple[str, Any]] = []
    for step in steps:
        settings = ", ".join(f"{key}={value!r}" for key, value in step["settings"].items())
        rows.append((step["class"], settings or "no settings"))
        rows += [(key.replace("_", " "), said) for key, said in step["facts"].items()
                 if key in ("fingerprint", "hidden_states", "training")]  # fmt: skip
    rows.append(("data", "not recorded" if data is None else data["description"]))
    if data is not None and "fingerprint" in data:
        rows.append(("fingerprint of the data", data["fingerprint"]))
    rows.append(("labels", "none: fitting needs sentences only"))
    versions = ", ".join(f"{package} {number}" for package, number in content["versions"].items())
    rows += [("versions", versions), ("date", content["date"])]
    encodes = steps[0]["class"] == "SentenceEncoder"
    thing, given = ("pipeline", "sentences") if encodes else ("calibrator", "embeddings")
    width = steps[0]["facts"]["n_features_in"] if not encodes else None
    template = Path(__file__).resolve().parents[1] / "model_card.md"
    return template.read_text(encoding="utf-8").format(
        title="An encoder with its calibrator" if encodes else "A calibrator of embeddings",
        takes="sentences" if encodes else f"vectors of width {width}",
        width=steps[-1]["facts"]["n_features_out"],
        what="; then ".join(kinds[step["class"]] for step in steps),
        rows="\n".join(f"| {key} | {_cell(said)} |" for key, said in rows),
        code=f"{thing} = bf.load({name!r})\nvectors = {thing}.transform({given})",
    )


def _cell(said: Any) -> str:
    """Keep what would end a cell or a row out of it."""
    if isinstance(said, dict):
        said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in said.items())
    return " ".join(str(said).replace("|", "/").split())
