"""What makes a pre-training step fast on a CPU: each choice undone, one at a time, in one run.

The model is the book's (4 blocks, 256-d, 30,522 pieces), the text the book's own prose, packed as
any corpus is.  A step is masking, forward, backward, clipping and AdamW on 128 rows.  CPU time of
one thread is measured, in turns, and divided by the pieces that the step saw; the ratio is between
the medians.  Written to benchmarks/results/pretraining.json.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from machine import describe_machine

from bertflow_lite.encoders.models import load_model
from bertflow_lite.experiments.pretraining import recipe as objective
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, pack_corpus
from bertflow_lite.experiments.pretraining.loop import TrainingRun
from bertflow_lite.experiments.pretraining.recipe import RECIPES
from bertflow_lite.files import write_json

ROOT = Path(__file__).parent.parent
OURS = "all of it"
ROWS, ROUNDS, SMALL = 128, 5, 16_000
RECIPE = dataclasses.replace(
    RECIPES["mini"], rows=ROWS, most_rows=ROWS, masked=0.15, masked_last=0.15
)


def own_prose(tokenizer: Any) -> PackedCorpus:
    """Pack the paragraphs of the book's Markdown sources."""
    pages = sorted((ROOT / "book").glob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prose.txt"
        path.write_text("\n".join(" ".join(p.split()) for p in text.split("\n\n")), "utf-8")
        return pack_corpus(path, tokenizer, length=RECIPE.length)


def first_pieces(corpus: PackedCorpus, n: int, unknown: int) -> PackedCorpus:
    """Put the unknown piece in place of all pieces from the n-th on."""
    rows = np.where(corpus.rows < n, corpus.rows, unknown).astype(corpus.rows.dtype)
    return dataclasses.replace(corpus, rows=rows)


def make_run(corpus: PackedCorpus, tokenizer: Any, *, bf16: bool = True) -> TrainingRun:
    return TrainingRun(corpus, tokenizer, RECIPE, bf16=bf16, held_out=64)


def whole_loss(hidden: Any, weight: Any, bias: Any, target: Any) -> Any:
    logits = F.linear(hidden, weight, bias).float()
    return F.cross_entropy(logits, target, ignore_index=-1)


@contextmanager
def patched(name: str, value: Any) -> Iterator[None]:
    before = getattr(objective, name)
    setattr(objective, name, value)
    try:
        yield
    finally:
        setattr(objective, name, before)


class SmallTokenizer:
    """The tokenizer with fewer pieces, as far as a model and the masks need it."""

    def __init__(self, tokenizer: Any, n: int) -> None:
        self.n = n
        self.all_special_ids = tokenizer.all_special_ids
        self.pad_token_id, self.mask_token_id = tokenizer.pad_token_id, tokenizer.mask_token_id

    def __len__(self) -> int:
        return self.n


def contestants() -> dict[str, Callable[[], int]]:
    """One step of each, giving the number of pieces that it saw."""
    tokenizer = load_model("minilm", device="cpu").tokenizer
    corpus = own_prose(tokenizer)
    ours, single = make_run(corpus, tokenizer), make_run(corpus, tokenizer, bf16=False)
    fused, whole = make_run(corpus, tokenizer), make_run(corpus, tokenizer)
    fused.model.set_attn_implementation("sdpa")
    mixed = make_run(corpus, tokenizer)
    mixed._order = (0, np.random.default_rng(0).permutation(len(corpus.rows) - 64))
    small = first_pieces(corpus, SMALL, tokenizer.unk_token_id)
    small = dataclasses.replace(
        small, counts=np.bincount(small.rows.ravel(), minlength=SMALL).astype(np.int64)
    )
    few = make_run(small, SmallTokenizer(tokenizer, SMALL))

    def whole_step() -> int:
        with patched("vocabulary_loss", whole_loss):
            return step(whole)

    return {
        OURS: lambda: step(ours),
        "float32, not bfloat16": lambda: step(single),
        "torch's fused attention": lambda: step(fused),
        "all logits at once": whole_step,
        "rows in random order": lambda: step(mixed),
        f"{SMALL:,} pieces, not {len(tokenizer):,}": lambda: step(few),
    }


def step(run: TrainingRun) -> int:
    run.epoch = run.at = 0  # always the same rows, in the run's own order
    return run.step_once(0.0)


def main() -> int:
    torch.set_num_threads(1)
    steps = contestants()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):  # the first round is not counted
        for name, make_step in steps.items():
            began = time.process_time()
            pieces = make_step()
            if number:
                times[name].append((time.process_time() - began) / pieces)
    median = {name: statistics.median(spent) for name, spent in times.items()}
    rows = [
        {
            "name": name,
            "pieces_per_cpu_second": round(1 / m, 1),
            "ratio": round(m / median[OURS], 3),
        }
        for name, m in median.items()
    ]
    write_json(
        Path(__file__).parent / "results" / "pretraining.json",
        {"machine": describe_machine("transformers"), "rows_in_a_batch": ROWS, "rows": rows},
    )
    for row in rows:
        print(f"{row['name']:32} {row['pieces_per_cpu_second']:8.0f} pieces/s  {row['ratio']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
