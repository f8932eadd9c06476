"""Whole models for sentence-transformers, from a pipeline or its parts.

Since version 6, sentence-transformers loads a class from outside its own package only with
``trust_remote_code=True``, also when that class is installed and nothing is remote.  So a model is
made of sentence-transformers' own modules alone: ``SentenceTransformer(folder)`` loads it anywhere,
even without this package.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch
from sklearn.pipeline import Pipeline
from torch import nn

from bertflow_lite.encoders.pooling import LayerChoice, LayersArgument, resolve_layers
from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["to_sentence_transformer"]


def to_sentence_transformer(
    encoder: Encoder | WordVectorEncoder | Pipeline,
    layers: LayersArgument = "last2avg",
    calibrator: Any | None = None,
) -> SentenceTransformer:
    """Build a sentence-transformers model that gives the same vectors as our pipeline.

    Parameters
    ----------
    encoder : Encoder, or Pipeline of a SentenceEncoder and calibrators
        Its weights are copied.  A pipeline says layers and calibrator itself.
    layers : str, int or tuple of int, default "last2avg"
        The layer choice that the calibrator was fitted on.
    calibrator : fitted calibrator or Pipeline of such, optional
        None exports the raw embeddings.

    Returns
    -------
    SentenceTransformer
        On the encoder's device, comparing by cosine.

    Raises
    ------
    ImportError
        If sentence-transformers 6 or later is not installed.
    ValueError
        If the encoder is no transformer; if the calibrator is not fitted, or of another width.

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
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Module  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this needs sentence-transformers 6 or later. Run: "
            "pip install 'sentence-transformers>=6'"
        ) from error
    from bertflow_lite.export.dense import dense_modules
    from bertflow_lite.export.pipeline import calibrators_of

    if isinstance(encoder, Pipeline) and isinstance(encoder.steps[0][1], SentenceEncoder):
        if calibrator is not None:
            raise ValueError("a pipeline brings its own calibrator: leave calibrator out.")
        step, rest = encoder.steps[0][1], encoder[1:]
        encoder, layers = step._open(), step.layers
        calibrator = rest if len(rest) else None
    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"{encoder!r} is no transformer; only transformers become a SentenceTransformer here."
        )
    choice = resolve_layers(layers, encoder.n_layers + 1)
    modules: list[nn.Module] = [_transformer(encoder), *_plain_pooling(encoder, choice)]
    if calibrator is not None:
        width = int(calibrators_of(calibrator)[0].n_features_in_)
        if width != encoder.dim:
            raise ValueError(
                f"the calibrator takes vectors of width {width}, and {encoder.name!r} gives "
                f"{encoder.dim}: it was fitted for another encoder."
            )
        modules += dense_modules(calibrator)
    return SentenceTransformer(
        modules=modules, device=str(encoder.device), similarity_fn_name="cosine"
    )


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
