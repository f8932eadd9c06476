"""The README's example runs and prints what the README says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from bertflow_lite.encoders.models import PACKAGED_MODELS

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(PACKAGED_MODELS["smollm2"].path() is None, reason="smollm2 is not installed")
@pytest.mark.slow
def test_quick_start_prints_what_the_readme_says(every_layer: None) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.S)
    shown = re.search(r"```\n(raw .*?)```", README, re.S)
    assert code and shown
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.group(1), {})
    numbers = r"(\d+\.\d+) \(Spearman"
    met = [float(n) for n in re.findall(numbers, printed.getvalue())]
    said = [float(n) for n in re.findall(numbers, shown.group(1))]
    # Another processor may round another way: a tenth of a point is no other result.
    assert met == pytest.approx(said, abs=0.1)
    strip = re.compile(r"\d+\.\d+")
    assert strip.sub("N", printed.getvalue()) == strip.sub("N", shown.group(1))


def test_times_and_sizes_are_filled_in() -> None:
    assert not re.search(r"(BOOK|TEST)_[A-Z]+", README)


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).resolve().parents[2] / target).exists(), target
