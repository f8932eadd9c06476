"""flow (NLI): a flow fitted on sentences of SNLI and MultiNLI, labels unused (Section 4.1).

The paper trains it for 0.15 epoch at a learning rate of 2e-5 (Appendix B).  On two million
sentences that is thousands of steps; on a small corpus it is a few hundred and hardly moves the
flow from its initialization.  So there are two forms: as published, and trained to convergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.experiments.scoring import fit_calibrator
from bertflow_lite.train import train_flow

NliForm = Literal["published", "converged"]
NLI_FORMS: tuple[NliForm, ...] = ("published", "converged")
# Appendix B.
PUBLISHED_EPOCHS = 0.15
PUBLISHED_RATE = 2e-5
# Sentences drawn where there are more: 0.15 epoch of all SNLI and MultiNLI needs fewer, and what
# a flow of this size learns from more of them is below the differences among seeds.
MOST_SENTENCES = 300_000


class ConvergedFlow(FlowCalibrator):
    """A flow trained until the bits per dimension of held-out embeddings stop falling.

    A tenth of the embeddings, drawn at random, is held out.  After each pass over the others their
    bits per dimension are measured (``held_out_bits_``, the first after initialization).  Training
    ends with the first pass that lowers them by less than ``least_gain``, or after ``most_epochs``
    passes; the best flow is kept.  Batches are larger than the paper's, for speed.
    """

    def __init__(
        self,
        least_gain: float = 0.005,
        most_epochs: int = 30,
        *,
        batch_size: int = 256,
        random_state: int = 0,
        progress: bool = False,
    ) -> None:
        super().__init__(
            epochs=0, batch_size=batch_size, random_state=random_state, progress=progress
        )
        self.least_gain = least_gain
        self.most_epochs = most_epochs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to embeddings, shape (n >= 20, dim >= 2); see the class."""
        x = np.asarray(X)
        if len(x) < 20:
            raise ValueError(f"there are {len(x)} rows; a tenth is held out, so give 20 or more.")
        order = np.random.default_rng(self.random_state).permutation(len(x))
        held_out, fitted = x[order[: len(x) // 10]], x[order[len(x) // 10 :]]
        super().fit(fitted)  # 0 epochs: initializes from data
        data = self._tensor(fitted[:, self.live_])
        best = self._weights()
        self.held_out_bits_ = [self.bits_per_dim(held_out)]
        for epoch in range(self.most_epochs):
            self.flow_.train().requires_grad_(True)
            train_flow(
                self.flow_,
                data,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                max_grad_norm=self.max_grad_norm,
                seed=1000 * self.random_state + epoch,
                progress=self.progress,
            )
            self.flow_.eval().requires_grad_(False)
            lowest = min(self.held_out_bits_)
            self.held_out_bits_.append(self.bits_per_dim(held_out))
            if self.held_out_bits_[-1] < lowest:
                best = self._weights()
            if self.held_out_bits_[-1] > lowest - self.least_gain:
                break
        self.flow_.load_state_dict(best)
        return self

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.flow_.state_dict().items()}


def fit_nli_flow(
    embeddings: NDArray[np.floating[Any]], *, form: NliForm, seed: int = 0, progress: bool = False
) -> FlowCalibrator:
    """Fit the flow of the rows "flow (NLI)".

    ``"published"``: one pass over a random 15 % of the embeddings (0.15 epoch) in batches of 32 at
    a learning rate of 2e-5, after data-dependent initialization. ``"converged"``: at 1e-3, as
    `ConvergedFlow`.
    """
    if form not in NLI_FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(NLI_FORMS)}.")
    model: FlowCalibrator
    if form == "converged":
        model = ConvergedFlow(random_state=seed, progress=progress)
    else:
        some = max(2, round(PUBLISHED_EPOCHS * len(embeddings)))
        rows = np.random.default_rng(seed).permutation(len(embeddings))[:some]
        embeddings = embeddings[rows]
        model = FlowCalibrator(learning_rate=PUBLISHED_RATE, random_state=seed, progress=progress)
    fit_calibrator(model, embeddings)
    return model


def choose_sentences(sentences: Sequence[str], most: int | None = None) -> list[str]:
    """Draw sentences at random, always the same ones, where there are more than ``most``.

    By default that is 300,000. The order stays.
    """
    most = MOST_SENTENCES if most is None else most
    if most < 20:
        raise ValueError(f"{most} NLI sentences are asked for; the flow needs 20 or more.")
    if len(sentences) <= most:
        return list(sentences)
    rows = np.random.default_rng(0).choice(len(sentences), most, replace=False)
    return [sentences[row] for row in np.sort(rows)]
