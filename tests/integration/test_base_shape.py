"""BERT-base and BERT-large by shape, from folder to score, so that a hub user meets no surprise.

The weights are random: what is tried is the way through the package, not what a score is worth.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bertflow_lite.calibrators.flow_calibrator import PRESETS, FlowCalibrator
from bertflow_lite.cli.common import app
from bertflow_lite.datasets import sts as datasets
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.encoders.models import PACKAGED_MODELS, packaged_path
from bertflow_lite.encoders.pooling import LAYER_NAMES
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.measures.scores import score_sts

pytestmark = [
    pytest.mark.slow,  # hundreds of megabytes are written and read
    pytest.mark.skipif(
        PACKAGED_MODELS["minilm"].path() is None, reason="minilm, for its tokenizer, is missing"
    ),
]


def save_bert(folder: Path, *, width: int, blocks: int, heads: int) -> None:
    """Write a BERT with random weights as the hub lays one out, with BERT's own wordpieces."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    with torch.random.fork_rng(devices=[]):  # the other tests' random state stays as it is
        torch.manual_seed(0)
        model = BertModel(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(packaged_path("minilm"), local_files_only=True).save_pretrained(
        folder
    )


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shapes") / "base"
    save_bert(folder, width=768, blocks=12, heads=12)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give this module a cache of its own, so that a sentence is encoded once."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BERTFLOW_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def base(base_folder: Path, cache: Path) -> Encoder:
    encoder = load_encoder(base_folder, device="cpu")
    assert isinstance(encoder, Encoder)
    return encoder


@pytest.fixture(scope="module")
def pairs() -> SentencePairs:
    """Take 30 pairs from all over mini-sts."""
    return datasets._load_own("mini-sts").select(range(0, 420, 14))


@pytest.fixture(scope="module")
def embeddings(base: Encoder, pairs: SentencePairs) -> dict[str, np.ndarray]:
    return base.encode(pairs.sentences, layers=list(LAYER_NAMES))


def test_the_shape_is_that_of_bert_base(base: Encoder) -> None:
    assert (base.dim, base.n_layers, base.max_length) == (768, 12, 64)
    # As many as bert-base-uncased, with the pooler that transformers puts on top.
    assert sum(p.numel() for p in base.model.parameters()) == 109_482_240
    assert len(base.tokenizer) == 30_522


def test_weights_without_a_pooler_are_no_news(
    base_folder: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_encoder(base_folder, device="cpu")
    shown = capfd.readouterr()
    assert shown.out == shown.err == ""


def test_every_named_layer_choice_comes_from_one_pass(
    base: Encoder, pairs: SentencePairs, embeddings: dict[str, np.ndarray]
) -> None:
    assert set(embeddings) == set(LAYER_NAMES)
    for vectors in embeddings.values():
        assert vectors.shape == (60, 768)
        assert vectors.dtype == np.float32
        assert np.isfinite(vectors).all()
    # An independent computation: one sentence, unpadded, by transformers alone.
    inputs = base.tokenizer(pairs.sentences1[7], return_tensors="pt")
    with torch.no_grad():
        states = base.model(**inputs, output_hidden_states=True).hidden_states
    mean = {i: states[i][0].mean(dim=0).numpy() for i in (0, 1, -1, -2)}
    expected = {
        "cls": states[-1][0, 0].numpy(),
        "last": mean[-1],
        "last2avg": (mean[-1] + mean[-2]) / 2,
        "first-last": (mean[1] + mean[-1]) / 2,
        "embeddings-last": (mean[0] + mean[-1]) / 2,
    }
    for name, vector in expected.items():
        np.testing.assert_allclose(embeddings[name][7], vector, atol=2e-5)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_fits_and_scores(
    pairs: SentencePairs, embeddings: dict[str, np.ndarray], preset: str
) -> None:
    raw = embeddings["last2avg"]
    flow = FlowCalibrator.from_preset(preset, random_state=0, device="cpu").fit(raw)
    assert flow.live_.all()
    latent = flow.transform(raw)
    np.testing.assert_allclose(flow.inverse_transform(latent), raw, atol=1e-3)
    for vectors in (raw, latent):
        score = score_sts(pairs, vectors)
        assert -100 <= score.all <= 100
        assert score.all == score.mean == score.wmean  # one subset


@pytest.mark.parametrize(("levels", "count"), [(2, 127_872), (3, 151_488)])
def test_a_fitted_flow_has_as_many_parameters_as_the_released_code_s(
    embeddings: dict[str, np.ndarray], levels: int, count: int
) -> None:
    flow = FlowCalibrator(levels=levels, random_state=0, device="cpu").fit(embeddings["last"])
    assert sum(p.numel() for p in flow.flow_.parameters()) == count


def test_the_command_line_takes_the_folder(
    base_folder: Path,
    pairs: SentencePairs,
    embeddings: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets, "_load_own", lambda name: pairs)
    words = ["sts", "--model", str(base_folder), "--layers", "last2avg", "--layers", "first-last"]
    run = CliRunner().invoke(app, [*words, "--calibrate", "none,flow", "--device", "cpu", "--json"])
    assert run.exit_code == 0, run.output
    rows = json.loads(run.stdout)["results"]
    assert [(row["layers"], row["calibrator"]) for row in rows] == [
        ("last2avg", "none"),
        ("last2avg", "flow"),
        ("first-last", "none"),
        ("first-last", "flow"),
    ]
    raw = score_sts(pairs, embeddings["last2avg"]).all
    assert rows[0]["all"] == pytest.approx(raw, abs=1e-4)


@pytest.mark.thorough  # BERT-base's shape takes the same way
def test_bert_large_by_shape(cache: Path, tmp_path: Path, pairs: SentencePairs) -> None:
    folder = tmp_path / "large"
    save_bert(folder, width=1024, blocks=24, heads=16)
    encoder = load_encoder(folder, device="cpu")
    assert isinstance(encoder, Encoder)
    shutil.rmtree(folder)  # 1.3 GB; the weights are in memory
    assert (encoder.dim, encoder.n_layers) == (1024, 24)
    few = pairs.select(range(8))
    vectors = encoder.encode(few.sentences, layers=list(LAYER_NAMES))
    assert all(v.shape == (16, 1024) and np.isfinite(v).all() for v in vectors.values())
    flow = FlowCalibrator(levels=3, random_state=0, device="cpu").fit(vectors["last2avg"])
    assert np.isfinite(score_sts(few, flow.transform(vectors["last2avg"])).all)
