"""A folder with a transformers model, read without running what it brings along.

A model's folder may hold Python code of its own, or a pickle, which is code as well.  Neither is
ever run, and nobody is asked whether to: what transformers knows by itself is read, anything else
is refused by a sentence that says what the folder holds instead.

Then one small trial shows whether a model gives what an encoder takes for granted (`try_model`).
Much of that a configuration does not say, or says wrongly: that each block gives a state for each
token, that a sentence's vector does not depend on the sentences beside it, that there are positions
and embedding rows for what the tokenizer gives.  Two sentences of different length, together and
each alone, show it in a moment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertflow_lite.encoders.pooling import pad_tokens, pool

__all__ = [
    "Trial",
    "all_states",
    "padding_token",
    "positions_watched",
    "read_model",
    "read_tokenizer",
    "stated_limit",
    "try_model",
]

_OLD_WEIGHTS = ("*.ckpt.index", "*.ckpt.meta", "tf_model.h5", "flax_model.msgpack", "*.onnx")


def read_tokenizer(name: str, folder: Path) -> Any:
    """Read the tokenizer of a model, or say (ValueError) why it cannot be read."""
    from transformers import AutoTokenizer  # slow to import: only when needed

    with _Quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            if len(tokenizer) <= len(tokenizer.all_special_tokens):
                raise ValueError("its tokenizer has no words, only special tokens")
        except Exception as error:  # the readers of tokenizers raise types of their own
            raise _refusal(name, folder, error, "tokenizer_config.json") from error
    tokenizer.init_kwargs.pop("auto_map", None)  # its code is not taken along
    return tokenizer


def read_model(name: str, folder: Path, *, loader: str | None = None) -> Any:
    """Read a model, in float32; of an encoder with a decoder, the encoder; ValueError says why not.

    ``loader`` names the class of transformers that shall read it, such as
    ``"AutoModelForMaskedLM"``; default: the one that gives hidden states.
    """
    import transformers

    with _Quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            # A T5 that was saved without its decoder says that it is no encoder-decoder.
            whole = loader is None and (
                bool(getattr(config, "is_encoder_decoder", False))
                or type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
            )
            # Of T5 and its like, transformers reads the encoder alone.
            alone = whole and type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
            chosen = loader or ("AutoModelForTextEncoding" if alone else "AutoModel")
            model, loading = getattr(transformers, chosen).from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True,
                local_files_only=True, trust_remote_code=False,
            )  # fmt: skip
        except Exception as error:  # the readers of weights raise types of their own
            raise _refusal(name, folder, error, "config.json") from error
    # transformers fills what a file lacks with random numbers.  A pooler often is lacking, since
    # masked language models have none, and no embedding here passes through it; nor through a
    # decoder.
    unused = ("pooler.", "decoder.") if whole else ("pooler.",)
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(unused))
    if missing:
        raise ValueError(
            f"the weights of {name!r} lack {len(missing)} tensors of a {type(model).__name__}, "
            f"among them {', '.join(missing[:3])}: they belong to another model or are cut short."
        )
    vars(model.config).pop("auto_map", None)  # its code is not taken along
    if not whole or alone:
        return model
    encoder = model.get_encoder()
    if not hasattr(encoder, "config"):
        raise ValueError(
            f"the encoder of {name!r} (a {type(model).__name__}) is no model by itself."
        )
    return encoder


class _Quiet:
    """Without transformers' progress bars and its report on missing weights, which is ours."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.verbosity = logging.get_verbosity()
        logging.set_verbosity_error()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self.verbosity)


def _refusal(name: str, folder: Path, error: Exception, config: str) -> ValueError:
    """Say why a folder cannot be read: by what it holds, else in the reader's own words."""
    folder = Path(folder)
    said = str(error)
    code = _own_code(folder / config)
    inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
    old = sorted(path.name for pattern in _OLD_WEIGHTS for path in folder.glob(pattern))
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.gguf")]
    pieces = [path.name for end in ("*.model", "*.spm") for path in folder.glob(end)]
    reason = None
    if code and (config != "config.json" or "trust_remote_code" in said):
        reason = (
            f"it needs Python code of its own ({', '.join(code)}), and a model's code is never run "
            "here. What transformers knows without such code can be loaded"
        )
    elif "weights_only" in said:
        reason = (
            "its .bin file holds Python objects beside the weights, which could run code when they "
            "are read: take a copy of the model with model.safetensors"
        )
    elif not weights and inside:
        reason = f"the model lies in a folder inside it: name {str(folder / inside[0])!r} instead"
    elif not weights and old:
        reason = (
            f"its weights are of another framework ({old[0]}), which transformers does not read: "
            "take a copy of the model with model.safetensors"
        )
    elif (
        config != "config.json"
        and pieces
        and not (folder / "tokenizer.json").exists()
        and importlib.util.find_spec("sentencepiece") is None
    ):
        reason = (
            f"its tokenizer is a SentencePiece file ({pieces[0]}), and the package that reads it "
            "is not installed. Run: pip install sentencepiece protobuf"
        )
    if reason is not None:
        return ValueError(f"the model {name!r} cannot be loaded: {reason}.")
    return ValueError(
        f"the folder {str(folder)!r} does not hold a complete transformers model (config.json, "
        f"weights, tokenizer): {said}"
    )


def _own_code(config: Path) -> list[str]:
    """List the Python files that a configuration names as its model's code."""
    try:
        classes = json.loads(config.read_text(encoding="utf-8"))["auto_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    named = [name for entry in classes for name in (entry if isinstance(entry, list) else [entry])]
    files = [str(name).rpartition(".")[0].replace("--", "/") + ".py" for name in named if name]
    return list(dict.fromkeys(files))


SHORT = "It rained."
LONG = "A man who had played the guitar all day put it on a chair, and the dog sat down beside it."
MOST_TOKENS = 48
# What models of images, sounds and pages read.
NO_TEXT = ("pixel_values", "visual_feats", "input_features", "input_values", "bbox")
_known: dict[tuple[str, type], Trial] = {}


@dataclass(frozen=True)
class Trial:
    """What a model was found to do."""

    n_states: int  # one more than blocks
    dim: int
    limit: int | None  # tokens that it takes at most; None where nothing says so
    mask: bool  # whether padding leaves a vector alone; else only equal lengths share a batch
    cls: str  # why the first token cannot stand for the sentence; empty if it can


def try_model(name: str, model: Any, tokenizer: Any, fingerprint: str) -> Trial:
    """Try a model on two sentences, once a fingerprint; a ValueError says what is wrong with it."""
    key = (fingerprint, type(model))
    if key not in _known:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            _known[key] = _try(name, model, tokenizer)
    return _known[key]


def all_states(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Give every hidden state of a batch, each of shape (batch, tokens, dim).

    RuntimeError if there are none, as of a model taken to another process piece by piece.
    """
    states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).get(
        "hidden_states"
    )
    if not states:
        raise RuntimeError(
            f"this {type(model).__name__} gives no hidden states. In another process than the one "
            "that loaded it, use an Encoder or a SentenceEncoder, which bring the model along."
        )
    return tuple(states)


def _try(name: str, model: Any, tokenizer: Any) -> Trial:
    kind = f"{name!r} (a {type(model).__name__})"
    main = getattr(model, "main_input_name", "input_ids")
    if main != "input_ids":
        raise ValueError(f"{kind} is no text model: it reads {main}, not the tokens of a sentence.")
    _check_rows(name, model, tokenizer)
    stated = stated_limit(model, tokenizer)
    most = min(MOST_TOKENS, stated or MOST_TOKENS)
    rows = [
        tokenizer(text, truncation=True, max_length=most)["input_ids"] for text in (SHORT, LONG)
    ]
    if not 0 < len(rows[0]) < len(rows[1]):
        raise ValueError(
            f"the tokenizer of {name!r} gives {len(rows[0])} and {len(rows[1])} tokens for a short "
            f"and a long sentence, of at most {most}: it cuts off or does not know what it reads."
        )
    with positions_watched(model, len(rows[1])) as tables:
        alone = [_run(kind, model, tokenizer, [row]) for row in rows]
    for row, (states, _) in zip(rows, alone, strict=True):
        dim = states[-1].shape[-1]
        for index, state in enumerate(states):
            if state.ndim == 3 and state.shape[1] != len(row):
                raise ValueError(
                    f"{kind} cannot be used: it joins or splits tokens on their way through it. "
                    f"Its hidden state {index} has {state.shape[1]} vectors for {len(row)} tokens, "
                    "and each state must have one for each token, whatever layers are asked for."
                )
            if tuple(state.shape) != (1, len(row), dim):
                raise ValueError(
                    f"{kind} cannot be used: its hidden state {index} has the shape "
                    f"{tuple(state.shape)} for {len(row)} tokens, where the last block's width is "
                    f"{dim}; a state needs a vector of one width for each token."
                )
    means = [[pool(state, mask, "mean") for state in states] for states, mask in alone]
    works = _independent(means, _run(kind, model, tokenizer, rows), model)
    if not works:
        # The same without padding: the short sentence beside one of equal length.
        other = rows[1][: len(rows[0]) - 1] + rows[1][-1:]
        pair = _run(kind, model, tokenizer, [rows[0], other])
        if not _independent(means[:1], pair, model):
            raise ValueError(
                f"{kind} cannot be used: a sentence's vector depends on the other sentences in its "
                "batch, also on those of equal length."
            )
    limits = [limit for limit in (stated, *tables) if limit]
    return Trial(
        n_states=len(alone[0][0]),
        dim=int(alone[0][0][-1].shape[-1]),
        limit=min(limits) if limits else None,
        mask=works,
        cls=_why_no_cls(name, tokenizer, rows, [states[-1] for states, _ in alone]),
    )


def _run(
    kind: str, model: Any, tokenizer: Any, rows: Sequence[list[int]]
) -> tuple[tuple[Tensor, ...], Tensor]:
    device = next(model.parameters()).device
    ids, mask = (t.to(device) for t in pad_tokens(rows, padding_token(model, tokenizer)))
    try:
        states = all_states(model, ids, mask)
        if not all(isinstance(state, Tensor) for state in states):
            raise TypeError("its hidden states are no tensors")
        return states, mask
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever a model of an unknown kind runs into
        wanted = [name for name in NO_TEXT if name in inspect.signature(model.forward).parameters]
        if wanted:
            raise ValueError(
                f"{kind} is no text model: beside tokens it wants {', '.join(wanted)}. Its text "
                "part can be loaded if it is saved by itself."
            ) from error
        said = str(error).strip().splitlines()
        raise ValueError(
            f"{kind} cannot read a sentence as a text model does: {said[0] if said else error!r}"
        ) from error


def padding_token(model: Any, tokenizer: Any) -> int:
    """Give the token that fills up a batch; it is masked, so one without a row is replaced."""
    token, n_rows = tokenizer.pad_token_id or 0, _n_rows(model)
    return token if n_rows is None or token < n_rows else 0


def _n_rows(model: Any) -> int | None:
    """Rows of the embedding table; None for a model that embeds in another way."""
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return None


def _check_rows(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer that gives tokens without a row in the embedding table."""
    n_rows = _n_rows(model)
    if n_rows is None or len(tokenizer) <= n_rows:
        return
    ids = set(tokenizer.get_vocab().values()) - {tokenizer.pad_token_id}
    if (largest := max(ids)) >= n_rows:
        raise ValueError(
            f"the tokenizer of {name!r} numbers its tokens up to {largest}, and the model has "
            f"{n_rows} embedding rows: they do not belong together."
        )


def stated_limit(model: Any, tokenizer: Any) -> int | None:
    """Give the tokens that configuration and tokenizer allow; XLNet writes -1 for no limit."""
    config = model.config.get_text_config()
    stated = (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length)
    limits = [int(limit) for limit in stated if isinstance(limit, int) and 0 < limit < 10**9]
    return min(limits) if limits else None


@contextlib.contextmanager
def positions_watched(model: Any, length: int) -> Iterator[list[int]]:
    """Note, while a row of so many tokens (5 at least) runs through a model, what its tables take.

    The list is filled with a number for each table of positions.
    """
    tables: list[int] = []
    hooks = [
        module.register_forward_pre_hook(_watch(length, tables))
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        yield tables
    finally:
        for hook in hooks:
            hook.remove()


def _watch(length: int, tables: list[int]) -> Any:
    """Note how many positions a table has, when positions are what it is asked for.

    Positions are the indices that go up by one; where the first is not 0, as in RoBERTa, whose
    first two rows are for other ends, so many rows fewer can be used.
    """

    def look(module: nn.Embedding, given: tuple[Any, ...]) -> None:
        index = given[0] if given else None
        if not isinstance(index, Tensor) or index.is_floating_point() or not index.dim():
            return
        if index.shape[-1] == length > 4 and bool((index.diff() == 1).all()):
            tables.append(module.num_embeddings - int(index.min()))

    return look


def _independent(
    alone: list[list[Tensor]], together: tuple[tuple[Tensor, ...], Tensor], model: Any
) -> bool:
    """Whether sentences have the vectors in a batch that each has alone, up to rounding.

    Vectors that are no numbers are not judged here: encoding refuses them, layer by layer.
    """
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    states, mask = together
    for index, state in enumerate(states):
        for mean, expected in zip(pool(state, mask, "mean"), alone, strict=False):
            apart = (mean - expected[index][0]).abs().max()
            if apart > (1e-3 if exact else 5e-2) * expected[index].abs().max():
                return False
    return True


def _why_no_cls(name: str, tokenizer: Any, rows: list[list[int]], last: list[Tensor]) -> str:
    if tokenizer.cls_token is None:
        return f"layers 'cls' needs a [CLS] token, and the tokenizer of {name!r} has none."
    if any(row[0] != tokenizer.cls_token_id for row in rows):
        return (
            f"layers 'cls' takes the first token, and the tokenizer of {name!r} does not put its "
            f"{tokenizer.cls_token} there."
        )
    if torch.allclose(last[0][0, 0], last[1][0, 0], atol=1e-6):
        return (
            f"layers 'cls' takes the first token, and in {name!r} it sees nothing of the sentence: "
            "it is the same for all."
        )
    return ""
