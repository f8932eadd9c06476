"""Sentences as they are taken, and their words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bertflow_lite.text import check_sentences, split_words

GOOD = ["a", "", "näïve 🙂", "\x00 control"]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, pd.Series])
def test_any_series_of_strings_is_taken_unchanged(kind):
    assert check_sentences(kind(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("one sentence", "one string; give a list"),
        (dict.fromkeys(GOOD), "a dict, whose order is none of yours"),
        (b"bytes", "one string; give a list"),
        (None, "of type NoneType; give a list"),
        (3, "of type int; give a list"),
        (["a", None], "sentence 1 is of type NoneType"),
        (["a", "b", 3.5], "sentence 2 is of type float"),
        ([b"a"], "sentence 0 is of type bytes"),
        ([["a"]], "sentence 0 is of type list"),
        (["a", "\ud800"], "sentence 1 holds a lone surrogate"),
    ],
)
def test_bad_input_names_the_row(sentences, message):
    with pytest.raises(ValueError, match=message):
        check_sentences(sentences)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n", []),
        ("The Cat's away.", ["the", "cat", "'", "s", "away", "."]),
        ("3.5 naïve", ["3", ".", "5", "naïve"]),
        ("wait...", ["wait", ".", ".", "."]),
    ],
)
def test_words(text, words):
    assert split_words(text) == words
