"""MTEB's own STS tasks, run on exported models over local data, score as we do."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mteb_tasks import local_sts_task

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import LoadedModel
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.measures.scores import score_sts

pytestmark = [
    pytest.mark.filterwarnings("ignore:The task 'STSBenchmark' is superseded"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension` method"),
]


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Load what takes seconds here, and not wherever tests are collected."""
    pytest.importorskip("sentence_transformers", minversion="6.0")
    pytest.importorskip("mteb", minversion="2.0")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(self: Any, address: Any) -> Any:
        raise AssertionError(f"asked the network: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def mteb_score(model: Any, name: str, pairs: SentencePairs) -> float:
    import mteb

    task = local_sts_task(name, pairs)
    result = mteb.evaluate(
        model, task, cache=None, show_progress_bar=False, encode_kwargs={"batch_size": 64}
    )
    (scores,) = result.task_results[0].scores["test"]
    assert scores["main_score"] == scores["cosine_spearman"]
    return float(scores["cosine_spearman"])


@pytest.fixture(scope="module")
def mini(minilm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, float]:
    """Give a saved model, loaded again, the pairs it is tried on, and our score."""
    from sentence_transformers import SentenceTransformer

    from bertflow_lite.export.sentence_transformers import to_sentence_transformer

    # A trained model: with a random one, sentences of unknown words tie but for rounding.
    pairs = load_sts("mini-sts").select(range(0, 420, 8))
    encoder = Encoder(minilm)
    raw = encoder.encode(pairs.sentences, "first-last")
    calibrator = make_calibrator("sn+whiten:32").fit(raw)
    ours = score_sts(pairs, calibrator.transform(raw)).all
    assert abs(ours - score_sts(pairs, raw).all) > 1  # so that calibrating shows
    folder = os.fspath(tmp_path_factory.mktemp("mini"))
    to_sentence_transformer(encoder, "first-last", calibrator).save(folder)
    return SentenceTransformer(folder, device="cpu"), pairs, ours


@pytest.mark.parametrize("task", ["STSBenchmark", "SICK-R"])
def test_mteb_scores_a_saved_model_as_we_do(mini: tuple[Any, Any, float], task: str):
    model, pairs, ours = mini
    assert mteb_score(model, task, pairs) == pytest.approx(ours / 100, abs=1e-4)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("task", "name", "split"),
    [
        ("STSBenchmark", "stsb", "test"),
        pytest.param("SICK-R", "sick-r", "all", marks=pytest.mark.thorough),
    ],
)
def test_mteb_scores_real_sets_as_we_do(
    real_data: Path, minilm: LoadedModel, task: str, name: str, split: str, thorough: bool
):
    from bertflow_lite.export.sentence_transformers import to_sentence_transformer

    pairs = load_sts(name, split=split)
    most = 2000 if thorough else 200  # minutes else
    pairs = pairs.select(range(0, len(pairs), -(-len(pairs) // most)))
    encoder = Encoder(minilm)
    raw = encoder.encode(pairs.sentences, 4)
    flow = make_calibrator("flow").set_params(device="cpu").fit(raw)
    ours = score_sts(pairs, flow.transform(raw)).all
    model = to_sentence_transformer(encoder, 4, flow)
    assert mteb_score(model, task, pairs) == pytest.approx(ours / 100, abs=1e-4)


def test_a_task_takes_only_pairs_that_fit_it():
    pairs = load_sts("mini-sts")
    with pytest.raises(ValueError, match=r"of type \w+, not STS"):
        local_sts_task("Banking77Classification", pairs)
    beyond = SentencePairs("x", "all", ("a",), ("b",), np.array([7.0]), np.array(["x"]))
    with pytest.raises(ValueError, match=r"whose scores are from 0 to 5"):
        local_sts_task("STSBenchmark", beyond)
    with pytest.raises(ValueError, match=r"does not fit"):
        local_sts_task("STSBenchmark", pairs.select([]))
