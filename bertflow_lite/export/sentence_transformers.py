"""Whole models for sentence-transformers, from an encoder, a layer choice and a calibrator.

Since version 6, sentence-transformers loads a class from outside its own package only with
``trust_remote_code=True``, also when that class is installed and nothing is remote.  There are
two ways around the flag.  A *portable* model is made of sentence-transformers' own modules alone,
so ``SentenceTransformer(folder)`` loads it anywhere, even without this package.  One with this
package's modules (`st`) is loaded by `load_sentence_transformer`, which knows these two and
refuses all others.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertflow_lite.artifact_origin import DataArgument, check_encoder, describe_origin
from bertflow_lite.artifacts import artifact_files
from bertflow_lite.calibrator_state import origin_of
from bertflow_lite.encoders.pooling import LayerChoice, LayersArgument, resolve_layers
from bertflow_lite.encoders.transformer import Encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["load_sentence_transformer", "to_sentence_transformer"]


def to_sentence_transformer(
    encoder: Encoder,
    layers: LayersArgument = "last2avg",
    calibrator: Any | None = None,
    *,
    portable: bool = True,
    data: DataArgument | None = None,
) -> SentenceTransformer:
    """Build a sentence-transformers model that gives the same vectors as our pipeline.

    Parameters
    ----------
    encoder : Encoder
        From `load_encoder`; its weights are copied.
    layers : str, int or tuple of int, default "last2avg"
        The layer choice that the calibrator was fitted on.
    calibrator : fitted calibrator or Pipeline of such, optional
        None exports the raw embeddings.
    portable : bool, default True
        Use sentence-transformers' own modules only (`st_portable`), so that the saved model loads
        by ``SentenceTransformer(folder)`` everywhere.  False uses `modules.LayerPooling` and
        `modules.Calibration`: smaller, and calibrated in full precision also when the
        transformer is in half precision, and loaded by `load_sentence_transformer`.
    data : optional
        What the calibrator was fitted on, kept in its files; needs ``portable=False``.  One that
        was loaded remembers it.

    Returns
    -------
    SentenceTransformer
        On the encoder's device, comparing by cosine.

    Raises
    ------
    ValueError
        If the encoder is no transformer; if the calibrator is not fitted, of another width, or was
        loaded and had been saved for another encoder or other layers; if there is no place for
        ``data``.

    Examples
    --------
    >>> import bertflow_lite as bf
    >>> encoder = bf.load_encoder("minilm")
    >>> sentences = bf.load_sts("mini-sts").sentences[:40]
    >>> whitener = bf.Whitener(16).fit(encoder.encode(sentences, 4))
    >>> model = to_sentence_transformer(encoder, 4, whitener)
    >>> model.encode(["A cat sat on a mat."]).shape
    (1, 16)
    """
    st = _own_modules()
    from sentence_transformers import SentenceTransformer

    from bertflow_lite.export.dense import dense_modules

    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"{encoder!r} is no transformer; only transformers become a SentenceTransformer here."
        )
    if data is not None and (portable or calibrator is None):
        raise ValueError(
            "data tells what a calibrator was fitted on, and only a model with portable=False and "
            "a calibrator has a file for it: pass both, or leave data out."
        )
    choice = resolve_layers(layers, encoder.n_layers + 1)
    modules: list[nn.Module] = [_transformer(encoder)]
    if portable:
        modules += _plain_pooling(encoder, choice)
    else:
        modules.append(st.LayerPooling(list(choice.indices), encoder.dim, choice.pooling))
    if calibrator is not None:
        known = origin_of(calibrator)
        if known is not None:
            check_encoder(
                "the calibrator",
                encoder.dim,  # the width is compared below
                known["encoder"],
                encoder,
                layers,
                way_out="Export it with what it was fitted for, or fit anew.",
                stacklevel=None,
            )
        # Also where the files are not written: this is where widths that differ are found.
        artifact_files(calibrator, describe_origin(encoder, layers, data, known))
        modules += (
            dense_modules(calibrator)
            if portable
            else [st.Calibration(calibrator, encoder=encoder, layers=layers, data=data)]
        )
    return SentenceTransformer(
        modules=modules, device=str(encoder.device), similarity_fn_name="cosine"
    )


def load_sentence_transformer(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    model_kwargs: dict[str, Any] | None = None,
) -> SentenceTransformer:
    """Load a saved model that has `LayerPooling` or `Calibration` in it, without remote code.

    Parameters
    ----------
    folder : str or path
        Where ``model.save`` wrote it.
    device : str, optional
        Default: that of `SentenceTransformer`.
    model_kwargs : dict, optional
        For the transformer, such as ``{"dtype": torch.bfloat16}``.

    Returns
    -------
    SentenceTransformer

    Raises
    ------
    FileNotFoundError
        If there is no such model.
    ValueError
        If it names a module that neither sentence-transformers nor this package has, or a file
        was cut or changed.
    """
    st = _own_modules()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import import_from_string

    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"there is no saved SentenceTransformer in {os.fspath(folder)!r}.")
    entries = _read_json(folder / "modules.json")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("type"), str) and "path" in entry
        for entry in entries
    ):
        raise ValueError(f"{folder / 'modules.json'} is no list of modules: save the model again.")
    own = {f"{cls.__module__}.{cls.__name__}": cls for cls in (st.LayerPooling, st.Calibration)}
    modules: list[nn.Module] = []
    for entry in entries:
        kind = entry["type"]
        if kind not in own and not kind.startswith("sentence_transformers."):
            raise ValueError(
                f"the model names the module {kind!r}, which is neither sentence-transformers' nor "
                "ours: it is not run."
            )
        module_class: Any = own.get(kind) or import_from_string(kind)
        modules.append(
            module_class.load(
                os.fspath(folder),
                subfolder=entry["path"],
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs=model_kwargs,
            )
        )
    settings = folder / "config_sentence_transformers.json"
    config = _read_json(settings) if settings.is_file() else {}
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    return SentenceTransformer(
        modules=modules,
        device=device,
        **{name: config[name] for name in names if config.get(name) is not None},
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} was cut or changed ({error}): save the model again.") from error


def _own_modules() -> Any:
    """Import this package's modules, whose import says what is missing where it fails."""
    from bertflow_lite.export import modules as st

    return st


def _plain_pooling(encoder: Encoder, choice: LayerChoice) -> list[nn.Module]:
    """Average hidden states, then tokens, by modules that sentence-transformers has."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

    first = min(choice.indices)
    weights = torch.zeros(encoder.n_layers + 1 - first)
    for index in choice.indices:
        weights[index - first] += 1
    average = WeightedLayerPooling(
        encoder.dim,
        num_hidden_layers=encoder.n_layers,
        layer_start=first,
        layer_weights=nn.Parameter(weights, requires_grad=False),
    )
    return [average, Pooling(encoder.dim, "cls" if choice.pooling == "cls" else "mean")]


def _transformer(encoder: Encoder) -> nn.Module:
    """Copy an encoder into a module that gives all hidden states."""
    from sentence_transformers.base.modules import Transformer

    with tempfile.TemporaryDirectory() as scratch:
        encoder.model.save_pretrained(scratch)
        encoder.tokenizer.save_pretrained(scratch)
        module = Transformer(
            scratch,
            # Named, since a chat template would turn sentences into messages.
            modality_config={
                "text": {"method": "forward", "method_output_name": "last_hidden_state"}
            },
            module_output_name="token_embeddings",
            max_seq_length=encoder.max_length,
            unpad_inputs=False,
            model_kwargs={"dtype": encoder.model.dtype, "local_files_only": True},
            config_kwargs={"output_hidden_states": True, "local_files_only": True},
            processor_kwargs={"local_files_only": True},
        )
    module.model.eval().requires_grad_(False)
    return module
