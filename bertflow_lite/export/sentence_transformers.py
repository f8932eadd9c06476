"""Whole models for sentence-transformers, from a pipeline or its parts.

Since version 6, sentence-transformers loads a class from outside its own package only with
``trust_remote_code=True``, also when that class is installed and nothing is remote.  So a model is
made of sentence-transformers' own modules alone: ``SentenceTransformer(folder)`` loads it anywhere,
even without this package.
"""

from __future__ import annotations

import copy
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import nn

from bertflow_lite.encoders.folder import LONG, SHORT
from bertflow_lite.encoders.pooling import LayerChoice, LayersArgument, resolve_layers
from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
from bertflow_lite.encoders.token_weights import TokenWeights
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["to_sentence_transformer"]


def to_sentence_transformer(
    encoder: Encoder | WordVectorEncoder | Pipeline,
    layers: LayersArgument = "last2avg",
    calibrator: Any | None = None,
    weights: TokenWeights | None = None,
    *,
    workers: bool = False,
) -> SentenceTransformer:
    """Build a sentence-transformers model that gives the same vectors as our pipeline.

    Parameters
    ----------
    encoder : Encoder, or Pipeline of a SentenceEncoder and calibrators
        Its weights are copied; of a choice of one layer, those of the blocks up to it.  A pipeline
        says layers and calibrator itself.
    layers : str, int or tuple of int, default "last2avg"
        The layer choice that the calibrator was fitted on.
    calibrator : fitted calibrator or Pipeline of such, optional
        None exports the raw embeddings.
    weights : TokenWeights, optional
        What each token counts in the mean; it becomes sentence-transformers' own ``WordWeights``,
        which stands before the mean.  A pipeline says it itself.
    workers : bool, default False
        Whether a saved copy of a choice of several layers must run in worker processes too, where
        transformers records no hidden states (see Notes).

    Returns
    -------
    SentenceTransformer
        On the encoder's device, comparing by cosine.  It can be sent to worker processes
        (``encode(..., device=["cpu", "cpu"])``, pickle, joblib).

    Raises
    ------
    ImportError, ValueError
        If sentence-transformers 6 or later is not installed; if the encoder is no transformer, or
        one that sentence-transformers runs otherwise (which is tried on two sentences); if the
        calibrator is not fitted, or of another width.

    Notes
    -----
    A choice of several layers needs hidden states, which transformers records only in the process
    that loaded the model: what is loaded from the folder where it was saved stops in a worker with
    ``KeyError: 'token_embeddings'``.  With ``workers=True`` the model runs once for each layer of
    the choice, up to that layer: the vectors are the same, "last2avg" costs nearly twice as much.

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
        from sentence_transformers.base.modules import Module  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "this needs sentence-transformers 6 or later. Run: "
            "pip install 'sentence-transformers>=6'"
        ) from error
    from bertflow_lite.export.dense import SentenceTransformer, dense_modules
    from bertflow_lite.export.pipeline import calibrators_of

    if isinstance(encoder, Pipeline) and isinstance(encoder.steps[0][1], SentenceEncoder):
        if calibrator is not None or weights is not None:
            raise ValueError(
                "a pipeline brings its own calibrator and weights: leave calibrator and weights "
                "out."
            )
        step, rest = encoder.steps[0][1], encoder[1:]
        encoder, layers, weights = step.open(), step.layers, step.fitted_weights()
        calibrator = rest if len(rest) else None
    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"{encoder!r} is no transformer; only transformers become a SentenceTransformer here."
        )
    choice = resolve_layers(layers, encoder.n_layers + 1)
    modules = _encoder_modules(encoder, choice, weights, workers)
    if calibrator is not None:
        width = int(calibrators_of(calibrator)[0].n_features_in_)
        if width != encoder.dim:
            raise ValueError(
                f"the calibrator takes vectors of width {width}, and {encoder.name!r} gives "
                f"{encoder.dim}: it was fitted for another encoder."
            )
        modules += dense_modules(calibrator)
    # Offline, since saving it would ask the hub for a model of the encoder's name.
    return SentenceTransformer(
        modules=modules,
        device=str(encoder.device),
        similarity_fn_name="cosine",
        local_files_only=True,
    )


def _encoder_modules(
    encoder: Encoder, choice: LayerChoice, weights: TokenWeights | None, workers: bool
) -> list[nn.Module]:
    """Give modules that make the same vectors from sentences, or say why there are none."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    what = f"{encoder.name!r} (a {type(encoder.model).__name__}) cannot be exported"
    if not encoder.mask_works:
        raise ValueError(
            f"{what}: padding changes its vectors, and sentence-transformers pads its batches."
        )
    asked = "cls" if choice.pooling == "cls" else choice.indices
    expected = encoder.encode([SHORT, LONG], asked, weights=weights)
    failed: object = "it gives other vectors there"
    for make in (_repeated,) if workers else (_repeated_once, _recorded):
        try:
            modules = make(encoder, choice)
            if weights is not None:
                modules = [
                    part
                    for module in modules
                    for part in (
                        (_word_weights(encoder, weights), module)
                        if isinstance(module, Pooling)
                        else (module,)
                    )
                ]
            found = SentenceTransformer(modules=modules, device=str(encoder.device)).encode(
                [SHORT, LONG], show_progress_bar=False
            )
        except Exception as error:  # of sentence-transformers, for a kind it does not know
            failed = error
            continue
        if np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()):
            return modules
    if workers:
        what += " with workers=True"
        failed = (
            f"with fewer blocks it does not end in the hidden states of layers {choice.label!r}. "
            "Without workers=True it may; or choose the last layer"
        )
    raise ValueError(f"{what}: {failed}.")


def _repeated_once(encoder: Encoder, choice: LayerChoice) -> list[nn.Module]:
    if len(set(choice.indices)) > 1:
        raise ValueError("it gives no hidden states there")
    return _repeated(encoder, choice)


def _repeated(encoder: Encoder, choice: LayerChoice) -> list[nn.Module]:
    """Run the model up to each layer of the choice, and average what is pooled.

    The one place of a features dictionary that a `Pooling` puts beside its own result is that for
    a [CLS] vector: there the sum so far goes along.
    """
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    indices = sorted(set(choice.indices))
    if len(indices) == 1:
        return [_transformer(encoder, indices[0]), Pooling(encoder.dim, choice.pooling)]
    modules: list[nn.Module] = []
    for index in indices:
        share = torch.eye(encoder.dim) * (choice.indices.count(index) / len(choice.indices))
        if modules:
            pooling = Pooling(encoder.dim, ("cls", choice.pooling))
            share = torch.cat([torch.eye(encoder.dim), share], dim=1)
        else:
            pooling = Pooling(encoder.dim, choice.pooling)
        dense = Dense(
            share.shape[1],
            encoder.dim,
            bias=False,
            activation_function=nn.Identity(),
            init_weight=share,
            module_output_name="sentence_embedding"
            if index == indices[-1]
            else "cls_token_embeddings",
        )
        modules += [_transformer(encoder, index), pooling, dense.requires_grad_(False)]
    return modules


def _recorded(encoder: Encoder, choice: LayerChoice) -> list[nn.Module]:
    """Run the model once and average the hidden states that transformers records."""
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
    return [_transformer(encoder, None), average, Pooling(encoder.dim, choice.pooling)]


def _word_weights(encoder: Encoder, weights: TokenWeights) -> nn.Module:
    """Weigh tokens by a module that sentence-transformers has, which looks weights up by id.

    Its list of words is the vocabulary in the order of the ids, so that nothing depends on how
    it treats capitals.
    """
    from sentence_transformers.sentence_transformer.modules import WordWeights

    words = [""] * len(weights.values)
    for word, number in encoder.tokenizer.get_vocab().items():
        if number < len(words):
            words[number] = word
    # Ids without a word get a name that no word has.
    words = [word or f"<no word {number}>" for number, word in enumerate(words)]
    module = WordWeights(words, dict(zip(words, weights.values.tolist(), strict=True)))
    return module.requires_grad_(False)


def _up_to(encoder: Encoder, index: int) -> Any:
    """Give a model whose last hidden state may be the one of that index.

    A model of fewer blocks often ends in that state; in others a last normalization comes between.
    """
    if index == encoder.n_layers:
        return encoder.model
    config = copy.deepcopy(encoder.model.config)
    config.num_hidden_layers = index
    with torch.random.fork_rng(devices=[]):
        model = type(encoder.model)(config).to(encoder.model.dtype)
    missing = model.load_state_dict(encoder.model.state_dict(), strict=False).missing_keys
    if missing:
        raise ValueError(f"a shorter one has other weights ({missing[0]})")
    return model


def _transformer(encoder: Encoder, index: int | None) -> nn.Module:
    """Copy the model, up to a hidden state, into a module that gives it; for None, all of them."""
    from sentence_transformers.base.modules import Transformer

    model = encoder.model if index is None else _up_to(encoder, index)
    local = {"local_files_only": True, "trust_remote_code": False}
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        encoder.tokenizer.save_pretrained(scratch)
        module = Transformer(
            scratch,
            # Named, since a chat template would turn sentences into messages.
            modality_config={
                "text": {"method": "forward", "method_output_name": "last_hidden_state"}
            },
            # Where all states are averaged, the last shall not stand in for the average.
            module_output_name="last_hidden_state" if index is None else "token_embeddings",
            max_seq_length=encoder.max_length,
            unpad_inputs=False,
            model_kwargs={"dtype": encoder.model.dtype, **local},
            config_kwargs={"output_hidden_states": index is None, **local},
            processor_kwargs=local,
        )
    module.model.eval().requires_grad_(False)
    return module
