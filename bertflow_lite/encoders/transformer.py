"""Sentences to embeddings: one forward pass, any number of layer choices, nothing done twice."""

from __future__ import annotations

import logging
import operator
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from bertflow_lite.devices import (
    OutOfMemoryError,
    autocast_type,
    find_device,
    free_memory,
    is_out_of_memory,
)
from bertflow_lite.encoders.cache import EmbeddingCache
from bertflow_lite.encoders.folder import all_states, padding_token, try_model
from bertflow_lite.encoders.models import LoadedModel, let_record, load_model, without_recorders
from bertflow_lite.encoders.pooling import (
    LayerChoice,
    LayersArgument,
    pad_tokens,
    pool,
    resolve_layers,
)
from bertflow_lite.encoders.token_weights import TokenWeights, check_kind, count_weights
from bertflow_lite.encoders.word_vectors import WordVectorEncoder, load_glove
from bertflow_lite.files import cache_dir
from bertflow_lite.text import check_sentences

__all__ = ["Encoder", "load_encoder"]

logger = logging.getLogger(__name__)
Embeddings = NDArray[np.float32]
# Sentences are looked up, tokenized and stored in shards of this many, so that memory stays
# bounded and an interrupted run loses little.
SHARD = 4096
# Finished rows of a shard are stored at least this often, for the run that is killed outright.
KEEP_SECONDS = 20.0
# Padded tokens in one batch.  A GPU wants many; on a CPU, where it is for each thread, what a block
# computes should stay in the thread's cache (of MiniLM 2048 tokens take 1.4 times as long as 512).
BATCH_TOKENS = {"cpu": 512, "mps": 16384, "cuda": 65536}


def load_encoder(
    name: str | os.PathLike[str],
    *,
    max_length: int = 64,
    device: str | torch.device | None = None,
    precision: str = "auto",
    download: bool = False,
    cache: bool = True,
) -> Encoder | WordVectorEncoder:
    """Load a sentence encoder by name.

    Parameters
    ----------
    name : str or path
        ``"minilm"``, ``"smollm2"``, ``"mini-bert"``, ``"glove"``, a folder with a transformers
        model, or a hub id.
    max_length : int, default 64
        Longest sentence in tokens, special tokens included (Appendix B: 64).  The rest of a longer
        one is cut off, and a warning is logged.
    device : str or torch.device, optional
        Default: CUDA where there is one, else Apple's MPS, else the CPU.
    precision : {"auto", "float32", "bfloat16", "float16"}, default "auto"
        Autocast type of the forward pass.  ``"auto"`` is bfloat16 on a GPU that has it and
        float32 elsewhere, so that CPU results are the same on every machine.
    download : bool, default False
        Allow a hub model that is not on this machine to be fetched.
    cache : bool, default True
        Keep the vectors on disk (see `cache.EmbeddingCache`).

    Returns
    -------
    Encoder or WordVectorEncoder
        Word vectors read the whole sentence, on the CPU and in float32, whatever is asked for: the
        settings are checked all the same, and a warning is logged where they ask for another.

    Raises
    ------
    FileNotFoundError
        If the model is not on this machine; the message says how to get it.
    ValueError
        If ``max_length`` or ``precision`` does not fit the model, or ``device`` is not here.

    Examples
    --------
    >>> encoder = load_encoder("minilm", device="cpu")
    >>> encoder
    Encoder('minilm', dim=384, n_layers=6, max_length=64, device='cpu')
    """
    length = _whole(max_length)
    if os.fspath(name) == "glove":
        _check_unused(length, device, precision)
        return load_glove()
    loaded = load_model(name, device=device, download=download)
    return Encoder(loaded, max_length=length, precision=precision, cache=cache)


class HiddenStates(NamedTuple):
    """One batch of `Encoder.hidden_states`; a mask is 1 for a token and 0 for padding."""

    rows: NDArray[np.intp]  # which of the sentences these are
    ids: Tensor
    mask: Tensor
    states: tuple[Tensor, ...]  # each of shape (n, tokens, dim)


class Encoder:
    """A frozen transformer that turns sentences into vectors.

    Parameters
    ----------
    loaded : LoadedModel
        The transformer and its tokenizer (`load_model`).
    max_length, precision, cache
        See `load_encoder`.

    Attributes
    ----------
    name, fingerprint : str
        The model's name and the digest of its weights.
    dim : int
        Width of the vectors.
    n_layers : int
        Number of blocks; there is one hidden state more than blocks.
    default_layers : tuple of str
        The layer choices that are calibrated as a rule: those of the paper and of its code.

    Notes
    -----
    Vectors are cached under the fingerprint that the weights had when the encoder was made, with
    ``max_length`` and the precision.  ``max_length`` may be changed later.  Who changes ``model``
    or ``tokenizer`` in place (trains it, say) must make the encoder with ``cache=False``, else the
    old weights' vectors come back, and the new ones' are kept under the old name.

    Examples
    --------
    >>> encoder = Encoder(load_model("minilm", device="cpu"))
    >>> vectors = encoder.encode(["A cat sat.", "It rained."], layers="first-last")
    >>> vectors.shape, vectors.dtype
    ((2, 384), dtype('float32'))
    """

    default_layers: tuple[str, ...] = ("last2avg", "first-last")

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_length: int = 64,
        precision: str = "auto",
        cache: bool = True,
    ) -> None:
        self.name = loaded.name
        self.fingerprint = loaded.fingerprint
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.device: torch.device = next(loaded.model.parameters()).device
        self._trial = try_model(loaded.name, loaded.model, loaded.tokenizer, loaded.fingerprint)
        self.dim = self._trial.dim
        self.n_layers = self._trial.n_states - 1
        self.autocast = autocast_type(precision, self.device)
        self._cache_folder = cache_dir() / "embeddings" if cache else None
        self.max_length = max_length

    @property
    def max_length(self) -> int:
        """Longest sentence in tokens.  When it is changed, the cache changes with it."""
        return self._max_length

    @max_length.setter
    def max_length(self, max_length: int) -> None:
        self._max_length = self._check_max_length(max_length)
        kind = "float32" if self.autocast is None else str(self.autocast).removeprefix("torch.")
        key = f"{self.fingerprint}-len{self._max_length}-{kind}"
        if not self.mask_works:  # vectors of mixed batches, of an earlier version, are others
            key += "-equal"
        self._cache = EmbeddingCache(self._cache_folder, key, self.dim)

    @property
    def has_cls(self) -> bool:
        """Whether the first token can stand for the sentence, as layers "cls" takes it."""
        return not self._trial.cls

    @property
    def mask_works(self) -> bool:
        """Whether padding leaves vectors alone; else only equal lengths share a batch."""
        return self._trial.mask

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "model": without_recorders(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        let_record(self.model)

    def __repr__(self) -> str:
        return (
            f"Encoder({self.name!r}, dim={self.dim}, n_layers={self.n_layers}, "
            f"max_length={self.max_length}, device={str(self.device)!r})"
        )

    @overload
    def encode(
        self,
        sentences: Sequence[str],
        layers: LayersArgument = ...,
        *,
        weights: TokenWeights | None = ...,
        progress: bool = ...,
    ) -> Embeddings: ...
    @overload
    def encode(
        self,
        sentences: Sequence[str],
        layers: list[LayersArgument],
        *,
        weights: TokenWeights | None = ...,
        progress: bool = ...,
    ) -> dict[str, Embeddings]: ...
    def encode(
        self,
        sentences: Sequence[str],
        layers: LayersArgument | list[LayersArgument] = "last2avg",
        *,
        weights: TokenWeights | None = None,
        progress: bool = False,
    ) -> Embeddings | dict[str, Embeddings]:
        """Encode sentences.

        A sentence of more than ``max_length`` tokens is cut, and one warning is logged that counts
        them, among those that were not in the cache.

        Parameters
        ----------
        sentences : sequence of str, length n
            The sentences; repeats are encoded once.  A special token that is written out in one
            (``[SEP]``) counts as that token, as in transformers and sentence-transformers.
        layers : str, int, tuple of int, or a list of these, default "last2avg"
            A layer choice: ``"cls"``, ``"last"``, ``"last2avg"``, ``"first-last"``,
            ``"embeddings-last"``, an index into the hidden states, or a tuple of indices to
            average.  A *list* asks for several choices from one forward pass.
        weights : TokenWeights, optional
            What each token counts in the mean (`token_weights` finds such weights); by default
            all count the same.  They are for choices that average, so not for ``"cls"``.
        progress : bool, default False
            Show a progress bar.

        Returns
        -------
        ndarray, shape (n, dim), float32
            Row i is the embedding of ``sentences[i]``.  For a list: a dict from each choice's
            label to such an array.
        """
        texts = check_sentences(sentences)
        several = isinstance(layers, list)
        asked: list[LayersArgument] = layers if isinstance(layers, list) else [layers]
        choices = [resolve_layers(choice, self.n_layers + 1) for choice in asked]
        if not choices:
            raise ValueError("layers is an empty list: name at least one layer choice.")
        if self._trial.cls and any(choice.pooling == "cls" for choice in choices):
            raise ValueError(self._trial.cls)
        if weights is not None:
            self._check_weights(weights, choices)
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        pooled = self._pooled(list(row_of), choices, weights, progress)
        rows = np.fromiter((row_of[text] for text in texts), dtype=np.intp, count=len(texts))
        result = {}
        for choice in choices:
            total = np.zeros((len(row_of), self.dim), dtype=np.float32)
            for slot in choice.slots:
                total += pooled[slot]
            result[choice.label] = total[rows] / np.float32(len(choice.slots))
        return result if several else result[choices[0].label]

    def token_weights(self, sentences: Sequence[str], kind: str = "idf") -> TokenWeights:
        """Find weights by rarity, counted in sentences as this encoder reads them.

        Parameters
        ----------
        sentences : sequence of str, length n
            Sentences like those to encode, or any others; a repeated one counts each time.
        kind : {"idf", "idf-1", "sif"}, default "idf"
            `token_weights.KINDS` has the formulas.  [CLS] and [SEP], which stand in all sentences,
            have the least weight by ``"idf"``, 1, and count nothing by the others.

        Returns
        -------
        TokenWeights
            For ``encode(..., weights=...)``.

        Examples
        --------
        >>> encoder = Encoder(load_model("minilm", device="cpu"))
        >>> weights = encoder.token_weights(["The cat sat.", "The dog ran.", "The end."])
        >>> the, cat = encoder.tokenizer.convert_tokens_to_ids(["the", "cat"])
        >>> weights.values[[the, cat]].round(2)
        array([1.  , 1.69], dtype=float32)
        >>> encoder.encode(["The cat sat."], 4, weights=weights).shape
        (1, 384)
        """
        check_kind(kind)
        ids, _ = self._tokenize(check_sentences(sentences))
        return count_weights(ids, len(self.tokenizer), kind, self.tokenizer.all_special_ids)

    def _check_weights(self, weights: TokenWeights, choices: list[LayerChoice]) -> None:
        if not isinstance(weights, TokenWeights):
            raise ValueError(
                f"weights is {type(weights).__name__!r}; give what token_weights finds, or "
                "TokenWeights of your own."
            )
        if len(weights.values) != len(self.tokenizer):
            raise ValueError(
                f"there are weights for {len(weights.values)} tokens, and {self.name!r} has "
                f"{len(self.tokenizer)}: they were found for another encoder."
            )
        if any(choice.pooling != "mean" for choice in choices):
            raise ValueError("layers 'cls' takes one token; weights need a choice that averages.")

    def hidden_states(
        self,
        sentences: Sequence[str],
        *,
        batch_size: int = 32,
        batch_tokens: int | None = None,
        autocast: bool = False,
    ) -> Iterator[HiddenStates]:
        """Run the model over sentences and give what `encode` pools: a vector for each token.

        Nothing is cached, a repeated sentence is run again, and the model is left in the mode that
        it is in: with dropout on, if a caller has switched it on.

        Parameters
        ----------
        sentences : sequence of str
            The sentences, cut at ``max_length`` tokens; one without a token is passed over.
        batch_size : int, default 32
            Sentences in a batch, the shortest first.
        batch_tokens : int, optional
            Padded tokens in a batch instead, the longest sentences first.
        autocast : bool, default False
            Work in the encoder's ``precision``, as `encode` does; by default, in float32.

        Yields
        ------
        HiddenStates
        """
        ids, _ = self._tokenize(check_sentences(sentences))
        lengths = np.array([len(tokens) for tokens in ids], dtype=np.intp)
        order = np.argsort(lengths if batch_tokens is None else -lengths, kind="stable")
        order = order[lengths[order] > 0]
        while len(order):
            size = batch_size if batch_tokens is None else batch_tokens // int(lengths[order[0]])
            rows, order = np.split(order, [self._together(lengths[order], size)])
            kind = self.autocast if autocast else None
            yield HiddenStates(rows, *self._run([ids[i] for i in rows], kind))

    def _together(self, lengths: NDArray[np.intp], size: int) -> int:
        """Give how many of the first sentences share a batch: only equals where no mask works."""
        if not self.mask_works:
            size = min(size, int((lengths == lengths[0]).cumprod().sum()))
        return max(1, size)

    def _run(
        self, ids: list[list[int]], autocast: torch.dtype | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Give padded ids, their mask, and every hidden state."""
        padded, mask = pad_tokens(ids, padding_token(self.model, self.tokenizer))
        padded, mask = padded.to(self.device), mask.to(self.device)
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, autocast, enabled=autocast is not None),
        ):
            return padded, mask, all_states(self.model, padded, mask)

    def _pooled(
        self,
        texts: list[str],
        choices: list[LayerChoice],
        weights: TokenWeights | None,
        progress: bool,
    ) -> dict[str, Embeddings]:
        """Pool each hidden state that any choice needs, for each text: from the cache, or anew."""
        # In the cache, weighted vectors lie under another name than equal ones.
        mark = "" if weights is None else f":{weights.fingerprint}"
        slots = list(dict.fromkeys(slot for choice in choices for slot in choice.slots))
        pooled = {slot: np.empty((len(texts), self.dim), dtype=np.float32) for slot in slots}
        new = cut = 0
        with tqdm(total=len(texts), desc="encode", unit="sentence", disable=not progress) as bar:
            for start in range(0, len(texts), SHARD):
                shard = texts[start : start + SHARD]
                view = {slot: pooled[slot][start : start + SHARD] for slot in slots}
                known = np.logical_and.reduce(
                    [self._cache.read(shard, s + mark, view[s]) for s in slots]
                )
                bar.update(int(known.sum()))
                unknown = np.flatnonzero(~known)
                ids, n_cut = self._tokenize([shard[row] for row in unknown])
                new, cut = new + len(unknown), cut + n_cut
                done: list[int] = []
                kept_at = time.monotonic()
                try:
                    for rows in self._encode_rows(ids, unknown, view, weights):
                        done.extend(rows)
                        bar.update(len(rows))
                        if time.monotonic() - kept_at > KEEP_SECONDS:
                            self._keep(shard, done, view, mark)
                            kept_at = time.monotonic()
                finally:  # also when interrupted: what was encoded is kept
                    self._keep(shard, done, view, mark)
        if cut:
            logger.warning(
                "%d of %d sentences were cut at %d tokens; a larger max_length reads more",
                cut, new, self.max_length,
            )  # fmt: skip
        return pooled

    def _tokenize(self, texts: list[str]) -> tuple[list[list[int]], int]:
        """Give the token ids of each text, cut at ``max_length``, and how many were cut."""
        if not texts:
            return [], 0
        found = self.tokenizer(
            texts, truncation=True, max_length=self.max_length, return_attention_mask=False
        )
        ids: list[list[int]] = found["input_ids"]
        if found.encodings is not None:  # a fast tokenizer keeps what it cut off
            return ids, sum(bool(one.overflowing) for one in found.encodings)
        full = [text for text, one in zip(texts, ids, strict=True) if len(one) == self.max_length]
        whole = self.tokenizer(full, verbose=False)["input_ids"] if full else []
        return ids, sum(len(one) > self.max_length for one in whole)

    def _keep(
        self, shard: list[str], done: list[int], view: dict[str, Embeddings], mark: str
    ) -> None:
        """Move the finished rows into the cache, and forget that they were waiting for it."""
        for slot, vectors in view.items() if done else ():
            self._cache.write([shard[row] for row in done], slot + mark, vectors[done])
        done.clear()

    def _encode_rows(
        self,
        ids: list[list[int]],
        rows: NDArray[np.intp],
        view: dict[str, Embeddings],
        weights: TokenWeights | None,
    ) -> Iterator[NDArray[np.intp]]:
        """Run the model over some rows, longest first; yield the rows of each batch when done."""
        lengths = np.array([len(tokens) for tokens in ids])
        # Sentences of like length share a batch, so that little of it is padding.  The longest
        # come first: if memory is short, it shows at once.
        order = np.argsort(-lengths, kind="stable")
        tokens_in_batch = BATCH_TOKENS.get(self.device.type, 2048)
        if self.device.type == "cpu":
            tokens_in_batch *= torch.get_num_threads()
        position = 0
        while position < len(order):
            longest = max(int(lengths[order[position]]), 1)
            size = self._together(lengths[order[position:]], tokens_in_batch // longest)
            batch = order[position : position + size]
            position += len(batch)
            try:
                vectors = self._forward([ids[i] for i in batch], list(view), weights)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise OutOfMemoryError(
                        f"no memory on {self.device} for one sentence of {longest} tokens. Lower "
                        f"max_length (now {self.max_length}), or use device='cpu'."
                    ) from error
                tokens_in_batch = longest * (len(batch) // 2)
                position -= len(batch)
                logger.warning(
                    "no memory on %s for %d sentences of %d tokens at once: going on with %d",
                    self.device, len(batch), longest, len(batch) // 2,
                )  # fmt: skip
                free_memory()
                continue
            for slot, values in vectors.items():
                if not torch.isfinite(values).all():
                    raise ValueError(
                        f"{self.name!r} gave a non-finite vector in hidden state "
                        f"{slot.split(':')[1]} (precision {self.autocast or 'float32'}). "
                        "Try precision='float32'; if that is what you have, the weights are broken."
                    )
                view[slot][rows[batch]] = values.cpu().numpy()
            yield rows[batch]

    def _forward(
        self, ids: list[list[int]], slots: list[str], weights: TokenWeights | None
    ) -> dict[str, Tensor]:
        self.model.eval()  # whatever a caller did to it: dropout has no place in an embedding
        padded, mask, states = self._run(ids, self.autocast)
        counts = None if weights is None else weights.of(padded)
        return {slot: pool(states[int(slot.split(":")[1])], mask, slot, counts) for slot in slots}

    def _check_max_length(self, max_length: int) -> int:
        max_length = _whole(max_length)
        limit = self._trial.limit or max_length
        if not 3 <= max_length <= limit:
            raise ValueError(
                f"max_length is {max_length}; {self.name!r} takes 3 to {limit} tokens."
            )
        return max_length


def _whole(max_length: int) -> int:
    try:
        if isinstance(max_length, bool):
            raise TypeError
        return operator.index(max_length)
    except TypeError:
        raise ValueError(
            f"max_length is {max_length!r}; give a whole number of tokens, such as 64."
        ) from None


def _check_unused(max_length: int, device: str | torch.device | None, precision: str) -> None:
    """Check what was asked of word vectors, which have no use for it."""
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; give a number of tokens from 1 up.")
    autocast_type(precision, find_device(device))
    if max_length != 64:  # the default of all encoders
        logger.warning("glove reads whole sentences: max_length=%d changes nothing", max_length)
    if precision not in ("auto", "float32"):
        logger.warning("glove is kept in float32: precision=%r changes nothing", precision)
