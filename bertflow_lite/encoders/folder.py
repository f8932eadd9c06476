"""A folder with a transformers model, read without running what it brings along.

A model's folder may hold Python code of its own, or a pickle, which is code as well.  Neither is
ever run, and nobody is asked whether to: what transformers knows by itself is read, anything else
is refused by a sentence that says what the folder holds instead.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

__all__ = ["read_model", "read_tokenizer"]

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
