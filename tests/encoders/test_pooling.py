"""Layer names and indices."""

from __future__ import annotations

import numpy as np
import pytest

from bertflow_lite.encoders.pooling import layer_label, resolve_layers


@pytest.mark.parametrize(
    ("layers", "label", "pooling", "indices"),
    [
        ("cls", "cls", "cls", (6,)),
        ("last", "last", "mean", (6,)),
        ("last2avg", "last2avg", "mean", (6, 5)),
        ("first-last", "first-last", "mean", (1, 6)),
        ("embeddings-last", "embeddings-last", "mean", (0, 6)),
        (4, "4", "mean", (4,)),
        (-2, "-2", "mean", (5,)),
        (np.int64(4), "4", "mean", (4,)),
        ((1, -1), "1,-1", "mean", (1, 6)),
        ("4", "4", "mean", (4,)),
        ("1, 6", "1,6", "mean", (1, 6)),
    ],
)
def test_choices(layers, label, pooling, indices):
    choice = resolve_layers(layers, n_states=7)
    assert (choice.label, choice.pooling, choice.indices) == (label, pooling, indices)
    assert choice.slots == [f"{pooling}:{index}" for index in indices]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("last2avge", "unknown layers 'last2avge'.*Did you mean 'last2avg'"),
        ("", "unknown layers ''"),
        ((), "empty tuple"),
        (7, "hidden state 7; this model has 7 .*6 the last block"),
        (-8, "hidden state -8"),
        ((0, 9), "layers '0,9' asks for hidden state 9"),
        (1.5, "'1.5' holds something that is not a whole number"),
        ((1, "last"), "not a whole number"),
        ([1, 6], "not a whole number"),
        (None, "not a whole number"),
    ],
)
def test_bad_choices_are_named(layers, message):
    with pytest.raises(ValueError, match=message):
        resolve_layers(layers, n_states=7)


@pytest.mark.parametrize(("layers", "label"), [("last", "last"), (3, "3"), ((1, 6), "1,6")])
def test_labels(layers, label):
    assert layer_label(layers) == label
