"""Pre-training a small BERT: rows, masks, the loop, and going on where it was stopped."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import lzma
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertflow_lite as bf
from bertflow_lite.experiments.pretraining import loop
from bertflow_lite.experiments.pretraining import recipe as vocabulary_loss_module
from bertflow_lite.experiments.pretraining.corpus import (
    pack_corpus,
    read_paragraphs,
    similar_lengths,
    split_sentences,
)
from bertflow_lite.experiments.pretraining.loop import CHECKPOINT, mask_rows
from bertflow_lite.experiments.pretraining.recipe import (
    RECIPES,
    Recipe,
    learning_rate_at,
    make_masked_model,
    make_waves,
    rows_at,
    wave_rates,
)

TINY = RECIPES["tiny"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Paragraphs of four sentences each, of the book's own."""
    sentences = bf.load_sts("mini-sts").sentences
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    groups = itertools.batched(sentences, 4) if sys.version_info >= (3, 12) else zip(
        *[iter(sentences)] * 4, strict=False
    )  # fmt: skip
    path.write_text("\n\n".join(" ".join(group) for group in groups), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text, tokenizer):
    return pack_corpus(text, tokenizer, length=TINY.length)


def test_compressed_text_reads_the_same(tmp_path: Path) -> None:
    content = "One paragraph.\n\n  Another, with ü.  \n"
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write(content)
    with lzma.open(tmp_path / "a.txt.xz", "wt", encoding="utf-8") as file:
        file.write(content)
    for name in ("a.txt", "a.txt.gz", "a.txt.xz"):
        assert list(read_paragraphs(tmp_path / name)) == ["One paragraph.", "Another, with ü."]


def test_unreadable_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no text file .none\.txt"):
        list(read_paragraphs(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        list(read_paragraphs(tmp_path / "latin.txt"))
    whole = lzma.compress(b"some text\n" * 1000)
    (tmp_path / "cut.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or cut short"):
        list(read_paragraphs(tmp_path / "cut.xz"))
    (tmp_path / "not.gz").write_text("plain")
    with pytest.raises(ValueError, match="damaged or cut short"):
        list(read_paragraphs(tmp_path / "not.gz"))


@given(
    st.lists(st.sampled_from(["It rained.", 'He said "No."', "Why?", "A 3.5 mm nail!"]), min_size=1)
)
def test_sentences_are_found_again(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_rows_hold_the_text_and_nothing_else(text, tokenizer, corpus) -> None:
    words = [
        piece
        for paragraph in read_paragraphs(text)
        for sentence in split_sentences(paragraph)
        for piece in tokenizer(sentence, add_special_tokens=False)["input_ids"][: TINY.length - 2]
    ]
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    packed = [int(piece) for piece in corpus.rows.ravel() if int(piece) not in special]
    assert packed == words
    assert corpus.n_tokens == len(words)
    np.testing.assert_array_equal(corpus.counts, np.bincount(words, minlength=len(tokenizer)))
    assert (corpus.rows[:, 0] == tokenizer.cls_token_id).all()
    assert ((corpus.rows == tokenizer.sep_token_id).sum(axis=1) == 1).all()


def test_packing_twice_reads_the_cache(text, tokenizer, corpus, monkeypatch) -> None:
    monkeypatch.setattr("bertflow_lite.experiments.pretraining.corpus._pack", None)
    again = pack_corpus(text, tokenizer, length=TINY.length)
    assert again.fingerprint == corpus.fingerprint
    np.testing.assert_array_equal(again.rows, corpus.rows)


def test_an_empty_text_is_refused_and_leaves_nothing(tmp_path, tokenizer, own_cache) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="holds no text"):
        pack_corpus(tmp_path / "empty.txt", tokenizer)
    assert not (own_cache / "corpus").exists()


def test_masks_are_eighty_ten_ten(tokenizer) -> None:
    rows = torch.randint(1000, len(tokenizer), (400, 64))
    rows[:, 0] = tokenizer.cls_token_id
    rows[:, 60:] = tokenizer.pad_token_id
    seen, chosen = mask_rows(rows, tokenizer, 0.3, torch.Generator().manual_seed(0))
    assert not chosen[:, 0].any() and not chosen[:, 60:].any()
    assert chosen[:, 1:60].float().mean() == pytest.approx(0.3, abs=0.02)
    masked = seen[chosen] == tokenizer.mask_token_id
    stays = seen[chosen] == rows[chosen]
    assert masked.float().mean() == pytest.approx(0.8, abs=0.02)
    assert stays.float().mean() == pytest.approx(0.1, abs=0.02)
    assert (seen[~chosen] == rows[~chosen]).all()


@settings(deadline=None, max_examples=20)
@given(st.floats(0, 1), st.floats(1, 1e7))
def test_the_rate_never_leaves_its_bounds(share: float, tokens: float) -> None:
    assert 0 <= learning_rate_at(TINY, tokens, share) <= TINY.learning_rate
    assert TINY.rows <= rows_at(TINY, tokens) <= TINY.most_rows


def test_the_untrained_loss_is_near_the_unigram_entropy(tokenizer, corpus) -> None:
    p = corpus.counts[corpus.counts > 0] / corpus.n_tokens
    entropy = float(-(p * np.log(p)).sum())
    model = make_masked_model(TINY, tokenizer, corpus.counts, seed=0).eval()
    rows = torch.from_numpy(corpus.rows.astype(np.int64))
    seen, chosen = mask_rows(rows, tokenizer, 0.3, torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = float(loop.masked_loss(model, rows, chosen, seen, tokenizer.pad_token_id))
    # Half a count for each piece of the vocabulary takes some of the mass in so small a text.
    smooth = (corpus.counts + 0.5) / (corpus.counts + 0.5).sum()
    cross = float(-(p * np.log(smooth[corpus.counts > 0])).sum())
    assert entropy < cross
    assert loss == pytest.approx(cross, abs=0.15)


def test_the_loss_is_that_of_transformers(tokenizer, corpus) -> None:
    model = make_masked_model(TINY, tokenizer, corpus.counts, seed=0).eval()
    rows = torch.from_numpy(corpus.rows[:20].astype(np.int64))
    seen, chosen = mask_rows(rows, tokenizer, 0.3, torch.Generator().manual_seed(0))
    labels = torch.where(chosen, rows, -100)
    with torch.no_grad():
        ours = loop.masked_loss(model, rows, chosen, seen, tokenizer.pad_token_id)
        mask = (rows != tokenizer.pad_token_id).long()
        theirs = model(seen, attention_mask=mask, labels=labels).loss
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)


def train(corpus, tokenizer, out: Path, **options):
    return loop.pretrain(corpus, tokenizer, out, recipe=TINY, **({"tokens": 20_000} | options))


@pytest.fixture(scope="module")
def plain(corpus, tokenizer, tmp_path_factory) -> loop.Training:
    """Train without a stop."""
    return train(corpus, tokenizer, tmp_path_factory.mktemp("plain") / "run")


def test_it_learns_and_leaves_models(corpus, tokenizer, tmp_path: Path) -> None:
    seen: list[int] = []
    done = train(
        corpus,
        tokenizer,
        tmp_path / "run",
        tokens=80_000,
        on_snapshot=lambda step, _: seen.append(step),
    )
    assert seen[0] == 0 and seen[-1] == done.steps
    assert set(seen) >= set(loop.snapshot_steps(done.steps))
    assert done.loss[-1][3] < done.loss[0][3] - 0.1  # held out
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["steps"] == done.steps and record["loss"] == done.loss
    encoder = bf.load_encoder(str(tmp_path / "run" / "final"))
    assert encoder.encode(["a cat sat"], layers="last").shape == (1, TINY.width)
    assert not (tmp_path / "run" / "unfinished").exists()


def test_the_same_seed_gives_the_same_run(corpus, tokenizer, tmp_path: Path) -> None:
    one = train(corpus, tokenizer, tmp_path / "one", tokens=3000)
    two = train(corpus, tokenizer, tmp_path / "two", tokens=3000)
    other = train(corpus, tokenizer, tmp_path / "other", tokens=3000, seed=1)
    assert one.loss == two.loss != other.loss


def test_stopped_and_resumed_is_the_same_run(corpus, tokenizer, plain, tmp_path: Path) -> None:
    def stop_at(step: int, _: Path) -> None:
        if step == 10:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped at step 10"):
        train(corpus, tokenizer, tmp_path / "again", on_snapshot=stop_at)
    assert (tmp_path / "again" / CHECKPOINT).is_file()
    resumed = train(corpus, tokenizer, tmp_path / "again")
    assert [one[:2] for one in resumed.loss] == [one[:2] for one in plain.loss]
    np.testing.assert_allclose(resumed.loss, plain.loss, atol=2e-4)


def test_killed_and_resumed(text, tokenizer, corpus, plain, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from bertflow_lite.experiments.pretraining import loop\n"
        "from bertflow_lite.experiments.pretraining.corpus import pack_corpus\n"
        "from bertflow_lite.experiments.pretraining.recipe import RECIPES\n"
        "from transformers import AutoTokenizer\n"
        "tiny, tokenizer = RECIPES['tiny'], AutoTokenizer.from_pretrained(sys.argv[3])\n"
        "corpus = pack_corpus(sys.argv[1], tokenizer, length=tiny.length)\n"
        "def kill(step, folder):\n"
        "    if step == 20: os.kill(os.getpid(), signal.SIGKILL)\n"
        "loop.pretrain(corpus, tokenizer, Path(sys.argv[2]), recipe=tiny, tokens=20_000,\n"
        "              checkpoint_seconds=0, on_snapshot=kill)\n"
    )
    out = tmp_path / "killed"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    command = [sys.executable, "-c", script, str(text), str(out), str(tmp_path / "tokenizer")]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    resumed = train(corpus, tokenizer, out)
    assert resumed.steps == plain.steps
    np.testing.assert_allclose(resumed.loss[-1], plain.loss[-1], atol=2e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"recipe": Recipe(length=64)}, "rows of 32 pieces, the recipe wants 64"),
        ({"recipe": Recipe(length=32, rows=1, most_rows=10**6)}, "smaller batch"),
    ],
)
def test_what_cannot_work_is_said_first(options, says, corpus, tokenizer, tmp_path: Path) -> None:
    given = {"recipe": TINY, "tokens": 1000.0} | options
    with pytest.raises(ValueError, match=says):
        loop.pretrain(corpus, tokenizer, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_not_mixed_in(corpus, tokenizer, tmp_path: Path) -> None:
    train(corpus, tokenizer, tmp_path / "run", tokens=2000)
    with pytest.raises(ValueError, match=r"another tokens \(2000, now 3000\)"):
        train(corpus, tokenizer, tmp_path / "run", tokens=3000)
    assert train(corpus, tokenizer, tmp_path / "run", tokens=3000, overwrite=True).tokens >= 3000


def test_a_loss_that_is_no_number_stops_the_run(corpus, tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "masked_loss", lambda *_: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(FloatingPointError, match="at step 0: lower the learning rate"):
        train(corpus, tokenizer, tmp_path / "run")


@pytest.mark.parametrize(
    "wrong", [{"heads": 3}, {"masked": 0.0}, {"learning_rate": 0.0}, {"rows": 0}]
)
def test_a_recipe_checks_itself(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "heads" not in wrong else "heads"):
        Recipe(**wrong)


def test_the_command(text: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from bertflow_lite.cli.common import app

    base = ["pretrain", "--corpus", str(text), "--out", str(tmp_path / "run")]
    run = CliRunner().invoke(
        app, [*base, "--config", "tiny", "--tokens", "2000", "--device", "cpu"]
    )
    assert run.exit_code == 0, run.output
    assert "held-out loss" in run.stdout and "models in run" in run.stdout
    run = CliRunner().invoke(app, [*base, "--tokens", "9", "--config", "huge"])
    assert run.exit_code == 1 and "no config 'huge'" in run.stderr


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), words=st.integers(2, 60), seed=st.integers(0, 99))
def test_the_sliced_loss_is_cross_entropy(n: int, words: int, seed: int) -> None:
    """Value and all gradients, with slices smaller than the batch."""
    random = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(shape, generator=random, dtype=torch.float32, requires_grad=True)
        for shape in ((n, 5), (words, 5), (words,))
    ]
    target = torch.randint(words, (n,), generator=random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary_loss_module, "_SLICE", 7)
        ours = vocabulary_loss_module.vocabulary_loss(*tensors, target)
    hidden, weight, bias = tensors
    theirs = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, target)
    torch.testing.assert_close(ours, theirs)
    for mine, wanted in zip(
        torch.autograd.grad(3 * ours, tensors),
        torch.autograd.grad(3 * theirs, tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)


def test_the_sliced_loss_needs_no_gradient() -> None:
    weight = torch.eye(3)
    with torch.no_grad():
        value = vocabulary_loss_module.vocabulary_loss(
            weight, weight, torch.zeros(3), torch.arange(3)
        )
    assert float(value) == pytest.approx(math.log(math.e + 2) - 1)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=200),
    rows=st.integers(1, 16),
    seed=st.integers(0, 9),
)
def test_rows_of_similar_length_stay_together(lengths: list[int], rows: int, seed: int) -> None:
    """A permutation, and no batch is padded more than in a random order, in all."""
    array = np.array(lengths)
    order = similar_lengths(array, np.random.default_rng(seed), rows)
    assert sorted(order) == list(range(len(array)))
    padded = sum(array[order[i : i + rows]].max() * rows for i in range(0, len(array), rows))
    shuffled = np.random.default_rng(seed + 1).permutation(array)
    at_random = sum(shuffled[i : i + rows].max() * rows for i in range(0, len(array), rows))
    # Of the last, unfilled batches one may be counted with its longest row.
    assert padded <= at_random + 64 * rows


def test_waves_move_by_one_rotation() -> None:
    """The same matrix leads from every place to the next one; at random there is none."""
    waves = make_waves(64, 32)
    assert float(waves.var(unbiased=False) + waves.mean() ** 2) == pytest.approx(1, abs=1e-5)
    rates = wave_rates(32)
    turn = torch.block_diag(*(
        torch.tensor([[r.cos(), -r.sin()], [r.sin(), r.cos()]]) for r in rates
    ))  # fmt: skip
    torch.testing.assert_close(waves[:63] @ turn, waves[1:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_every_model_starts_as_a_unigram_model(tokenizer, corpus, tied: bool) -> None:
    """The bias that the loss uses holds log p(x), also where the output has its own weights."""
    recipe = dataclasses.replace(TINY, tied=tied)
    model = make_masked_model(recipe, tokenizer, corpus.counts, seed=0)
    smooth = corpus.counts + 0.5
    expected = torch.from_numpy(np.log(smooth / smooth.sum())).float()
    torch.testing.assert_close(model.cls.predictions.decoder.bias.detach(), expected)
