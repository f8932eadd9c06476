"""How much each token weighs in a sentence's vector, and what calibrating does to these weights.

A plain mean gives every token the same weight, be it "the" or "giraffe".  The weight that a token
really has once the mean is calibrated is found by leaving it out (`token_influence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.encoders.pooling import LayersArgument, resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.scoring import Target, fit_calibrator
from bertflow_lite.measures.similarity import Floats, cosine, spearman

IDF_BINS = 8
_SEED = 0


@dataclass(frozen=True, eq=False)
class TokenInfluence:
    """What leaving out one token does to a sentence's vector, a row for each token."""

    sentence: NDArray[np.intp]  # which sentence the token stands in; each of shape (n_tokens,)
    token: NDArray[np.intp]  # its number in the vocabulary
    # 1 minus the cosine of the vectors with and without it, divided by the mean of that over its
    # sentence: 1 is a token like any other.
    influence: NDArray[np.float64]


def token_influence(
    encoder: Encoder,
    sentences: Sequence[str],
    layers: LayersArgument,
    transform: Callable[[NDArray[np.float32]], NDArray[Any]] | None = None,
) -> TokenInfluence:
    """Leave out one token of the mean at a time, and see how far the calibrated vector turns.

    The hidden states stay as they are: the token is left out of the mean, not of the sentence.

    ``transform`` is a fitted calibrator's; by default the mean stays raw. Sentences of fewer than
    three tokens are passed over.
    """
    sentence, token, influence = [], [], []
    for row, ids, states in token_states(encoder, sentences, layers):
        n = len(ids)
        if n < 3:
            continue
        total = states.sum(axis=0)
        means = np.vstack([total / n, (total - states) / (n - 1)]).astype(np.float32)
        z = means if transform is None else transform(means)
        turned = 1 - cosine(np.broadcast_to(z[:1], z[1:].shape), z[1:])
        if turned.mean() > 0:
            sentence.append(np.full(n, row))
            token.append(ids)
            influence.append(turned / turned.mean())
    return TokenInfluence(
        np.concatenate(sentence), np.concatenate(token), np.concatenate(influence)
    )


def token_states(
    encoder: Encoder, sentences: Sequence[str], layers: LayersArgument
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.float64]]]:
    """Give each sentence's position, tokens and their vectors, shape (n_tokens, dim)."""
    choice = resolve_layers(layers, encoder.n_layers + 1)
    if choice.pooling != "mean":
        raise ValueError(f"layers {choice.label!r} takes one token; give a choice that averages.")
    for rows, ids, mask, hidden in encoder.hidden_states(sentences):
        total: Any = sum(hidden[index].double().cpu() for index in choice.indices)
        states = (total / len(choice.indices)).numpy()
        for row, tokens, n, vectors in zip(
            rows, ids.cpu().numpy(), mask.sum(dim=1), states, strict=True
        ):
            yield int(row), tokens[:n], vectors[:n]


def run_influence(
    encoder: Encoder,
    layers: Sequence[str],
    target: Target,
    calibrators: Sequence[str],
    *,
    n_sentences: int = 300,
) -> list[dict[str, Any]]:
    """Measure each token's influence on the calibrated vector, against the token's rarity.

    The calibrators are fitted on the target's sentences, with random state 0; ``n_sentences`` of
    the scored ones, drawn with a fixed seed, are looked at.

    Gives, for each layers and calibrator: ``rank_correlation``, Spearman x 100 between influence
    and inverse document frequency within a sentence, averaged over sentences; ``idf``, the mean of
    it in bins of equally many tokens, and ``influence``, the mean in each bin, where 1 is a token
    like any other of its sentence; ``special``, that of [CLS], [SEP] and the like, which are in no
    bin.
    """
    idf = encoder.token_weights(target.fitted).values.astype(np.float64)
    texts = sorted(set(target.pairs.sentences))
    rng = np.random.default_rng(_SEED)
    chosen = rng.choice(len(texts), size=min(n_sentences, len(texts)), replace=False)
    sentences = [texts[i] for i in chosen]
    vectors = encoder.encode(list(target.fitted), layers=list(layers))
    special = np.array(sorted(encoder.tokenizer.all_special_ids))
    rows = []
    for choice in layers:
        for name in calibrators:
            model = fit_calibrator(name, vectors[choice], seed=_SEED)
            found = token_influence(
                encoder, sentences, choice, None if model is None else model.transform
            )
            row: dict[str, Any] = {"data": target.pairs.name, "layers": choice, "calibrator": name}
            rows.append(row | _summarize(found, idf, special))
    return rows


def _summarize(found: TokenInfluence, idf: Floats, special: Any) -> dict[str, Any]:
    ordinary = ~np.isin(found.token, special)
    rarity = idf[found.token]
    by_sentence = []
    for one in np.unique(found.sentence):
        rows = ordinary & (found.sentence == one)
        if len(set(rarity[rows])) > 1:
            by_sentence.append(spearman(rarity[rows], found.influence[rows]))
    order = np.argsort(rarity[ordinary], kind="stable")
    bins = np.array_split(order, IDF_BINS)
    return {
        "rank_correlation": round(100 * float(np.mean(by_sentence)), 2),
        "idf": [round(float(rarity[ordinary][rows].mean()), 3) for rows in bins],
        "influence": [round(float(found.influence[ordinary][rows].mean()), 3) for rows in bins],
        "special": round(float(found.influence[~ordinary].mean()), 3)
        if (~ordinary).any()
        else None,
    }
