"""How a small BERT is made: its settings and what each is for, its model, and its objective."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

BIASES = ("log p", "zero", "none")


@dataclass(frozen=True)
class Recipe:
    """Shape and training settings."""

    # Shape of the encoder; the inner layer of a block is four times as wide.
    blocks: int = 4
    width: int = 256
    heads: int = 4
    length: int = 64  # pieces in a row, marks among them
    # Standard deviation of the blocks' weights before training: BERT's 0.02.  Three times as much
    # drowns a piece in what the blocks add to it, and learning is far slower.
    initial_std: float = 0.02
    # The same for word and position embeddings.  Both are added and normalized, so their ratio says
    # how much of a first hidden state is the word and how much its place.
    word_std: float = 0.02
    position_std: float = 0.02
    # Whether position embeddings start as sines and cosines of many wavelengths, as in the first
    # transformer, rather than at random.  With waves, "one place to the left" is the same rotation
    # at every place, so a head can learn it once; at random, for each place by itself.
    waves: bool = True
    # Strength, 0 for none, with which the heads of the first block begin by looking one and two
    # places to either side; needs waves.  Finding out that the neighbors matter is what keeps a
    # small model on the plateau of the unigram loss for so long.
    neighbors: float = 1.2
    learning_rate: float = 1.5e-3  # highest of AdamW, then falling linearly to zero
    warmup_tokens: float = 1e6  # with rising rate
    # Rows in a batch at first, and at last; tokens after which the batch doubles until then.
    rows: int = 128
    most_rows: int = 256
    double_every: float = 5e6
    # Share of the pieces to predict, at first, and after so many tokens, linear between: 80 % of
    # them become [MASK], 10 % a random piece, 10 % stay.  More of them teach more in a step; fewer
    # leave more of the sentence to see.
    masked: float = 0.3
    masked_last: float = 0.15
    masked_falls: float = 5e6
    weight_decay: float = 0.01
    beta2: float = 0.98
    epsilon: float = 1e-6
    clip: float = 1.0  # highest gradient norm
    dropout: float = 0.0  # in all places where BERT has it
    tied: bool = True  # whether the output layer's weights are the word embeddings, as in BERT
    # Of the output layer: "log p" starts at the log frequency of each piece, so that the first loss
    # is that of a unigram model and no step is spent on learning it; "zero" starts at 0, as in
    # BERT; "none" stays 0, as in the paper's Eq. 1: frequency has no other place than the vectors.
    bias: str = "log p"

    def __post_init__(self) -> None:
        """Check what would fail late or quietly."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not split into {self.heads} heads.")
        for share in (self.masked, self.masked_last):
            if not 0 < share < 1:
                raise ValueError(f"masked={share}: give a share between 0 and 1.")
        if self.neighbors and not self.waves:
            raise ValueError("neighbors needs waves: at random places there is no rotation to set.")
        if self.learning_rate <= 0 or self.warmup_tokens < 0:
            raise ValueError("learning_rate must be positive, and warmup_tokens not negative.")
        if not 0 < self.rows <= self.most_rows:
            raise ValueError(f"rows={self.rows} must lie between 1 and most_rows.")
        if self.bias not in BIASES:
            raise ValueError(f"bias={self.bias!r}: give one of {', '.join(map(repr, BIASES))}.")

    def as_dict(self) -> dict[str, Any]:
        """Give the settings as JSON can hold them."""
        return dataclasses.asdict(self)


RECIPES = {
    "mini": Recipe(),
    "tiny": Recipe(
        blocks=2, width=32, heads=2, length=32, rows=16, most_rows=32, double_every=1e5,
        warmup_tokens=1e4, masked_falls=1e5,
    ),
}  # fmt: skip
"""``mini`` is the book's model; ``tiny`` serves to try things in seconds."""


def find_recipe(name: str) -> Recipe:
    """Give a recipe by its name; ValueError where there is none."""
    if name not in RECIPES:
        raise ValueError(f"there is no config {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name]


def unigram_log_p(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of each piece's share of the text, half a count added to every piece.

    It is also where the bias of the output layer starts.

    Examples
    --------
    >>> np.exp(unigram_log_p(np.array([3, 0, 0]))).round(3)
    array([0.778, 0.111, 0.111])
    """
    smooth = counts + 0.5
    return np.asarray(np.log(smooth / smooth.sum()))


def make_masked_model(recipe: Recipe, tokenizer: Any, counts: NDArray[np.int64], seed: int) -> Any:
    """Make a BERT with random weights.

    The counts are those of the corpus. It is in training mode, float32, on the CPU.
    """
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.width,
        max_position_embeddings=max(recipe.length, 128),
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
        initializer_range=recipe.initial_std,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=recipe.tied,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = BertForMaskedLM(config)
        embeddings = model.bert.embeddings
        embeddings.word_embeddings.weight.normal_(0, recipe.word_std)
        positions = embeddings.position_embeddings.weight
        if recipe.neighbors:
            first: Any = model.bert.encoder.layer[0]
            look_at_neighbors(first.attention.self, recipe.neighbors)
        if recipe.waves:
            positions.copy_(recipe.position_std * make_waves(*positions.shape))
        else:
            positions.normal_(0, recipe.position_std)
        embeddings.token_type_embeddings.weight.zero_()
        if not recipe.tied:
            model.cls.predictions.decoder.weight.normal_(0, recipe.word_std)
        log_p = torch.from_numpy(unigram_log_p(counts)).float()
        head: Any = model.cls.predictions
        for bias in (head.bias, head.decoder.bias):  # the same tensor only where tied
            bias.copy_(log_p if recipe.bias == "log p" else torch.zeros_like(log_p))
            bias.requires_grad_(recipe.bias != "none")
    model.set_attn_implementation(attention_on("cpu"))
    return model.train()


def attention_on(kind: str) -> str:
    """Name the faster way to compute attention on a type of device.

    With rows this short, plain products are faster than torch's fused attention on a CPU
    (benchmarks/bench_pretraining.py), and only there.

    Examples
    --------
    >>> attention_on("cpu"), attention_on("cuda")
    ('eager', 'sdpa')
    """
    return "eager" if kind == "cpu" else "sdpa"


def look_at_neighbors(attention: Any, strength: float) -> None:
    """Let the heads of the first block begin by looking one and two places to either side.

    With waves, key and query need a rotation between them: the product of place i, turned by s
    places, with place j is greatest at j = i + s.
    """
    size, width = attention.attention_head_size, attention.query.in_features
    rates = wave_rates(width)[: size // 2]
    for head, shift in zip(range(attention.num_attention_heads), (-1, 1, -2, 2), strict=False):
        rows = slice(head * size, (head + 1) * size)
        turn = torch.block_diag(*(
            torch.tensor([[(r * shift).cos(), (r * shift).sin()],
                          [-(r * shift).sin(), (r * shift).cos()]]) for r in rates
        ))  # fmt: skip
        attention.query.weight[rows, :size] += strength * turn
        attention.key.weight[rows, :size] += strength * torch.eye(size)


def wave_rates(width: int) -> Tensor:
    """Radians from one place to the next, shape (width / 2,), fastest first."""
    return math.pi * 1000 ** (-torch.arange(0, width, 2) / width)


def make_waves(n: int, width: int) -> Tensor:
    """Sines and cosines of the place, wavelengths from 2 to 2,000 places, of variance 1.

    Shape (n, width); the width is even.
    """
    rates = wave_rates(width)
    angles = torch.arange(n)[:, None] * rates
    return math.sqrt(2) * torch.stack([angles.sin(), angles.cos()], dim=2).reshape(n, width)


def learning_rate_at(recipe: Recipe, tokens: float, share: float) -> float:
    """Rate at a point of the run: a linear rise, then a linear fall to zero.

    ``tokens`` were seen so far, the coming batch among them; ``share`` of the run is over, by
    tokens or by time, 0 to 1.

    Examples
    --------
    >>> recipe = Recipe(learning_rate=1.0, warmup_tokens=10)
    >>> [learning_rate_at(recipe, t, t / 100) for t in (5, 10, 60, 100)]
    [0.475, 0.9, 0.4, 0.0]
    """
    rise = min(tokens / recipe.warmup_tokens, 1.0) if recipe.warmup_tokens > 0 else 1.0
    return recipe.learning_rate * rise * max(1.0 - share, 0.0)


def masked_at(recipe: Recipe, tokens: float) -> float:
    """Share of the pieces to predict after so many tokens.

    Examples
    --------
    >>> recipe = Recipe(masked=0.3, masked_last=0.1, masked_falls=10)
    >>> [round(masked_at(recipe, t), 3) for t in (0, 5, 10, 20)]
    [0.3, 0.2, 0.1, 0.1]
    """
    fallen = min(tokens / recipe.masked_falls, 1.0) if recipe.masked_falls > 0 else 1.0
    return recipe.masked + fallen * (recipe.masked_last - recipe.masked)


def rows_at(recipe: Recipe, tokens: float) -> int:
    """Rows in a batch after so many tokens.

    Examples
    --------
    >>> recipe = Recipe(rows=64, most_rows=200, double_every=10)
    >>> [rows_at(recipe, t) for t in (0, 9, 10, 20, 30)]
    [64, 64, 128, 200, 200]
    """
    doublings = math.floor(tokens / recipe.double_every) if recipe.double_every > 0 else 0
    return min(recipe.rows * 2 ** min(doublings, 30), recipe.most_rows)


def mask_rows(
    rows: Tensor, tokenizer: Any, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Choose pieces at random; show the mask for 80 % of them, a random piece for 10 %.

    Rows, shape (n, length), are whole; marks and padding are never chosen. The generator is on the
    CPU.

    Gives what the model is shown, and where it has to predict, which is at least one place in all.
    """
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    can = ~torch.isin(rows, special)
    chosen = can & (torch.rand(rows.shape, generator=generator) < share)
    if not chosen.any() and can.any():
        chosen.view(-1)[int(can.view(-1).nonzero()[0])] = True
    fate = torch.rand(rows.shape, generator=generator)
    seen = torch.where(chosen & (fate < 0.8), tokenizer.mask_token_id, rows)
    other = torch.randint(len(tokenizer), rows.shape, generator=generator)
    return torch.where(chosen & (fate >= 0.9), other, seen), chosen


def masked_loss(model: Any, rows: Tensor, chosen: Tensor, seen: Tensor, pad: int) -> Tensor:
    """Mean of -log p over the chosen places, in nats.

    ``rows`` is the text, ``seen`` what the model is shown, both of shape (n, length); ``pad`` is
    the id that is hidden from attention.
    """
    mask = (rows != pad).long()
    # Sizes are rounded up: for each new one, the CPU's matrix library makes, and keeps, new code.
    longest = min(-(-int(mask.sum(1).max()) // 8) * 8, rows.shape[1])
    hidden = model.bert(seen[:, :longest], attention_mask=mask[:, :longest]).last_hidden_state
    places = chosen[:, :longest].reshape(-1).nonzero().squeeze(1)
    more = -len(places) % 64
    target = F.pad(rows[:, :longest].reshape(-1)[places], (0, more), value=-1)
    head = model.cls.predictions
    guess = head.transform(hidden.flatten(0, 1)[F.pad(places, (0, more))])
    return vocabulary_loss(guess, head.decoder.weight, head.decoder.bias, target)


_SLICE = 64
"""Places at once: 8 MB of float32 logits for BERT's vocabulary."""


def vocabulary_loss(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    r"""Mean of :math:`-\log p` under the softmax of ``hidden @ weight.T + bias``, in nats.

    The same as `torch.nn.functional.cross_entropy` of the logits, a slice of places at a time.

    With 30,522 word pieces the output layer's numbers are larger than all others together: a
    thousand places make 125 MB of logits, and as much again for their softmax, its gradient and the
    copies between types.  Here a slice is taken from hidden state to gradient before the next one
    begins, so that the numbers stay near the processor; only the gradient is kept for all places,
    in the type of the products (autocast's, where it is on; all else is float32).

    A negative target marks a place that does not count: it fills up a slice.

    Examples
    --------
    >>> hidden, weight = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> vocabulary_loss(hidden, weight, torch.zeros(2), torch.tensor([0, 1]))
    tensor(0.1269)
    """
    kind = hidden.device.type
    low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return _VocabularyLoss.apply(hidden.float(), weight, bias, target, low)


class _VocabularyLoss(torch.autograd.Function):
    """The gradient is found on the way forward: with softmax minus one-hot it is almost free."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, low: torch.dtype
    ) -> Tensor:
        n = max(int((target >= 0).sum()), 1)
        wanted = any(ctx.needs_input_grad)
        h, words = hidden.detach().to(low), weight.detach().to(low)
        slope = h.new_empty(len(h) if wanted else 0, len(words))
        total = hidden.new_zeros(())
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(h), _SLICE):
                part = slice(start, start + _SLICE)
                at, counts = target[part, None].clamp(min=0), (target[part, None] >= 0).float()
                logits = (h[part] @ words.T).float().add_(bias)
                logits.sub_(logits.amax(1, keepdim=True))
                own = logits.gather(1, at)
                p = logits.exp_()
                sums = p.sum(1, keepdim=True)
                total += ((sums.log() - own) * counts).sum()
                if wanted:  # d loss / d logits = (p - one-hot) / n
                    slope[part] = p.mul_(counts / (sums * n)).scatter_add_(1, at, counts / -n)
            if wanted:
                to_bias = slope.sum(0, dtype=torch.float32)
                ctx.save_for_backward((slope @ words).float(), (slope.T @ h).float(), to_bias)
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return (*(slope * one for one in ctx.saved_tensors), None, None)
