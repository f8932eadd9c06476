"""The main line stays short: words before the exercises, chapter by chapter."""

import re

import pytest
import word_count

TEXT = """\
---
title: not prose
---

# A title of five words

:::{admonition} In this chapter
:class: tip

Counted.
:::

:::{admonition} Guess first
:class: hint

Is $a^2 + b^2$ one word, and is {doc}`06_bert_flow`?
:::

```{code-cell} ipython3
x = "code is not read"
```

| two | heads |
|---|--:|
| 1,379 | it's [a link](https://example.org/a/b) |

## Exercises

Not counted either.
"""


def test_prose_is_counted_and_nothing_else() -> None:
    found = re.findall(word_count.WORD, word_count.prose_before_exercises(TEXT))
    assert " ".join(found) == (
        "A title of five words In this chapter Counted Guess first Is thing one word and is thing "
        "two heads 1,379 it's a link"
    )
    assert word_count.words(TEXT) == len(found)


@pytest.mark.parametrize(("name", "length"), word_count.main_line().items())
def test_no_chapter_is_longer_than_its_limit(name: str, length: word_count.Length) -> None:
    limit = word_count.LIMITS.get(name, word_count.LIMIT)
    assert length.words <= limit, f"{name} has {length.words} words before its exercises"


def test_the_main_line_is_no_longer_than_its_limit() -> None:
    assert sum(length.words for length in word_count.main_line().values()) <= word_count.TOTAL


@pytest.mark.parametrize("name", list(word_count.main_line())[1:])  # the opening page has none
def test_a_chapter_states_the_minutes_that_it_takes(name: str) -> None:
    stated = word_count.STATED.search((word_count.BOOK / f"{name}.md").read_text("utf-8"))
    assert stated, f"{name} does not say '**Time:** about ... minutes to read'"
    assert abs(int(stated[0]) - word_count.main_line()[name].minutes) <= 1


def test_minutes_are_those_of_words_and_figures() -> None:
    assert word_count.Length(words=1900, figures=4).minutes == 14


def test_figures_after_the_exercises_do_not_count() -> None:
    chapter = word_count.main_line()["01_puzzle"]
    assert 0 < chapter.figures < 10
