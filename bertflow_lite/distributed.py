"""Encoding and fitting on several devices, under ``accelerate launch`` or ``torchrun``.

The processes are those of `accelerate`; there is no engine here.  Started by itself, the same
code runs as one process, and is then a resumable way to encode a large corpus.

Encoding needs no talk between processes: sentences are cut into shards, each process writes the
shards that fall to it, and a shard that is written stays.  Fitting a flow talks at each step: all
processes take their share of the same batch and average the gradients.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from bertflow_lite.calibrators.base import RunningMoments
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import _MomentCalibrator
from bertflow_lite.shards import digest_of, find_missing, finish, write_shard
from bertflow_lite.streaming import EmbeddingStream, as_stream

if TYPE_CHECKING:
    from accelerate import PartialState

    from bertflow_lite.encoders.pooling import LayersArgument
    from bertflow_lite.encoders.transformer import Encoder

__all__ = ["WorkerError", "encode_sharded", "fit_sharded", "start_processes"]

logger = logging.getLogger(__name__)
Calibrator = TypeVar("Calibrator", FlowCalibrator, _MomentCalibrator)
# A process that has done its shards waits for the slowest.  When one dies, the launcher ends the
# others, so that nobody waits in vain.
PATIENCE = datetime.timedelta(days=7)


class WorkerError(RuntimeError):
    """A process failed; the message names it, its machine and what it was doing."""


def start_processes() -> PartialState:
    """Join the processes of the launch; the first call in a process counts.

    Returns
    -------
    accelerate.PartialState
        With ``process_index``, ``num_processes``, ``device`` and ``is_main_process``.  On a
        machine without a GPU (or with ``ACCELERATE_USE_CPU=true``) they talk through gloo.

    Raises
    ------
    ModuleNotFoundError
        If accelerate is not installed.
    """
    try:
        from accelerate import PartialState
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "several devices need the package accelerate: pip install 'bertflow-lite[distributed]'."
        ) from None
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    cpu = asked or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    # Apple's GPUs cannot talk to each other: several processes there run on the CPU.
    cpu = cpu or (several and not torch.cuda.is_available())
    return PartialState(cpu=cpu, **({"timeout": PATIENCE} if several else {}))


def encode_sharded(
    encoder: Encoder | str | os.PathLike[str],
    sentences: Sequence[str],
    out: str | os.PathLike[str],
    *,
    layers: LayersArgument = "last2avg",
    shard_rows: int = 8192,
    max_length: int = 64,
    precision: str = "auto",
    progress: bool = False,
) -> EmbeddingStream:
    """Encode sentences into files, with as many processes as were launched.

    Call it in every process with the same arguments.  The files appear whole or not at all; when
    a process dies the run fails, what is written stays, and the next run does the rest.

    Parameters
    ----------
    encoder : Encoder, str or path
        A name is loaded in each process, on its own device, without the package's cache on disk.
        An Encoder is used as it is.
    sentences : sequence of str, length n
        All sentences, in every process.  Repeats are encoded once in a shard.
    out : path
        A folder for the shards; or a ``.npy`` file: the first process then joins the shards, in
        the order of the sentences, and removes them.
    layers : layer choice, default "last2avg"
        One choice (see `Encoder.encode`).
    shard_rows : int, default 8192
        Sentences in a shard: what is lost of a process that dies.
    max_length, precision
        See `load_encoder`; used when ``encoder`` is a name.
    progress : bool, default False
        Show a progress bar for the first process.

    Returns
    -------
    EmbeddingStream
        Of shape (n, dim), float32; row i is the embedding of ``sentences[i]``.

    Raises
    ------
    WorkerError
        In the process that failed; the message has its number, its machine and its shard.
    ValueError
        If the folder holds embeddings of something else, or the processes differ in sentences.

    Notes
    -----
    Beside each shard stands a JSON file with its rows and checksum, and ``manifest.json`` says
    what the folder holds: encoder and fingerprint, layers, a digest of the sentences, shards, and
    whether it is complete.  Files are checked before they are used again.

    Examples
    --------
    In a script that ``accelerate launch --num_processes 8 script.py`` starts, or by itself:

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> sentences = ["A cat sat.", "It rained.", "A dog ran."]
    >>> stream = encode_sharded("minilm", sentences, f"{folder.name}/vectors", shard_rows=2)
    >>> stream.read().shape
    (3, 384)
    """
    from bertflow_lite.encoders.transformer import Encoder as _Encoder
    from bertflow_lite.encoders.transformer import load_encoder

    if shard_rows < 1:
        raise ValueError(f"shard_rows is {shard_rows}; it must be 1 or more.")
    asked: Any = layers
    if isinstance(asked, list):
        raise ValueError("layers is a list; encode_sharded takes one layer choice.")
    if not len(sentences):
        raise ValueError("there are no sentences to encode.")
    state = start_processes()
    if isinstance(encoder, (str, os.PathLike)):
        loaded = load_encoder(
            encoder,
            max_length=max_length,
            precision=precision,
            device=state.device,
            cache=False,
        )
    else:
        loaded = encoder
    path = Path(out)
    folder = path.with_name(path.name + ".shards") if path.suffix == ".npy" else path
    plan = {
        "sentences": len(sentences),
        "sentences_sha256": digest_of(sentences),
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "layers": str(layers),
        "max_length": loaded.max_length if isinstance(loaded, _Encoder) else None,
        "dim": loaded.dim,
        "shard_rows": shard_rows,
    }
    _same_everywhere(plan, state)
    missing = _agree(lambda: find_missing(folder, path, plan), state)
    mine = missing[state.process_index :: state.num_processes]
    hidden = not (progress and state.is_main_process)
    for number in tqdm(mine, desc="encode", unit="shard", disable=hidden):
        start = number * shard_rows
        part = sentences[start : start + shard_rows]
        try:
            write_shard(loaded, part, layers, folder, number)
        except Exception as error:
            raise WorkerError(
                f"{worker_name(state)} failed in shard {number} (sentences {start} to "
                f"{start + len(part) - 1}): {type(error).__name__}: {error} The shards that are "
                f"written stay in {folder}; run again to do the rest."
            ) from error
    state.wait_for_everyone()
    if missing and state.is_main_process:
        finish(folder, path, plan)
    state.wait_for_everyone()
    return EmbeddingStream(path)


def fit_sharded(calibrator: Calibrator, embeddings: Any) -> Calibrator:
    """Fit a calibrator with as many processes as were launched.

    Call it in every process with the same calibrator and the same embeddings, which all processes
    must be able to read: a file, or a folder that `encode_sharded` wrote.

    Parameters
    ----------
    calibrator : FlowCalibrator, Standardizer, TopDirectionRemover or Whitener
        Fitted in place.  A flow's ``batch_size`` is that of all processes together, and their
        number must divide it; its ``device`` is not looked at.
    embeddings : array, path or EmbeddingStream, shape (n, dim)
        An iterator will not do, since each process reads.

    Returns
    -------
    The calibrator, the same in every process: up to rounding, what ``fit`` of one process gives.

    Raises
    ------
    ValueError
        As ``fit``; for an iterator; if the batch cannot be shared equally.

    Examples
    --------
    >>> from bertflow_lite.calibrators.linear import Whitener
    >>> x = np.random.default_rng(0).normal(size=(100, 4))
    >>> fit_sharded(Whitener(), x).transform(x).std(axis=0).round(6)
    array([1., 1., 1., 1.])
    """
    if not isinstance(calibrator, (FlowCalibrator, _MomentCalibrator)):
        raise ValueError(
            f"a {type(calibrator).__name__} is none of the calibrators: of a Pipeline, fit the "
            "steps one after the other."
        )
    stream = as_stream(embeddings)
    if stream is not None and stream.once:
        raise ValueError("an iterator cannot be read by several processes; give a file or array.")
    state = start_processes()
    if isinstance(calibrator, FlowCalibrator):
        from accelerate import Accelerator, DistributedDataParallelKwargs

        # The buffers are the permutations, which never change.
        quiet = DistributedDataParallelKwargs(broadcast_buffers=False)
        accelerator = Accelerator(cpu=state.device.type == "cpu", kwargs_handlers=[quiet])
        return calibrator._fit(embeddings, accelerator)
    if state.num_processes == 1:
        return calibrator.fit(embeddings)
    from accelerate.utils import gather_object

    stream = EmbeddingStream(np.asarray(embeddings)) if stream is None else stream
    next(calibrator._blocks(stream, reset=True))  # sets the width, also where there is no share
    mine = RunningMoments(full=calibrator._full)
    blocks = calibrator._check_stream(stream, reset=True)
    calibrator._sum_up(mine, blocks.share(state.process_index, state.num_processes))
    total = RunningMoments(full=calibrator._full)
    for part in gather_object([mine]):
        total.merge(part)
    return calibrator._finish(total)


def worker_name(state: PartialState) -> str:
    """Name a process: its number among how many, and its machine."""
    return f"worker {state.process_index} of {state.num_processes} on {socket.gethostname()}"


def _same_everywhere(plan: dict[str, Any], state: PartialState) -> None:
    from accelerate.utils import gather_object

    for number, other in enumerate(gather_object([plan])):
        for key, value in plan.items():
            if other[key] != value:
                raise ValueError(
                    f"worker {number} was given {key} {other[key]!r}, but {worker_name(state)} "
                    f"{value!r}: all must be called with the same arguments."
                )


def _agree(find: Callable[[], list[int]], state: PartialState) -> list[int]:
    """Give what the first process finds, or raise its error, in all of them."""
    from accelerate.utils import broadcast_object_list

    found: list[Any] = [None]
    if state.is_main_process:
        try:
            found = [find()]
        except (ValueError, OSError) as error:
            found = [error]
    broadcast_object_list(found)
    if isinstance(found[0], Exception):
        raise found[0]
    numbers: list[int] = found[0]
    return numbers
