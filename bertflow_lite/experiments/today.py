"""What people do today instead of calibrating, beside calibrating: prompts, and static vectors.

A causal language model sees only what is left of a token.  So its last token, after a prompt that
asks for one word, or the second copy of a text that is given twice, may say more than the mean of
one copy (`WAYS`).  And an encoder can be boiled down to a vector for each token of its vocabulary
(`static_encoders`), as the library Model2Vec does.  `compare` scores such vectors, raw and
calibrated, on the same resampled pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.encoders.pooling import pad_tokens, pool, resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder, load_glove
from bertflow_lite.experiments.controls.runs import fits, to_triple
from bertflow_lite.experiments.controls.statistics import bootstrap_systems
from bertflow_lite.experiments.scoring import Floats32, calibrated
from bertflow_lite.measures.scores import pair_cosines, score_similarities
from bertflow_lite.text import check_sentences

logger = logging.getLogger(__name__)
RESAMPLES = 500
BATCH_TOKENS = 2048
DIM, SIF_A = 256, 1e-4  # Model2Vec's own settings
Vectors = dict[tuple[str, str], Floats32]  # by layers and way, a row for each sentence

PROMPT = 'This sentence: "{0}" means in one word: "'
ECHO = "Rewrite the sentence: {0}, rewritten sentence: {0}"


@dataclass(frozen=True)
class Way:
    """One way to ask a language model for a sentence's vector."""

    template: str  # what is read, with {0} for each copy of the sentence
    pooled: str | int  # "all" tokens, the "last" one, or those of a copy of the sentence: 0, 1
    weights: str | None = None  # of the mean, as in `Encoder.token_weights`


WAYS = {
    "mean": Way("{0}", "all"),
    "mean, idf": Way("{0}", "all", "idf"),
    "last token": Way("{0}", "last"),
    "prompt, last token": Way(PROMPT, "last"),
    "prompt, mean": Way(PROMPT, 0),
    "twice, first copy": Way(ECHO, 0),
    "twice, second copy": Way(ECHO, 1),
    "twice, second copy, idf": Way(ECHO, 1, "idf"),
}
"""PromptEOL (Jiang et al. 2024), echo embeddings (Springer et al. 2025), and what to hold beside
them: the last token without the prompt, the sentence's tokens with it, and the first copy."""


def encode_ways(
    encoder: Encoder, sentences: Sequence[str], layers: Sequence[str], ways: Mapping[str, Way]
) -> Vectors:
    """Encode in several ways, by one forward pass for each template; nothing is cached."""
    texts = check_sentences(sentences)
    choices = [resolve_layers(choice, encoder.n_layers + 1) for choice in layers]
    out = {
        (choice.label, name): np.zeros((len(texts), encoder.dim), dtype=np.float32)
        for choice in choices
        for name in ways
    }
    for template in dict.fromkeys(way.template for way in ways.values()):
        read = [template.format(text) for text in texts]
        spans = encoder.tokenizer(read, return_offsets_mapping=True)["offset_mapping"]
        if (longest := max(map(len, spans), default=0)) > encoder.max_length:
            raise ValueError(
                f"a sentence in {template!r} has {longest} tokens, and max_length is "
                f"{encoder.max_length}: the end, which is pooled, would be cut off."
            )
        some = {name: way for name, way in ways.items() if way.template == template}
        counted = {k: encoder.token_weights(read, k) for w in some.values() if (k := w.weights)}
        for rows, ids, mask, states in encoder.hidden_states(
            read, batch_tokens=BATCH_TOKENS, autocast=True
        ):
            for name, way in some.items():
                kept = torch.zeros_like(mask)
                for i, row in enumerate(rows):
                    kept[i, _pooled(way, texts[row], spans[row])] = 1
                counts = None if way.weights is None else counted[way.weights].of(ids)
                for choice in choices:
                    total: Any = sum(pool(states[k], kept, "mean", counts) for k in choice.indices)
                    vectors = total / len(choice.indices)
                    out[choice.label, name][rows] = vectors.cpu().numpy()
        logger.info("%s read %d texts as %r", encoder.name, len(read), template)
    return out


def _pooled(way: Way, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Give the positions of the tokens that are pooled; special tokens have no width."""
    if way.pooled == "all":
        return list(range(len(spans)))
    wide = [i for i, (start, end) in enumerate(spans) if end > start]
    if way.pooled == "last":
        return wide[-1:]
    before = "{0}".join(way.template.split("{0}")[: int(way.pooled) + 1])
    first = len(before.format(text))
    return [i for i in wide if spans[i][1] > first and spans[i][0] < first + len(text)]


class StaticEncoder(WordVectorEncoder):
    """Sentence vector = mean of the vectors of its tokens, a row of ``vectors`` for each id."""

    def __init__(self, vectors: Floats32, tokenizer: Any, name: str) -> None:
        super().__init__(vectors, tokenizer.convert_ids_to_tokens(range(len(vectors))), name)
        self.tokenizer = tokenizer

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return found


def token_vectors(encoder: Encoder, batch_size: int = 512) -> Floats32:
    """Run each token of the vocabulary through an encoder alone, shape (n_vocabulary, dim).

    The special tokens that a sentence has stand around it and are part of the mean, as they are in
    Model2Vec and in the encoder's own sentences.
    """
    around = encoder.tokenizer("")["input_ids"]
    rows = [[*around[:1], token, *around[1:]] for token in range(len(encoder.tokenizer))]
    out = []
    for start in range(0, len(rows), batch_size):
        ids, mask = (part.to(encoder.device) for part in pad_tokens(rows[start:][:batch_size], 0))
        with torch.inference_mode():
            states: Tensor = encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state
        out.append(states.float().mean(dim=1).cpu().numpy())
    return np.concatenate(out)


def reduce_vectors(vectors: Floats32, tokens: Sequence[str], dim: int = DIM) -> Floats32:
    """Take the strongest principal components; BERT's empty places ``[unused..]`` do not count."""
    from sklearn.decomposition import PCA

    used = [not token.startswith("[unused") for token in tokens]
    return np.asarray(PCA(dim).fit(vectors[used]).transform(vectors), dtype=np.float32)


def zipf_weights(tokens: Sequence[str]) -> Floats32:
    """Weigh tokens as Model2Vec does: SIF, as if the vocabulary began with the most frequent."""
    used = np.array([not token.startswith("[unused") for token in tokens])
    share = 1 / (np.maximum(np.cumsum(used), 1) + 1)
    return np.asarray(SIF_A / (SIF_A + share / share[used].sum()), dtype=np.float32)


def static_encoders(encoder: Encoder) -> dict[str, WordVectorEncoder]:
    """Make static encoders of a transformer, from its input vectors to Model2Vec's recipe."""
    n = len(encoder.tokenizer)
    tokens = encoder.tokenizer.convert_ids_to_tokens(range(n))
    given = encoder.model.get_input_embeddings().weight.detach().float().cpu().numpy()[:n]
    alone = token_vectors(encoder)
    small = reduce_vectors(alone, tokens)
    tables = {
        "input vectors": given,
        "each token alone": alone,
        f"each token alone, PCA {DIM}": small,
        f"each token alone, PCA {DIM}, Zipf": small * zipf_weights(tokens)[:, None],
    }
    made = {name: StaticEncoder(x, encoder.tokenizer, name) for name, x in tables.items()}
    return {"GloVe": load_glove(), **made}


def encode_static(
    encoder: Encoder, static: Mapping[str, WordVectorEncoder], sentences: Sequence[str]
) -> Vectors:
    """Encode by an encoder's last block, and by static encoders with equal and with idf weights."""
    out = {("last", "encoder"): encoder.encode(sentences, "last")}
    for name, one in static.items():
        out["mean", name] = one.encode(sentences)
        if not name.endswith("Zipf"):
            weights = one.token_weights(sentences, "idf")
            out["mean", f"{name}, idf"] = one.encode(sentences, weights=weights)
    return out


def draw(pairs: SentencePairs, some: int | None) -> SentencePairs:
    """Draw so many pairs of a set, with a fixed seed; by default, take all."""
    if some is None or some >= len(pairs):
        return pairs
    return pairs.select(np.sort(np.random.default_rng(0).permutation(len(pairs))[:some]))


def compare(
    pairs: SentencePairs, vectors: Vectors, calibrators: Sequence[str], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Score ways to encode a set, raw and calibrated, all on the same resampled pairs.

    ``vectors`` are those of the set's different sentences, in the order in which they appear;
    calibrators are fitted on these, without labels.

    Gives, for each: ``all``, Spearman x 100, and ``gain`` over the same way raw and ``lead`` over
    the first way raw, each [estimate, low, high]; ``wmean``; ``dim``.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys(pairs.sentences))}
    wanted = [row_of[text] for text in pairs.sentences]
    cosines = {
        (*key, name): pair_cosines(pairs, calibrated(name, x, x, seed=seed)[wanted])
        for key, x in vectors.items()
        for name in calibrators
        if fits(name, x.shape[1])
    }
    systems = {" | ".join(key): [values] for key, values in cosines.items()}
    scores = bootstrap_systems(pairs, systems, n_resamples=RESAMPLES)
    first = " | ".join((*next(iter(vectors)), "none"))
    rows = []
    for (layers, way, name), values in cosines.items():
        key, raw = f"{layers} | {way} | {name}", f"{layers} | {way} | none"
        row: dict[str, Any] = {"data": pairs.name, "layers": layers, "way": way, "calibrator": name}
        row["all"] = to_triple(scores.interval(key))
        row["gain"] = to_triple(scores.interval(key, raw)) if name != "none" else None
        row["lead"] = to_triple(scores.interval(key, first)) if key != first else None
        row["wmean"] = round(score_similarities(pairs, values).wmean, 2)
        rows.append(row | {"dim": vectors[layers, way].shape[1]})
    return rows
