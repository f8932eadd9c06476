"""What a calibrator was fitted for and on, as a few words and fingerprints that JSON can hold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from bertflow_lite.datasets.pairs import SentencePairs, fingerprint_of
from bertflow_lite.encoders.pooling import LayersArgument, resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.text import check_sentences

__all__ = ["check_encoder", "describe_data", "describe_encoder", "describe_origin"]

AnyEncoder = Encoder | WordVectorEncoder
DataArgument = str | SentencePairs | Sequence[SentencePairs] | Sequence[str]
# What `Encoder.encode` does where nothing is said.
DEFAULT_LAYERS = "last2avg"


def describe_origin(
    encoder: AnyEncoder | None,
    layers: LayersArgument | None,
    data: DataArgument | None,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Say what a calibrator was fitted for and on, as JSON can hold it.

    Parameters
    ----------
    encoder, layers, data
        What the caller says of it.
    known : mapping, optional
        What it remembers of itself (`calibrator_state.origin_of`): taken where the caller says
        nothing.

    Returns
    -------
    dict
        ``encoder`` and ``data``; None where nothing is known.
    """
    if encoder is None and layers is not None:
        raise ValueError("layers names hidden states of an encoder: pass encoder as well.")
    known = known or {}
    return {
        "encoder": known.get("encoder") if encoder is None else describe_encoder(encoder, layers),
        "data": known.get("data") if data is None else describe_data(data),
    }


def describe_encoder(encoder: AnyEncoder, layers: LayersArgument | None) -> dict[str, Any]:
    """Say which encoder and layers a calibrator is for, as JSON can hold it."""
    # Of a folder only its own name: where it lies is nobody's business.
    is_folder = os.path.isdir(encoder.name)
    described: dict[str, Any] = {
        "name": os.path.basename(os.path.abspath(encoder.name)) if is_folder else encoder.name,
        "fingerprint": encoder.fingerprint,
        "dim": encoder.dim,
    }
    if isinstance(encoder, WordVectorEncoder):
        return described
    if layers is None:
        raise ValueError("say which layers of the encoder the embeddings came from: pass layers.")
    choice = resolve_layers(layers, encoder.n_layers + 1)
    return described | {
        "max_length": encoder.max_length,
        "precision": str(encoder.autocast or encoder.model.dtype).removeprefix("torch."),
        "layers": choice.label,
        "pooling": choice.pooling,
        "hidden_states": sorted(choice.indices),
    }


def describe_data(data: DataArgument) -> dict[str, Any]:
    """Say what a calibrator was fitted on, as JSON can hold it: never the sentences themselves."""
    if isinstance(data, str):
        return {"description": data}
    parts = [data] if isinstance(data, SentencePairs) else list(data)
    pairs = [part for part in parts if isinstance(part, SentencePairs)]
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


def check_encoder(
    what: str,
    width: int,
    saved: Mapping[str, Any] | None,
    encoder: AnyEncoder,
    layers: LayersArgument | None,
    *,
    way_out: str,
    stacklevel: int | None,
) -> None:
    """Refuse an encoder or layers that are not those of the fit, and warn of what may be wrong.

    Parameters
    ----------
    what : str
        Which calibrator, for the messages: the folder where it lies, quoted.
    width : int
        Width of the vectors that it takes.
    saved : mapping or None
        `describe_encoder` at the time of the fit.
    encoder, layers
        What shall be used now.  Layers None are what `Encoder.encode` does by default: a warning
        where the fit was for others.
    way_out : str
        What can be done about an error, in a sentence.
    stacklevel : int or None
        Of the warnings, as in `warnings.warn`, counted from this function; None warns of nothing.
    """
    if saved is not None and encoder.fingerprint != saved["fingerprint"]:
        raise ValueError(
            f"{what} was fitted for the encoder {saved['name']!r} (fingerprint "
            f"{saved['fingerprint']}), not for {encoder.name!r} ({encoder.fingerprint}). {way_out}"
        )
    if encoder.dim != width:
        raise ValueError(
            f"{what} takes vectors of width {width}; {encoder.name!r} gives {encoder.dim}. "
            f"{way_out}"
        )
    if saved is None or isinstance(encoder, WordVectorEncoder):
        return
    length = saved.get("max_length", encoder.max_length)
    if encoder.max_length != length and stacklevel is not None:
        warnings.warn(
            f"{what} was fitted for sentences cut at {length} tokens, and {encoder.name!r} now "
            f"cuts at {encoder.max_length}: longer sentences get other vectors than in the fit. "
            f"Load the encoder with max_length={length}, unless that is meant.",
            UserWarning,
            stacklevel=stacklevel,
        )
    now = describe_encoder(encoder, DEFAULT_LAYERS if layers is None else layers)
    if all(now[key] == saved.get(key) for key in ("pooling", "hidden_states")):
        return
    if layers is not None:
        raise ValueError(
            f"{what} was fitted for layers {saved.get('layers')!r}, not {now['layers']!r}. "
            f"{way_out}"
        )
    if "layers" in saved and stacklevel is not None:
        warnings.warn(
            f"{what} was fitted for layers {saved['layers']!r}, and no layers were named to check "
            f"against; encode gives {DEFAULT_LAYERS!r} unless told otherwise. Give both, this call "
            f"and encode, layers={layers_argument(saved['layers'])}.",
            UserWarning,
            stacklevel=stacklevel,
        )


def layers_argument(label: str) -> str:
    """Write the label of a layer choice as code that chooses it: ``'last'``, ``4``, ``(1, -1)``."""
    if label.replace(",", "").replace("-", "").isdigit():
        return f"({label})" if "," in label else label
    return repr(label)
