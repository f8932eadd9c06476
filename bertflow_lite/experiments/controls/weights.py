"""What the flow's gain is made of: tokens weighed by rarity first, then calibrated or not.

Nothing but the weights of the mean is varied (`encoders.token_weights`), and nothing but the
calibrator after it.  So a gain of the flow can be set beside the gain of weights alone, of one
direction removed, and of linear whitening, on the same resampled pairs.  The weight that a token
really has once the mean is calibrated is found by leaving it out (`token_influence`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import is_random_name
from bertflow_lite.encoders.pooling import LayersArgument, pool, resolve_layers
from bertflow_lite.encoders.token_weights import KINDS, TokenWeights
from bertflow_lite.encoders.transformer import BATCH_TOKENS, Encoder, load_encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments.controls.overlap import within_overlap, word_overlap
from bertflow_lite.experiments.controls.runs import System, fits, score_seeds, to_triple
from bertflow_lite.experiments.controls.statistics import (
    BootstrapScores,
    bootstrap_partials,
    bootstrap_systems,
)
from bertflow_lite.experiments.controls.words import WordCountEncoder
from bertflow_lite.experiments.runs import Keep, no_keep
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    Floats32,
    Target,
    fit_calibrator,
    transform,
)
from bertflow_lite.measures.scores import Interval, interval_ends, pair_cosines
from bertflow_lite.measures.similarity import Floats, cosine, spearman, unit_rows

logger = logging.getLogger(__name__)
EQUAL = "equal"
WEIGHTS = (EQUAL, *KINDS)
SEVERAL_SEEDS = (EQUAL, "idf")
"""Weights with which the flow is fitted with every seed; with the others, with the first only."""
BESIDE = ("equal none", "equal flow", "idf none", "idf flow")
RESAMPLES = 500
IDF_BINS = 8
Systems = dict[str, list[Floats]]  # by "WEIGHTS CALIBRATOR", an array for each seed


def read_text(path: str | Path, megabytes: float = 8) -> tuple[list[str], str]:
    """Read the beginning of a text, one sentence after the other, to count words in.

    The file is UTF-8 text, plain or ``.xz``; a sentence ends where a full stop, a question mark or
    an exclamation mark comes before a space.

    Gives the sentences, and 16 hex digits over them.
    """
    file = Path(path)
    opener: Callable[..., Any] = lzma.open if file.suffix == ".xz" else open
    with opener(file, "rt", encoding="utf-8") as stream:
        text = stream.read(int(megabytes * 1e6))
    sentences = [one for one in re.split(r"(?<=[.!?])\s+|\n+", text) if one.strip()]
    if not sentences:
        raise ValueError(f"{file.name!r} holds no text to count words in.")
    return sentences, hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16]


def permute_vocabulary(encoder: AnyEncoder, seed: int = 0) -> AnyEncoder:
    """Exchange the input vectors of an encoder's tokens at random.

    Sentences that share words share them still, and each word is still one and the same word
    everywhere; but the encoder takes it for another one.  Special tokens stay what they are.

    Gives the encoder: a new one of word vectors, a transformer changed in place.
    """
    rng = np.random.default_rng(seed)
    mark = f"{encoder.fingerprint}-permuted-{seed}"
    if isinstance(encoder, WordVectorEncoder):  # loaded once in a process, so left alone
        table = np.asarray(encoder.vectors)[rng.permutation(len(encoder.vectors))]
        encoder = WordVectorEncoder(table, list(encoder.row_of), encoder.name)
    else:
        order = np.arange(len(encoder.tokenizer))
        ordinary = np.setdiff1d(order, encoder.tokenizer.all_special_ids)
        order[ordinary] = rng.permutation(ordinary)
        with torch.no_grad():
            weight = encoder.model.get_input_embeddings().weight
            weight[: len(order)] = weight[torch.as_tensor(order, device=weight.device)].clone()
    encoder.fingerprint = mark
    return encoder


def encode_weightings(
    encoder: AnyEncoder,
    sentences: Sequence[str],
    layers: Sequence[str],
    weightings: Mapping[str, TokenWeights | None],
    *,
    equal_lengths: bool = False,
) -> dict[tuple[str, str], Floats32]:
    """Encode with several weightings from one forward pass; by label of the layers, and weights.

    It gives what ``encoder.encode`` gives for each of them, and keeps nothing in the cache.  With
    ``equal_lengths``, each token's state is divided by its length first.
    """
    if isinstance(encoder, WordVectorEncoder):
        if equal_lengths:
            unit = unit_rows(np.asarray(encoder.vectors, dtype=np.float64)).astype(np.float32)
            encoder = WordVectorEncoder(unit, list(encoder.row_of), encoder.name)
        return {
            ("mean", name): encoder.encode(sentences, weights=weights)
            for name, weights in weightings.items()
        }
    choices = [resolve_layers(choice, encoder.n_layers + 1) for choice in layers]
    if any(choice.pooling != "mean" for choice in choices):
        raise ValueError("weights are for layer choices that average, not for 'cls'.")
    out = {
        (choice.label, name): np.zeros((len(sentences), encoder.dim), dtype=np.float32)
        for choice in choices
        for name in weightings
    }
    tokens = BATCH_TOKENS.get(encoder.device.type, 2048)
    if encoder.device.type == "cpu":
        tokens *= torch.get_num_threads()
    for rows, ids, mask, states in encoder.hidden_states(sentences, batch_tokens=tokens):
        if equal_lengths:
            states = tuple(torch.nn.functional.normalize(one, dim=-1) for one in states)
        for name, weights in weightings.items():
            counts = None if weights is None else weights.of(ids)
            for choice in choices:
                total: Any = sum(
                    pool(states[index], mask, slot, counts)
                    for index, slot in zip(choice.indices, choice.slots, strict=True)
                )
                out[choice.label, name][rows] = (total / len(choice.indices)).cpu().numpy()
    return out


def run_weights(
    system: System,
    data: Sequence[str],
    calibrators: Sequence[str],
    text: Sequence[str],
    *,
    permute: bool = False,
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    keep: Keep = no_keep,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure one set after the other: weights, calibrators, and what is left of the gain.

    The calibrators are fitted on the different sentences of the scored split, and "idf" is counted
    in them; "sif" is counted in ``text``.  With ``permute``, the encoder's vocabulary is permuted
    first (`permute_vocabulary`).  Of a random model each seed draws the weights anew.

    Gives, after each set, the encoder's fingerprint, and results for all sets so far: ``rows``,
    Spearman x 100 of each weighting and calibrator, a list over seeds; ``differences``
    (`find_differences`); ``beside`` (`measure_beside`).
    """
    drawn = is_random_name(system.model)

    @functools.lru_cache(maxsize=1)
    def open_encoder(seed: int) -> tuple[AnyEncoder, TokenWeights]:
        encoder = load_encoder(
            f"{system.model}:{seed}" if drawn else system.model,
            max_length=max_length,
            device=device,
            download=download,
            cache=False,
        )
        if permute:
            encoder = permute_vocabulary(encoder)
        return encoder, encoder.token_weights(text, "sif")

    def measure(pairs: SentencePairs) -> dict[str, Any]:
        texts = list(dict.fromkeys(pairs.sentences))
        row_of = {one: row for row, one in enumerate(texts)}
        wanted = np.array([row_of[one] for one in pairs.sentences])
        found: dict[str, Systems] = {}
        prints = []
        vectors: dict[tuple[str, str], Floats32] = {}
        for seed in range(system.seeds):
            if drawn or seed == 0:
                encoder, sif = open_encoder(seed)
                prints.append(encoder.fingerprint)
                weightings: dict[str, TokenWeights | None] = {EQUAL: None}
                for kind in KINDS:
                    weightings[kind] = encoder.token_weights(texts, kind)
                weightings["sif"] = sif
                vectors = encode_weightings(encoder, texts, system.layers, weightings)
            for (label, weights), x in vectors.items():
                for name in calibrators:
                    if not fits(name, x.shape[1]) or not _wanted(weights, name, seed, drawn):
                        continue
                    z = transform(fit_calibrator(name, x, seed=seed), x)[wanted]
                    seeds = found.setdefault(label, {}).setdefault(f"{weights} {name}", [])
                    seeds.append(pair_cosines(pairs, z))
            logger.info("%s on %s, seed %d: done", system.model, pairs.name, seed)
        out: dict[str, Any] = {"fingerprint": ", ".join(prints), "rows": [], "differences": []}
        out["beside"] = []
        for label, systems in found.items():
            head = {"data": pairs.name, "layers": label}
            for key, seeds in systems.items():
                weights, _, name = key.partition(" ")
                row = head | {"weights": weights, "calibrator": name}
                out["rows"].append(row | score_seeds(pairs, seeds))
            out["differences"] += [head | one for one in find_differences(pairs, systems)]
            out["beside"] += [head | one for one in measure_beside(pairs, texts, systems)]
        return out

    parts: list[dict[str, Any]] = []
    for name in data:
        pairs = load_sts(name, download=download)
        compute = functools.partial(measure, pairs)
        parts.append(keep(f"{pairs.name} {pairs.fingerprint}", compute))
        if parts[-1]["fingerprint"] != parts[0]["fingerprint"]:
            raise ValueError(
                f"{system.model!r} has changed since the first sets were measured: begin anew "
                "(command line: --no-resume)."
            )
        yield parts[0]["fingerprint"], put_together(parts)


def _wanted(weights: str, calibrator: str, seed: int, drawn: bool) -> bool:
    """Whether a further seed changes anything, and is asked for."""
    if seed == 0:
        return True
    return weights in SEVERAL_SEEDS and (drawn or "flow" in calibrator)


def contrasts(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Give the differences that are looked at, as sums of systems, by name; the systems' names.

    ``"+ flow"`` is the gain of the flow on equal weights, ``"+ idf"`` that of the weights alone,
    ``"idf - flow"`` the weights alone against the flow alone, and ``"idf, + flow"`` what the flow
    adds once the weights are given.
    """
    raw, flow = f"{EQUAL} none", f"{EQUAL} flow"
    found: dict[str, dict[str, float]] = {}
    for key in names:
        weights, _, calibrator = key.partition(" ")
        if weights == EQUAL and calibrator != "none":
            found[f"+ {calibrator}"] = {key: 1.0, raw: -1.0}
            if calibrator != "flow":
                found[f"{calibrator} - flow"] = {key: 1.0, flow: -1.0}
        elif calibrator == "none" and weights != EQUAL:
            found[f"+ {weights}"] = {key: 1.0, raw: -1.0}
            found[f"{weights} - flow"] = {key: 1.0, flow: -1.0}
        elif weights != EQUAL:
            found[f"{weights}, + {calibrator}"] = {key: 1.0, f"{weights} none": -1.0}
            found[f"{weights} {calibrator} - flow"] = {key: 1.0, flow: -1.0}
    return {what: systems for what, systems in found.items() if set(systems) <= set(names)}


def find_differences(pairs: SentencePairs, systems: Systems) -> list[dict[str, Any]]:
    """Bootstrap every difference of `contrasts`: [estimate, low, high], and its draws."""
    scores = bootstrap_systems(pairs, systems, n_resamples=RESAMPLES)
    return [{"what": what, **_drawn(scores, c)} for what, c in contrasts(list(systems)).items()]


def _drawn(scores: BootstrapScores, contrast: Mapping[str, float]) -> dict[str, Any]:
    rows = [scores.names.index(name) for name in contrast]
    draws = np.array(list(contrast.values())) @ scores.resampled[rows]
    return {"difference": to_triple(scores.contrast(contrast)), "draws": draws.round(3).tolist()}


def placebo(gold: Floats, strength: float, seed: int = 0) -> Floats:
    """Make values that agree with gold as well as another predictor does, and know nothing else.

    They are ranks of gold with noise, as much of it as gives the Spearman correlation
    ``strength``, from 0 to 1.
    """
    noise = np.random.default_rng(seed).normal(size=len(gold))
    ranks = (gold - gold.mean()) / gold.std()
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        stronger = spearman(ranks + middle * noise, gold) > strength
        low, high = (middle, high) if stronger else (low, middle)
    return np.asarray(ranks + high * noise)


def measure_beside(
    pairs: SentencePairs, texts: Sequence[str], systems: Systems
) -> list[dict[str, Any]]:
    """Ask what is left of the gains once TF-IDF is known, or where words cannot help.

    ``given``: ``"tfidf"``, the partial correlation with gold given TF-IDF's cosine; ``"placebo"``,
    given values that agree with gold as well as TF-IDF does and have nothing else of it;
    ``"tfidf bins"`` and ``"placebo bins"``, the mean correlation within ten bins of either;
    ``"fewest shared"``, the correlation on the tenth of the pairs (``n``) whose words overlap
    least.

    Each row has the level of each system of `BESIDE` and the ``gains``: of the flow, of idf
    weights, and of the flow after idf weights.
    """
    some = {name: systems[name] for name in BESIDE if name in systems}
    words = WordCountEncoder("tfidf", dim=2).fit(texts)
    tfidf = words.similarities(pairs.sentences1, pairs.sentences2)
    other = placebo(pairs.gold, spearman(tfidf, pairs.gold))
    shared = word_overlap(pairs.sentences1, pairs.sentences2)
    few = np.flatnonzero(shared <= np.quantile(shared, 0.1))
    rows = []

    def add(given: str, n: int, scores: BootstrapScores) -> None:
        gains = {
            what: _drawn(scores, contrast)
            for what, contrast in contrasts(list(some)).items()
            if what in ("+ flow", "+ idf", "idf, + flow")
        }
        levels = {name: to_triple(scores.interval(name)) for name in some}
        rows.append({"given": given, "n": n, "levels": levels, "gains": gains})

    for name, values in (("tfidf", tfidf), ("placebo", other)):
        add(name, len(pairs), bootstrap_partials(pairs.gold, some, values, n_resamples=RESAMPLES))
        binned = within_overlap(pairs, values, 10)
        found = bootstrap_systems(binned, some, aggregation="wmean", n_resamples=RESAMPLES)
        add(f"{name} bins", len(pairs), found)
    least = {name: [one[few] for one in seeds] for name, seeds in some.items()}
    add("fewest shared", len(few), bootstrap_systems(pairs.select(few), least,
                                                     n_resamples=RESAMPLES))  # fmt: skip
    return rows


def put_together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the sets together; where there are several, ``"mean"`` is the mean over them.

    Sets are resampled independently of each other, so the mean of their draws is a draw of the
    mean.
    """
    out: dict[str, Any] = {key: [] for key in ("rows", "differences", "beside")}
    for part in parts:
        out["rows"] += part["rows"]
        out["differences"] += [dict(one) for one in part["differences"]]
        for row in part["beside"]:
            gains = {what: one["difference"] for what, one in row["gains"].items()}
            out["beside"].append(row | {"gains": gains})
    for row in out["differences"]:
        del row["draws"]
    if len(parts) < 2:
        return out
    for rows in zip(*(part["differences"] for part in parts), strict=True):
        head = {key: rows[0][key] for key in ("layers", "what")}
        out["differences"].append({"data": "mean", **head, "difference": _mean(rows)})
    for rows in zip(*(part["beside"] for part in parts), strict=True):
        gains = {what: _mean([row["gains"][what] for row in rows]) for what in rows[0]["gains"]}
        levels = {
            name: round(float(np.mean([row["levels"][name][0] for row in rows])), 2)
            for name in rows[0]["levels"]
        }
        head = {key: rows[0][key] for key in ("layers", "given")}
        out["beside"].append({"data": "mean", **head, "levels": levels, "gains": gains})
    return out


def _mean(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    estimate = float(np.mean([row["difference"][0] for row in rows]))
    draws: NDArray[np.float64] = np.mean([row["draws"] for row in rows], axis=0)
    low, high = interval_ends(draws)
    return to_triple(Interval(low, high, estimate, 0.95, len(draws), "all"))


SOURCES = ("+ idf", "+ natsv:1", "+ whiten")
"""What a part of the flow's gain can be had from, without a flow."""


def find_shares(results: Mapping[str, Any], layers: str, data: str = "mean") -> dict[str, float]:
    """Say what share of the flow's gain each simpler way gives, in percent; and the gain itself.

    ``"flow"`` is the gain in points, and ``"only the flow"`` what the best of the simpler ways
    (`SOURCES`) leaves of it, in percent, at least 0.
    """
    rows = [row for row in results["differences"] if row["layers"] == layers]
    points = {row["what"]: row["difference"][0] for row in rows if row["data"] == data}
    if "+ flow" not in points:
        raise ValueError(f"there are no differences for layers {layers!r} and data {data!r}.")
    gain = points["+ flow"]
    shares = {what: 100 * points[what] / gain for what in SOURCES}
    rest = max(0.0, 100 - max(shares.values()))
    return {"flow": gain, **shares, "only the flow": rest}


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
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(texts), size=min(n_sentences, len(texts)), replace=False)
    sentences = [texts[i] for i in chosen]
    vectors = encoder.encode(list(target.fitted), layers=list(layers))
    special = np.array(sorted(encoder.tokenizer.all_special_ids))
    rows = []
    for choice in layers:
        for name in calibrators:
            model = fit_calibrator(name, vectors[choice], seed=0)
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
