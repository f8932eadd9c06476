"""The flow's gain taken apart: words, sentences seen, spectrum, holes, frequency.

Five questions about the space of one layer choice, a method of `Parts` each; `run_parts` encodes a
set once and asks all.  Flows and whitening are fitted on the different sentences of the scored
pairs, unless a question varies just that.  Values are [estimate, low, high].
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.linear_model import Ridge

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.controls.runs import to_triple
from bertflow_lite.experiments.controls.statistics import bootstrap_systems
from bertflow_lite.experiments.controls.weights import encode_weightings, token_states
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import AnyEncoder, calibrated, fit_calibrator
from bertflow_lite.measures.geometry import effective_rank, iso_score, mean_cosine, singular_values
from bertflow_lite.measures.scores import Aggregation, pair_cosines
from bertflow_lite.measures.similarity import Floats, spearman
from bertflow_lite.text import split_words

logger = logging.getLogger(__name__)
HELD, ALPHA = 40, 1e-2  # best of five and of three, for minilm's block 4 on sentences not fitted
LOOKED_AT = 150  # sentences whose tokens are looked at
OTHERS = 6000  # sentences that words are learned from, at most
Rows = list[dict[str, Any]]
Space = NDArray[Any]  # sentence vectors, shape (n, dim)
Systems = dict[str, list[Floats]]
Wants = Mapping[str, Sequence[str]]  # name of a difference -> added, subtracted, added, ...


@dataclass(frozen=True)
class Parts:
    """A set of pairs, the row of each of its sentences in an array of the different ones; seeds."""

    pairs: SentencePairs
    rows: NDArray[np.intp]
    seeds: int = 3

    def bag(self, x: Space, foretold: Space) -> Rows:
        """Score what words foretell of the vectors, and the rest: raw, whitened, with the flow."""
        left = ((x - foretold) ** 2).sum() / ((x - x.mean(axis=0)) ** 2).sum()
        systems: Systems = {}
        wants: dict[str, list[str]] = {}
        for part, z in {"whole": x, "words": foretold, "rest": x - foretold}.items():
            for name in ("none", "whiten", "flow"):
                systems[f"{part} {name}"] = self._fit(name, z)
            wants[f"{part}: + flow"] = [f"{part} flow", f"{part} none"]
            gains = [*wants[f"{part}: + flow"], "whole none", "whole flow"]
            if part != "whole":
                wants[f"gain of {part} - of whole"] = gains
        share = {"what": "share of the variance that words foretell", "value": 100 * (1 - left)}
        return [share, *self._compare(systems, wants)]

    def halves(self, x: Space) -> Rows:
        """Fit on the sentences that are scored, on others of their kind, and with repeated ones.

        Each half of the pairs (`split_pairs`) is scored by what was fitted on its own sentences,
        and on those of the other half; the score is the mean of the halves'.
        """
        rows: Rows = []
        for seed in range(self.seeds):
            first = split_pairs(self.pairs, seed)
            systems = {"none": [pair_cosines(self.pairs, x[self.rows])]}
            for name in ("whiten", "flow"):
                by = []
                for half in (first, ~first):
                    fit_on = x[np.unique(self.rows.reshape(2, -1)[:, half])]
                    z = calibrated(name, fit_on, x, seed=seed)
                    by.append(pair_cosines(self.pairs, z[self.rows]))
                systems[f"{name} seen"] = [np.where(first, by[0], by[1])]
                systems[f"{name} others"] = [np.where(first, by[1], by[0])]
            wants = {
                f"{n}, seen - others": [f"{n} seen", f"{n} others"] for n in ("whiten", "flow")
            }
            wants["+ flow, others"] = ["flow others", "none"]
            halved = replace(self, pairs=replace(self.pairs, subsets=first.astype(str)))
            rows += [{"seed": seed, **row} for row in halved._compare(systems, wants, "mean")]
        systems = {"flow": self._fit("flow", x), "flow, repeats": self._fit("flow", x, self.rows)}
        return rows + self._compare(systems, {"repeats": ["flow, repeats", "flow"]})

    def spectrum(self, x: Space) -> Rows:
        """Say how the space lies before and after parts of the flow, and what it scores.

        ``straight``: the share of what comes out that an affine map of what went in gives, with
        seed 0; "straight part of" a map is that alone.
        """
        changes: dict[str, Any] = {
            "actnorm only": {"coupling": False},
            "couplings only": {"actnorm": False},
        }
        systems: Systems = {}
        shapes: dict[str, dict[str, float]] = {}
        for name in ("none", "whiten", "flow", *changes):
            made = []
            for seed in range(self.seeds if name not in ("none", "whiten") else 1):
                kind = "flow" if name in changes else name
                made.append(calibrated(kind, x, x, seed=seed, **changes.get(name, {})))
            straight = [affine_part(x, z) for z in made]
            shapes[name] = describe(made[0]) | {"straight": straight[0][1]}
            systems[name] = [pair_cosines(self.pairs, z[self.rows]) for z in made]
            if name in ("flow", "couplings only"):
                systems[f"straight part of {name}"] = [
                    pair_cosines(self.pairs, z[self.rows]) for z, _ in straight
                ]
        wants = {f"{name} - none": [name, "none"] for name in systems if name != "none"}
        wants["couplings only - flow"] = ["couplings only", "flow"]
        return [row | shapes.get(row["what"], {}) for row in self._compare(systems, wants)]

    def frequency(self, spaces: Mapping[tuple[str, str], Space]) -> Rows:
        """Tell the lengths that training gave the states from which words are averaged, how often.

        ``spaces``: sentence vectors by the lengths of their tokens' states and by their weights.
        """
        systems: Systems = {}
        cosines: dict[str, dict[str, float]] = {}
        for (lengths, weights), z in spaces.items():
            name = f"{lengths} lengths, {weights} weights"
            systems |= {f"{name}, {how}": self._fit(how, z) for how in ("none", "flow")}
            cosines[f"{name}, none"] = {"mean_cosine": mean_cosine(z).estimate}
        base = "own lengths, equal weights, none"
        wants = {"equal lengths": ["equal lengths, equal weights, none", base],
                 "idf weights": ["own lengths, idf weights, none", base]}  # fmt: skip
        return [row | cosines.get(row["what"], {}) for row in self._compare(systems, wants)]

    def _fit(self, name: str, z: Space, fit_on: Any = slice(None)) -> list[Floats]:
        return [
            pair_cosines(self.pairs, calibrated(name, z[fit_on], z, seed=seed)[self.rows])
            for seed in range(self.seeds if name == "flow" else 1)
        ]

    def _compare(self, systems: Systems, wants: Wants, how: Aggregation = "all") -> Rows:
        """Score systems, and the wanted sums of them with changing sign, on resampled pairs."""
        scores = bootstrap_systems(self.pairs, systems, aggregation=how)
        rows: Rows = [{"what": n, "value": to_triple(scores.interval(n))} for n in systems]
        for what, names in wants.items():
            signs = dict(zip(names, (1.0, -1.0) * 2, strict=False))
            rows.append({"what": what, "value": to_triple(scores.contrast(signs))})
        return rows


def run_parts(
    encoder: AnyEncoder,
    layers: Sequence[str],
    pairs: SentencePairs,
    others: Sequence[str],
    *,
    seeds: int = 3,
) -> dict[str, Rows]:
    """Ask all five questions of a set; ``others`` are sentences of its kind that are not scored.

    Gives ``bag`` (only where there are others), ``halves``, ``spectrum``, ``holes`` and
    ``frequency``, with the set and the layers in each row.
    """
    texts = list(dict.fromkeys(pairs.sentences))
    n, row_of = len(texts), {one: row for row, one in enumerate(texts)}
    parts = Parts(pairs, np.array([row_of[one] for one in pairs.sentences]), seeds)
    both = texts + [one for one in dict.fromkeys(others) if one not in row_of][:OTHERS]
    weightings = {"equal": None, "idf": encoder.token_weights(texts)}
    own = encode_weightings(encoder, both, ["0", *layers], weightings)
    unit = encode_weightings(encoder, texts, layers, weightings, equal_lengths=True)
    bottom = "0" if ("0", "equal") in own else "mean"
    bags = np.hstack([own[bottom, weights] for weights in weightings])
    counts = count_tokens(encoder, both)
    found: dict[str, Rows] = {}
    for label in dict.fromkeys(label for label, _ in unit):
        x = own[label, "equal"]
        spaces = {("own", weights): own[label, weights][:n] for weights in weightings}
        spaces |= {("equal", weights): unit[label, weights] for weights in weightings}
        asked: dict[str, Rows] = {}
        if len(both) > n:
            asked["bag"] = parts.bag(x[:n], foretell_by_words(x, bags, counts, n)[:n])
        asked |= {
            "halves": parts.halves(x[:n]),
            "spectrum": parts.spectrum(x[:n]),
            "holes": measure_holes(x[:n]),
            "frequency": replace(parts, seeds=1).frequency(spaces),
        }
        if isinstance(encoder, Encoder):
            for name, rows in look_at_tokens(encoder, texts[:LOOKED_AT], label, counts).items():
                asked[name] += rows
        for name, rows in asked.items():
            head = {"data": pairs.name, "layers": label}
            found[name] = found.get(name, []) + [round_numbers(head | row, 4) for row in rows]
        logger.info("%s, layers %s: done", pairs.name, label)
    return found


def count_tokens(encoder: AnyEncoder, texts: Sequence[str]) -> sparse.csr_matrix:
    """Each token's share of each sentence, special ones included, shape (n, n_vocabulary)."""
    if isinstance(encoder, Encoder):
        ids = encoder.tokenizer(list(texts), truncation=True, max_length=encoder.max_length)
        rows, size = ids["input_ids"], len(encoder.tokenizer)
    else:
        known, size = encoder.row_of, len(encoder.vectors)
        rows = [[known[word] for word in split_words(one) if word in known] for one in texts]
    lengths = np.array([len(row) for row in rows])
    place = np.repeat(np.arange(len(rows)), lengths), np.concatenate(rows).astype(int)
    shares = np.repeat(1 / np.maximum(lengths, 1), lengths)
    return sparse.coo_matrix((shares, place), shape=(len(rows), size)).tocsr()


def foretell_by_words(x: Space, bags: Space, counts: sparse.csr_matrix, n: int) -> Space:
    """Foretell vectors from their words alone, linearly; learned on all rows but the first n.

    ``bags``: averages of the tokens' input vectors, in which rare words have a place too; beside
    them stand the counts of frequent tokens, and how many different ones there are.
    """
    often = np.bincount(counts[n:].indices, minlength=counts.shape[1]) >= HELD
    length = 1 / np.maximum(np.diff(counts.indptr), 1)
    known = np.column_stack([bags, counts[:, often].toarray(), length]).astype(np.float64)
    return np.asarray(Ridge(ALPHA).fit(known[n:], x[n:]).predict(known), dtype=x.dtype)


def split_pairs(pairs: SentencePairs, seed: int) -> NDArray[np.bool_]:
    """Halve the pairs at random so that no sentence stands in both; True for the first half."""
    row_of = {one: row for row, one in enumerate(dict.fromkeys(pairs.sentences))}
    a, b = np.array([row_of[one] for one in pairs.sentences]).reshape(2, -1)
    links = sparse.coo_matrix((np.ones(len(a)), (a, b)), shape=(len(row_of), len(row_of)))
    group = connected_components(links, directed=False)[1][a]
    sizes = np.bincount(group)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]  # the largest first
    inside = np.zeros(len(sizes), dtype=bool)
    for one in order:
        inside[one] = 2 * sizes[inside].sum() + sizes[one] <= len(a)
    return np.asarray(inside[group])


def describe(z: Space) -> dict[str, float]:
    """Say how a cloud lies: mean cosine, the top direction's share, ranks, correlations."""
    singular = singular_values(z)
    correlations = np.corrcoef(z[:, z.std(axis=0) > 0].T)
    off = correlations[~np.eye(len(correlations), dtype=bool)]
    return {
        "mean_cosine": mean_cosine(z).estimate,
        "top_share": float(singular[0] ** 2 / (singular**2).sum()),
        "effective_rank": effective_rank(singular),
        "iso_score": iso_score(z),
        "correlation": float(np.sqrt((off**2).mean())),  # of two coordinates, root mean square
    }


def affine_part(x: Space, z: Space) -> tuple[Space, float]:
    """Best affine map from x to z: what it gives, and its adjusted share of the variance of z."""
    known = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    straight = known @ np.linalg.lstsq(known, z, rcond=None)[0]
    left = ((z - straight) ** 2).sum() / ((z - z.mean(axis=0)) ** 2).sum()
    return straight, float(1 - left * (len(x) - 1) / max(len(x) - x.shape[1] - 1, 1))


def measure_holes(x: Space, seed: int = 0, n_points: int = 1000) -> Rows:
    """Ask whether the middle of two random sentences lies where no sentence does (Section 2.2).

    A flow is fitted on half of the sentences; the other half is looked at, raw and in the latent,
    and so is a Gaussian of the same size.  ``nearest``: the middle's distance to the nearest
    sentence but its ends, over a sentence's to its nearest, medians; ``length``: the same of the
    distance to the center; ``likelier``: share of middles likelier than the median sentence.
    """
    rng = np.random.default_rng(seed)
    old, new = np.array_split(x[rng.permutation(len(x))], 2)
    flow = fit_calibrator("flow", old, seed=seed)
    a, b = rng.integers(len(new), size=(2, n_points))
    a, b = a[a != b], b[a != b]
    rows = []
    for space in ("raw", "latent", "Gaussian"):
        cloud = {"raw": new, "latent": flow.transform(new)}.get(space, rng.normal(size=new.shape))
        middle = ((cloud[a] + cloud[b]) / 2).astype(cloud.dtype)
        apart, far = cdist(cloud, cloud), cdist(middle, cloud)
        np.fill_diagonal(apart, np.inf)
        far[np.arange(len(a)), a] = far[np.arange(len(a)), b] = np.inf
        long, usual = (np.linalg.norm(one - cloud.mean(axis=0), axis=1) for one in (middle, cloud))
        density = flow.score_samples if space == "raw" else lambda z: -(z**2).sum(axis=1)
        rows.append(
            {
                "space": space,
                "nearest": np.median(far.min(axis=1)) / np.median(apart.min(axis=1)),
                "length": np.median(long) / np.median(usual),
                "likelier": np.mean(density(middle) > np.median(density(cloud))),
            }
        )
    return rows


def look_at_tokens(
    encoder: Encoder, texts: Sequence[str], layers: str, counts: sparse.csr_matrix
) -> dict[str, Rows]:
    """Compare sentence vectors with states of tokens, and the states' lengths with frequency.

    ``nearest``: a sentence vector's distance to the nearest token of another sentence, over a
    token's, medians.  ``value``: rank correlation of a token's mean length with the number of
    sentences that hold it, special ones left out; ``spread``: deviation of lengths over their mean.
    """
    found = list(token_states(encoder, texts, layers))
    states = np.concatenate([one for _, _, one in found])
    means = np.stack([one.mean(axis=0) for _, _, one in found])
    owner = np.repeat(np.arange(len(found)), [len(one) for _, _, one in found])
    medians = []
    for points, of in ((means, np.arange(len(found))), (states, owner)):
        far = [cdist(points[of == k], states[owner != k]).min(axis=1) for k in range(len(found))]
        medians.append(np.median(np.concatenate(far)))
    ids, length = np.concatenate([tokens for _, tokens, _ in found]), np.linalg.norm(states, axis=1)
    ordinary = ~np.isin(ids, encoder.tokenizer.all_special_ids)
    kinds, kind = np.unique(ids[ordinary], return_inverse=True)
    often = np.bincount(counts.indices, minlength=counts.shape[1])[kinds]
    frequency = {
        "what": "length of a state, by the frequency of its token",
        "value": 100 * spearman(np.bincount(kind, length[ordinary]) / np.bincount(kind), often),
        "spread": length[ordinary].std() / length[ordinary].mean(),
    }
    near = {"space": "sentence vectors among tokens", "nearest": medians[0] / medians[1]}
    return {"holes": [near], "frequency": [frequency]}
