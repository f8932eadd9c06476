"""Figure 1 as an experiment: where a flow takes real sentence embeddings, step by step.

The paper's Figure 1 draws the map from the embedding space to a standard Gaussian.  Here the same
is computed: the sentences of a set, raw, after each step of a trained flow, and in the latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from tabulate import tabulate

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.datasets.word_counts import load_word_counts, mean_log_frequency
from bertflow_lite.experiments.scoring import AnyEncoder, RunOptions, fit_calibrator
from bertflow_lite.experiments.table6 import FLOW_STEPS
from bertflow_lite.flow import ActNorm, AdditiveCoupling
from bertflow_lite.measures.geometry import mean_cosine
from bertflow_lite.measures.similarity import Floats

MOST_POINTS = 500


def flow_states(
    calibrator: FlowCalibrator, embeddings: NDArray[np.floating[Any]]
) -> dict[str, NDArray[np.float32]]:
    """Follow embeddings through a fitted flow.

    Gives ``"embeddings"``; ``"actnorm 1"``, after the first shift and scale; ``"step 1"`` and so
    on, after each coupling; the last one is the latent. Dimensions without any spread, which the
    flow leaves alone, are left out: each is of shape (n, n_live).
    """
    flow = calibrator.flow_
    live = np.ascontiguousarray(embeddings[:, calibrator.live_])
    weight = next(flow.parameters())
    u = torch.from_numpy(live).to(weight)
    states = {"embeddings": live.astype(np.float32)}
    finished: list[torch.Tensor] = []  # what the splits have taken out
    step = 0

    def state() -> NDArray[np.float32]:
        return np.asarray(torch.cat([*finished, u], dim=1).float().cpu().numpy())

    with torch.inference_mode():
        for level, layers in enumerate(flow.steps):
            for layer in layers:  # type: ignore[attr-defined]
                u = layer(u)[0]
                if isinstance(layer, ActNorm) and "actnorm 1" not in states:
                    states["actnorm 1"] = state()
                if isinstance(layer, AdditiveCoupling):
                    step += 1
                    states[f"step {step}"] = state()
            if level < len(flow.splits):
                u, done = flow.splits[level](u)
                finished.append(done)
    return states


def plane_coordinates(states: Sequence[NDArray[np.floating[Any]]]) -> list[tuple[Floats, float]]:
    """Project each state onto the plane through the origin that holds most of it.

    Principal directions without centering, so that the origin keeps its place: embeddings in a
    narrow cone lie to one side of it, a Gaussian lies all around it.  Each plane is turned to
    agree as well as it can with the one before, and scaled so that the root mean square distance
    of the points from the origin is 1.

    Gives coordinates, shape (n, 2), and the plane's share of the squared length of the rows.
    """
    out: list[tuple[Floats, float]] = []
    for state in states:
        rows = state.astype(np.float64)
        _, singular, directions = np.linalg.svd(rows, full_matrices=False)
        points = rows @ directions[:2].T
        share = float((singular[:2] ** 2).sum() / (singular**2).sum())
        points /= np.sqrt((points**2).sum(axis=1).mean())
        if out:
            points = points @ orthogonal_procrustes(points, out[-1][0])[0]
        else:
            points *= np.where(points.mean(axis=0) < 0, -1.0, 1.0)
        out.append((points, share))
    return out


def run_figure1(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Fit a flow on a set's sentences, and follow some of them through it (Figure 1).

    There is one set, by default mini-sts, and one flow, of random state 0.

    Gives ``row`` (positions in ``pairs.sentences``), ``log_frequency`` (mean over each sentence's
    words), and for each layer choice the ``states``: coordinates, the mean cosine of all pairs of
    sentences, and the plane's share of their squared length. No sentence is kept.
    """
    options = options or RunOptions()
    names = list(options.data or ["mini-sts"])
    if len(names) != 1:
        raise ValueError(f"Figure 1 shows one set, not {len(names)}: {', '.join(names)}.")
    pairs = load_sts(names[0], "all", download=options.download)
    texts = [*dict.fromkeys(pairs.sentences)]
    first = {text: row for row, text in reversed(list(enumerate(pairs.sentences)))}
    # A sentence of numbers and punctuation only has no word frequency to color it by.
    usable = [i for i, text in enumerate(texts) if any(letter.isalpha() for letter in text)]
    shown = np.random.default_rng(0).permutation(usable)[:MOST_POINTS]
    choices: Any = options.choices(*encoder.default_layers)
    maps: dict[str, Any] = {}
    for label, vectors in encoder.encode(texts, choices, progress=options.progress).items():

        def follow(vectors: NDArray[np.float32] = vectors) -> list[dict[str, Any]]:
            flow = fit_calibrator("flow", vectors, min_steps=FLOW_STEPS)
            states = flow_states(flow, vectors)
            planes = plane_coordinates(list(states.values()))
            return [
                {
                    "name": name,
                    "x": [round(float(value), 3) for value in points[shown, 0]],
                    "y": [round(float(value), 3) for value in points[shown, 1]],
                    "plane_share": round(share, 4),
                    "mean_cosine": round(mean_cosine(state).estimate, 4),
                }
                for (name, state), (points, share) in zip(states.items(), planes, strict=True)
            ]

        maps[label] = options.keep(label, follow)
    frequency = mean_log_frequency([texts[i] for i in shown], load_word_counts())
    return {
        "settings": {
            "data": {pairs.name: pairs.fingerprint},
            "layers": choices,
            "flow_steps": FLOW_STEPS,
        },
        "set": pairs.name,
        "fitted_on": len(texts),
        "row": [int(first[texts[i]]) for i in shown],
        "log_frequency": [round(float(value), 3) for value in frequency],
        "maps": maps,
    }


def format_figure1(results: dict[str, Any], style: str = "simple") -> str:
    """Say in a table what the map does to the mean cosine; `style` is one of tabulate's."""
    lines = [
        [label, state["name"], f"{state['mean_cosine']:.3f}", f"{100 * state['plane_share']:.1f} %"]
        for label, states in results["maps"].items()
        for state in states
    ]
    head = ["layers", f"{results['set']} after", "mean cosine", "squared length in the plane"]
    return tabulate(lines, head, tablefmt=style, disable_numparse=True)
