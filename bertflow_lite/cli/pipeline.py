"""What the commands for your own sentences share: an encoder, its layers, a saved calibrator."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertflow_lite.cli.common import warn

__all__ = [
    "Pipeline",
    "encode_texts",
    "layers_of",
    "open_encoder",
    "warn_of_nothing_known",
    "write_array",
]


class Pipeline:
    """An encoder with its layers and, where one is named, a saved calibrator.

    Parameters
    ----------
    folder : Path or None
        Of a saved calibrator.
    model, layers, max_length
        None takes what the calibrator was fitted for or, without one, the defaults.
    device, threads, download
        As on the command line.
    """

    def __init__(
        self,
        folder: Path | None,
        model: str | None,
        layers: str | None,
        max_length: int | None,
        device: str | None,
        threads: int | None,
        download: bool,
    ) -> None:
        saved: dict[str, Any] = {}
        if folder is not None:
            from bertflow_lite.artifacts import load, read_description

            saved = read_description(folder)["encoder"] or {}
            if not saved and (model is None or (layers is None and model != "glove")):
                raise ValueError(
                    f"{folder.name!r} does not say which encoder it was fitted for: name it by "
                    "--model, and its layers by --layers."
                )
        self.saved = saved
        length = saved.get("max_length", 64) if max_length is None else max_length
        name = model or saved.get("name", "minilm")
        try:
            self.encoder = open_encoder(name, length, device, threads, download)
        except FileNotFoundError as error:
            if model is not None or not saved:
                raise
            # Of an encoder that was a folder, only its own name is kept.
            raise FileNotFoundError(
                f"the calibrator was fitted for the encoder {name!r}, which is not at hand: say by "
                f"--model where it is. ({error})"
            ) from error
        self.layers = layers_of(self.encoder, layers, saved.get("layers") or "last2avg")
        self.calibrator = None
        if folder is not None:
            with self._said_for_commands(folder):
                self.calibrator = load(folder, encoder=self.encoder, layers=self.layers)

    @contextlib.contextmanager
    def _said_for_commands(self, folder: Path) -> Iterator[None]:
        """Put what `load` says about the encoder into the words of the command line."""
        about_length = "was fitted for sentences cut at"
        length = self.saved.get("max_length")
        now = getattr(self.encoder, "max_length", length)
        try:
            with warnings.catch_warnings():
                if length is not None:
                    warnings.filterwarnings("ignore", f".*{about_length}", UserWarning)
                yield
        except ValueError as error:
            said, found, _ = str(error).partition(" Use what it was fitted for")
            if not found:
                raise
            names = (("--model", self.saved.get("name")), ("--layers", self.saved.get("layers")))
            options = " ".join(f"{option} {name}" for option, name in names if name)
            raise ValueError(
                f"{said} Use what it was fitted for{f' ({options})' if options else ''}, or fit "
                "anew for this one."
            ) from None
        if length != now:
            warn(
                f"{folder.name!r} {about_length} {length} tokens, and now they are cut at {now}: "
                "longer ones get other vectors than in the fit. Leave out --max-length, or give "
                f"--max-length {length}, unless that is meant."
            )

    def raw(self, texts: list[str]) -> Any:
        """Encode, without calibrating; shape (n, dim)."""
        return encode_texts(self.encoder, texts, self.layers)

    def calibrated(self, vectors: Any) -> Any:
        """Calibrate vectors, if there is a calibrator."""
        return vectors if self.calibrator is None else self.calibrator.transform(vectors)

    def __call__(self, texts: list[str]) -> Any:
        """Encode and calibrate."""
        return self.calibrated(self.raw(texts))


def open_encoder(
    model: str, max_length: int, device: str | None, threads: int | None, download: bool
) -> Any:
    """Load an encoder, and set the number of CPU threads if one is given."""
    import torch

    from bertflow_lite.encode import load_encoder

    if threads is not None:
        torch.set_num_threads(threads)
    return load_encoder(model, max_length=max_length, device=device, download=download)


def layers_of(encoder: Any, layers: str | None, default: str = "last2avg") -> str | None:
    """Give the layer choice, or None for word vectors, which have no layers.

    Raises
    ------
    ValueError
        If layers of word vectors are asked for.
    """
    from bertflow_lite.encode import Encoder

    if isinstance(encoder, Encoder):
        return default if layers is None else layers
    if layers not in (None, "mean"):
        raise ValueError(
            f"{encoder.name!r} is a table of word vectors and has no layers: leave out --layers "
            f"{layers}, or name another --model."
        )
    return None


def warn_of_nothing_known(encoder: Any, raw: Any) -> None:
    """Say how many vectors are zero, as those of sentences without any known word are."""
    n = int((~raw.any(axis=1)).sum())
    if n:
        warn(
            f"{n} of {len(raw)} sentences are empty or have no word that {encoder.name!r} knows: "
            "their vectors are zero before calibration, and mean nothing"
        )


def encode_texts(encoder: Any, texts: list[str], layers: str | None) -> Any:
    """Encode with a progress bar, where somebody looks."""
    progress = sys.stderr.isatty()
    if layers is None:
        return encoder.encode(texts, progress=progress)
    return encoder.encode(texts, layers, progress=progress)


def write_array(path: Path, vectors: Any) -> None:
    """Write a .npy file so that a reader sees the old file or the new one, never a part."""
    import numpy as np

    from bertflow_lite.atomic import replacing

    with replacing(path) as file:
        np.save(file, vectors, allow_pickle=False)
