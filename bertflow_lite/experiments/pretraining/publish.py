"""A finished run becomes a model folder to hand on: float16 weights, tokenizer, model card."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from bertflow_lite.encoders.language_model import check_scores, load_language_model
from bertflow_lite.experiments.pretraining.checkpoints import Training, read_training
from bertflow_lite.experiments.pretraining.pretraining_card import pretraining_card
from bertflow_lite.files import put_folder, write_json, write_text

__all__ = ["CARD", "WEIGHTS", "finished_run", "publish_model"]

WEIGHTS, CARD = "model.safetensors", "README.md"
FILES = (CARD, "config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json")
# What a tokenizer's reader needs beside tokenizer.json; the rest says how some program called it.
_TOKENIZER_KEYS = (
    "tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "unk_token",
    "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_LARGEST_GAP = 1e-3  # of logits, in float32: rounding


def publish_model(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    corpus: str | None = None,
    machine: str | None = None,
    command: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Make a model folder of a finished pre-training run.

    The folder is whole or not there: it is written beside its place, read back, and renamed.

    Parameters
    ----------
    run : path
        Folder that `train.pretrain` filled.
    out : path
        Folder to make, for instance ``data/models/mini-bert``.
    corpus : str, optional
        Sentences for the model card on what the text was and whose.  The book's own corpus is
        recognized by its fingerprint and needs none.
    machine : str, optional
        What it was trained on, for the card.
    command : str, optional
        The command that published it, for the card.
    overwrite : bool, default False
        Replace a published model.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileNotFoundError
        If ``run`` is no folder of a pre-training run.
    ValueError
        If the run is unfinished or damaged, its corpus is not known and not described, or ``out``
        holds something else than a published model.
    FileExistsError
        If there is a model already and ``overwrite`` is False.
    """
    run, out = Path(run), Path(out)
    training = finished_run(run)
    _check_target(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        parameters = _write_model(
            run / "final", scratch, int(training.settings["recipe"]["length"])
        )
        with (scratch / WEIGHTS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        card = pretraining_card(
            out.name,
            training,
            corpus=corpus,
            machine=machine,
            command=command,
            parameters=parameters,
            sha256=digest,
        )
        write_text(scratch / CARD, card)
        for path in scratch.iterdir():
            path.chmod(0o644)
        scratch.chmod(0o755)  # mkdtemp makes it readable for its owner only
        put_folder(scratch, out, lambda: _check_target(out, overwrite))
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return out


def finished_run(run: Path) -> Training:
    """Read what is known of a run, and make sure that it was trained to its end.

    Parameters
    ----------
    run : Path
        Folder that `train.pretrain` filled.

    Returns
    -------
    Training

    Raises
    ------
    FileNotFoundError
        If it is no folder of a run, or one that has only just begun.
    ValueError
        If the run is unfinished, or its files do not belong together.
    """
    training = read_training(run, partial=True)
    if not training.finished or (run / "unfinished").exists() or not (run / "final").is_dir():
        raise ValueError(
            f"the training in {run.name!r} is unfinished: a model is published from the end of a "
            "run. The same pretrain command goes on with it."
        )
    if training.loss[-1][0] != training.steps:
        raise ValueError(
            f"the record of {run.name!r} is cut: its last loss is not of its last step."
        )
    if not all(math.isfinite(value) for entry in training.loss for value in entry):
        raise ValueError(f"the record of {run.name!r} holds losses that are no numbers.")
    return training


def _write_model(final: Path, folder: Path, length: int) -> int:
    """Write weights, configuration and tokenizer, read them back; give the parameters' number."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(final, local_files_only=True, trust_remote_code=False)
    model, info = AutoModelForMaskedLM.from_pretrained(
        final,
        dtype=torch.float32,
        local_files_only=True,
        output_loading_info=True,
        trust_remote_code=False,
    )
    if info["missing_keys"]:
        raise ValueError(f"the final model lacks {sorted(info['missing_keys'])}: train it again.")
    parameters = int(model.num_parameters())
    # In place, so that tied weights stay one tensor and are stored once.
    half = model.half()
    for name, tensor in half.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has values that float16 does not hold: the run diverged.")
    half.save_pretrained(folder)
    _write_tokenizer(tokenizer, final, folder, length)
    lm = load_language_model(folder, device="cpu")
    gap = check_scores(lm, "It rained, and the river rose.")
    if not gap < _LARGEST_GAP:
        raise ValueError(f"the scores of what was written are off by {gap}: nothing was published.")
    return parameters


def _write_tokenizer(tokenizer: Any, final: Path, folder: Path, length: int) -> None:
    """Write a tokenizer without the padding and truncation of its last use.

    Places beyond the training's rows were never trained, so its limit is their length.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    write_text(folder / "tokenizer.json", backend.to_str())
    said = json.loads((final / "tokenizer_config.json").read_text(encoding="utf-8"))
    kept = {key: said[key] for key in _TOKENIZER_KEYS if said.get(key) is not None}
    write_json(folder / "tokenizer_config.json", {**kept, "model_max_length": length})


def _check_target(out: Path, overwrite: bool) -> None:
    """Refuse to write over anything but a published model, and over that unless asked to."""
    if not out.exists():
        return
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else [out.name]
    if foreign := [name for name in there if name not in FILES]:
        raise ValueError(
            f"{out.name!r} holds something else than a published model "
            f"({', '.join(foreign[:3])}): name another folder."
        )
    if there and not overwrite:
        raise FileExistsError(
            f"{out.name!r} holds a model already. Pass overwrite=True (command line: --overwrite) "
            "to replace it, or name another folder."
        )
