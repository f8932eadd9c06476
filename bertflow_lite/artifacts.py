"""Save a fitted calibrator as one folder, and load it again without running anything from it.

The folder holds three files: ``calibrator.safetensors`` (the weights), ``calibrator.json`` (what
they are: classes, settings, versions, the encoder and layers they were fitted for, the data, and
checksums) and ``README.md`` (a model card for people).  The checksums find a file that was cut or
changed; they are no signature, so trust a folder as you trust its source.  Even a forged one runs
no code: classes come from a fixed table and weights are plain numbers (`calibrator_restore`).
"""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.pipeline import Pipeline

from bertflow_lite.artifact_format import CARD, DESCRIPTION, WEIGHTS, pack, read_files, write_files
from bertflow_lite.artifact_origin import AnyEncoder, DataArgument, check_encoder, describe_origin
from bertflow_lite.calibrator_restore import restore_steps
from bertflow_lite.calibrator_state import describe_steps, keep_origin, list_steps, origin_of
from bertflow_lite.encoders.pooling import LayersArgument
from bertflow_lite.experiments.runs import PACKAGES, _version
from bertflow_lite.folders import alone_in, put_folder
from bertflow_lite.model_card import model_card

__all__ = ["load", "read_description", "save"]

Folder = str | os.PathLike[str]


def save(
    calibrator: Any,
    folder: Folder,
    *,
    encoder: AnyEncoder | None = None,
    layers: LayersArgument | None = None,
    data: DataArgument | None = None,
    overwrite: bool = False,
) -> Path:
    """Save a fitted calibrator to a folder.

    Parameters
    ----------
    calibrator : fitted calibrator, or Pipeline of such
        A `FlowCalibrator`, `Standardizer`, `TopDirectionRemover` or `Whitener`.  Steps of a
        Pipeline that are ``"passthrough"`` change nothing and are left out.
    folder : str or path
        Where to; made if missing.  Readers see nothing of it until it is complete.
    encoder : Encoder or WordVectorEncoder, optional
        What made the embeddings it was fitted on.  `load` can then refuse another one.  Of a
        calibrator that was loaded, and not fitted since, what it was saved with is kept where
        nothing else is said here.
    layers : str, int or tuple of int, optional
        The layer choice, needed with an `Encoder`.
    data : str, SentencePairs, list of SentencePairs, or list of str, optional
        The sentences it was fitted on (their number and a fingerprint are kept, not the text), or
        a description in your own words.
    overwrite : bool, default False
        Replace a calibrator that is there already.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ValueError
        If the calibrator is not fitted, is none of ours, does not fit the encoder, or had its
        settings changed since the fit; or if the folder holds other files than a saved
        calibrator.
    FileExistsError
        If there is a calibrator already and ``overwrite`` is False.

    Examples
    --------
    >>> import numpy as np
    >>> from bertflow_lite import Standardizer
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> folder = save(Standardizer().fit(x), tempfile.mkdtemp(), data="noise, 50 rows")
    >>> load(folder).transform(x).shape, read_description(folder)["data"]
    ((50, 4), {'description': 'noise, 50 rows'})
    """
    origin = describe_origin(encoder, layers, data, origin_of(calibrator))
    files = artifact_files(calibrator, origin)
    folder = Path(os.path.realpath(folder))  # a link keeps pointing to where it pointed
    if folder.is_symlink():
        raise ValueError(f"{os.fspath(folder)!r} is a link back to itself: name a folder.")
    with alone_in(folder.parent):
        _check_target(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_files(scratch, files)
        scratch.chmod(0o755)  # mkdtemp makes it readable for its owner only
        put_folder(scratch, folder, lambda: _check_target(folder, overwrite))
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = os.fspath(folder)  # a full disk does not say where
        raise
    return folder


def load(
    folder: Folder,
    *,
    encoder: AnyEncoder | None = None,
    layers: LayersArgument | None = None,
    device: str | torch.device = "cpu",
) -> Any:
    """Load a calibrator that `save` wrote.

    Parameters
    ----------
    folder : str or path
        The folder.
    encoder : Encoder or WordVectorEncoder, optional
        What shall make the embeddings to transform: refused unless it is the one that the
        calibrator was fitted for.  None checks nothing.
    layers : str, int or tuple of int, optional
        The layer choice to be used, checked likewise; needs ``encoder``.  Pass it whenever you
        pass an `Encoder`: None checks the encoder only, and warns if the calibrator was fitted for
        other layers than `Encoder.encode` gives by default.
    device : str or torch.device, default "cpu"
        Where a flow shall run, wherever it was fitted.

    Returns
    -------
    calibrator
        Gives the same vectors as the one that was saved, bit for bit on the same machine.

    Raises
    ------
    FileNotFoundError
        If the folder or one of its files is missing.
    ValueError
        If a file was cut or changed or is none of ours, or the encoder or layers are others.

    Warns
    -----
    UserWarning
        If the encoder cuts sentences at another length than in the fit, or layers were not given
        and the fit was for others than the default.

    Examples
    --------
    >>> import numpy as np
    >>> from bertflow_lite import Whitener
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> whitener = Whitener(2).fit(x)
    >>> again = load(save(whitener, tempfile.mkdtemp()))
    >>> again, bool((again.transform(x) == whitener.transform(x)).all())
    (Whitener(n_components=2), True)
    """
    return load_checked(folder, encoder, layers, device)


def load_checked(
    folder: Folder,
    encoder: AnyEncoder | None,
    layers: LayersArgument | None,
    device: str | torch.device,
) -> Any:
    """Do what `load` says; warnings name the line that called the caller of this."""
    calibrator, description = load_with_description(folder, device)
    if encoder is not None:
        check_encoder(
            repr(os.fspath(folder)),
            list_steps(calibrator)[0][1].n_features_in_,
            description.get("encoder"),
            encoder,
            layers,
            way_out="Use what it was fitted for, fit anew, or pass encoder=None to load it "
            "unchecked.",
            stacklevel=4,
        )
    elif layers is not None:
        raise ValueError("layers names hidden states of an encoder: pass encoder as well.")
    return calibrator


def read_description(folder: Folder) -> dict[str, Any]:
    """Read what a saved calibrator says of itself, once both files are found whole.

    Parameters
    ----------
    folder : str or path
        The folder.

    Returns
    -------
    dict
        ``steps`` (classes, settings, widths, training), ``encoder``, ``data``, ``versions``,
        ``date``...

    Raises
    ------
    FileNotFoundError
        If the folder or one of its files is missing.
    ValueError
        If a file was cut or changed or is none of ours.
    """
    return read_files(Path(folder))[0]


def load_with_description(
    folder: Folder, device: str | torch.device = "cpu"
) -> tuple[Any, dict[str, Any]]:
    """Load a calibrator together with what its description says."""
    description, tensors = read_files(Path(folder))
    try:
        pipeline = description.get("pipeline")
        if not isinstance(pipeline, bool):
            raise ValueError("'pipeline' is neither true nor false")
        steps = description.get("steps")
        calibrator = restore_steps(steps, tensors, pipeline=pipeline, device=device)
    except ValueError as error:
        raise ValueError(
            f"{os.fspath(folder)!r} does not hold a calibrator of this version: "
            f"{str(error).rstrip('.')}."
        ) from error
    keep_origin(calibrator, {key: description.get(key) for key in ("encoder", "data")})
    return calibrator, description


def artifact_files(calibrator: Any, origin: Mapping[str, Any]) -> dict[str, bytes]:
    """Give the files of a saved calibrator, name to content; ``origin`` is `describe_origin`'s."""
    steps, tensors = describe_steps(calibrator)
    encoder = origin["encoder"]
    if encoder is not None and encoder["dim"] != steps[0]["width_in"]:
        raise ValueError(
            f"the calibrator takes vectors of width {steps[0]['width_in']}, and "
            f"{encoder['name']!r} gives {encoder['dim']}: it was fitted for another encoder."
        )
    content = {
        "pipeline": isinstance(calibrator, Pipeline),
        "steps": steps,
        **origin,
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    description, files = pack(content, tensors)
    return files | {CARD: model_card(description).encode()}


def _check_target(folder: Path, overwrite: bool) -> None:
    """Refuse to write over anything but a saved calibrator, and over that unless asked to."""
    if not folder.exists():
        return
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    foreign = [name for name in there if name not in (WEIGHTS, DESCRIPTION, CARD)]
    if foreign:
        raise ValueError(
            f"{os.fspath(folder)!r} holds something else than a saved calibrator "
            f"({', '.join(foreign[:3])}): name another folder."
        )
    if there and not overwrite:
        raise FileExistsError(
            f"{os.fspath(folder)!r} holds a calibrator already. Pass overwrite=True to replace it, "
            "or name another folder."
        )
