"""The command on a model's card is the one that makes the model again."""

from __future__ import annotations

import dataclasses
import re
import shlex
from typing import Any

import pytest

from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.experiments.pretraining.pretraining_card import training_command
from bertflow_lite.experiments.pretraining.recipe import BIASES, RECIPES


def settings(config: str = "tiny", changes: dict[str, Any] | None = None, **others: Any) -> Any:
    recipe = RECIPES[config].as_dict() | (changes or {})
    return {"recipe": recipe, "tokens": 100, "minutes": None, "seed": 0} | others


@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_is_an_option(bias: str) -> None:
    words = shlex.split(training_command(settings(changes={"bias": bias})), comments=True)
    assert ("--bias" in words) == (bias != "log p")
    assert bias == "log p" or words[words.index("--bias") + 1] == bias
    assert "#" not in training_command(settings(changes={"bias": bias}))


def test_what_has_spaces_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, recipe in RECIPES.items():
        monkeypatch.setitem(RECIPES, name, dataclasses.replace(recipe, bias="zero"))
    assert "--bias 'log p'" in training_command(settings(changes={"bias": "log p"}))


def test_several_processes_are_started_by_torchrun() -> None:
    start = "torchrun --nproc-per-node 2 -m bertflow_lite pretrain --corpus"
    assert training_command(settings(processes=2)).startswith(start)
    for one in (settings(), settings(processes=1)):
        assert training_command(one).startswith("python -m bertflow_lite pretrain --corpus")


def test_the_arithmetic_is_said_either_way() -> None:
    assert training_command(settings(bf16=True)).endswith("--seed 0 --bf16")
    assert training_command(settings(bf16=False)).endswith("--seed 0 --no-bf16")


def test_the_books_card_has_the_command_of_its_settings() -> None:
    folder = PACKAGED_MODELS["mini-bert"].path()
    assert folder is not None
    card = (folder / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", card, re.M))
    kinds = {"yes": True, "no": False}
    recipe = {
        key: kinds.get(table[key], type(value)(table[key]))
        for key, value in RECIPES["mini"].as_dict().items()
        if key in table  # the run is older than the choice of a bias
    }
    known = settings() | {
        "recipe": recipe,
        "tokens": 6.05e7,
        "seed": int(table["seed"]),
        "processes": int(table["processes"]),
        "bf16": table["arithmetic"] == "bfloat16 autocast",
    }
    assert f"\n{training_command(known)}\n" in card
