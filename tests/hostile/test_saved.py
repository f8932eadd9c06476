"""Saved files that were damaged, swapped or forged: refused, and never executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal import helps, must, refuses
from safetensors.numpy import save as to_bytes

import bertflow_lite as bf
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.saving import read_file, write_file


def embeddings(dim: int = 6) -> Any:
    return np.random.default_rng(0).normal(size=(80, dim)).astype(np.float32)


def flow(**changes: Any) -> Any:
    return bf.FlowCalibrator(levels=2, depth=1, width=4, device="cpu", **changes)


KINDS: dict[str, Callable[[], Any]] = {
    "sn": bf.Standardizer,
    "natsv": lambda: bf.TopDirectionRemover(2),
    "whiten": lambda: bf.Whitener(3),
    "flow": flow,
    "turned": lambda: flow(rotation="pca"),
    "two": lambda: make_calibrator("sn+whiten:3"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save one calibrator of each kind, and a pipeline with its encoder."""
    place = tmp_path_factory.mktemp("saved")
    for name, make in KINDS.items():
        bf.save(make().fit(embeddings()), place / f"{name}.safetensors")
    from sklearn.pipeline import make_pipeline

    texts = ["a cat", "the dog", "it rains", "we sing"]
    pipeline = make_pipeline(bf.SentenceEncoder("glove"), bf.Standardizer()).fit(texts)
    bf.save(pipeline, place / "words.safetensors")
    weighted = make_pipeline(bf.SentenceEncoder("glove", weights="idf"), bf.Standardizer())
    bf.save(weighted.fit(texts), place / "weighted.safetensors")
    return place


def copy(saved: Path, kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copy(saved / f"{kind}.safetensors", tmp_path / "c.safetensors"))


class Bomb:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BERTFLOW_TEST_BOMB"],)


@pytest.fixture(autouse=True)
def exploded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check after each case that no bomb has gone off."""
    place = tmp_path / "exploded"
    monkeypatch.setenv("BERTFLOW_TEST_BOMB", str(place))
    yield
    assert not place.exists()


# --- damaged -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["sn", "flow", "words"]),
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_any_changed_byte_is_found(saved: Path, tmp_path: Path, kind: str, places: Any) -> None:
    before = (saved / f"{kind}.safetensors").read_bytes()
    content = bytearray(before)
    for place, flipped in places:
        content[min(int(place * len(content)), len(content) - 1)] ^= flipped
    path = tmp_path / "changed.safetensors"
    path.write_bytes(bytes(content))
    try:
        again = read_file(path)
    except ValueError as error:
        helps(str(error), str(path))
    else:  # flipped there and back, or white space in the header for other white space
        said, arrays = read_file(saved / f"{kind}.safetensors")
        assert again[0] == said
        assert {k: v.tobytes() for k, v in again[1].items()} == {
            k: v.tobytes() for k, v in arrays.items()
        }


@pytest.mark.parametrize("kind", ["sn", "flow"])
def test_every_bit_of_the_header_matters(saved: Path, tmp_path: Path, kind: str) -> None:
    content = (saved / f"{kind}.safetensors").read_bytes()
    path = tmp_path / "c.safetensors"
    header = 8 + int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    for place in [*range(8), *rng.choice(header, 150, replace=False).tolist()]:
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        with pytest.raises(ValueError, match=r"cut or changed|newer"):
            bf.load(path)


@pytest.mark.parametrize("kind", ["sn", "flow"])
def test_every_way_to_cut_or_lengthen_it_is_found(saved: Path, tmp_path: Path, kind: str) -> None:
    path = copy(saved, kind, tmp_path)
    content = path.read_bytes()
    cuts = [content[:length] for length in (0, 1, 7, 8, 20, len(content) // 2, len(content) - 1)]
    for changed in [*cuts, content + b"\n", content + b"\0" * 5]:
        path.write_bytes(changed)
        expected = refuses(ValueError, "cut or changed", "Save or copy it again")
        must(expected, lambda: bf.load(path), tmp_path)


def pickled() -> bytes:
    file = io.BytesIO()
    torch.save(Bomb(), file)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("../../exploded/x", "x")
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


FALSE_NAMES: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Bomb()),
    "torch": pickled,
    "zip": zipped,
    "npy": array,
    "text": lambda: b"not numbers at all",
    "json": lambda: b'{"format": "bertflow-lite"}',
    "another-safetensors": lambda: to_bytes({"x": np.ones(3)}),
    "with-a-note": lambda: to_bytes({"x": np.ones(3)}, {"bertflow_lite": "[" * 50_000}),
    "note-is-nan": lambda: to_bytes({"x": np.ones(3)}, {"bertflow_lite": "NaN"}),
    "note-is-a-list": lambda: to_bytes({"x": np.ones(3)}, {"bertflow_lite": "[]"}),
    "note-is-a-long-number": lambda: to_bytes({"x": np.ones(3)}, {"bertflow_lite": "9" * 9_000}),
}


@pytest.mark.parametrize("case", FALSE_NAMES)
def test_something_else_under_its_name_is_refused_and_not_run(case: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(FALSE_NAMES[case]())
    must(refuses(ValueError, "no file that bertflow-lite saved"), lambda: bf.load(path), tmp_path)


def test_nothing_or_a_folder_says_so(tmp_path: Path) -> None:
    must(refuses(FileNotFoundError, "not there"), lambda: bf.load(tmp_path / "x"), tmp_path)
    must(refuses(FileNotFoundError, "a folder", "one file"), lambda: bf.load(tmp_path), tmp_path)


# --- forged: the checksum is right ---------------------------------------------------------------


def forge(path: Path, alter: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change what is saved, and write it anew with a checksum that fits."""
    content, arrays = read_file(path)
    alter(content, arrays)
    write_file(path, content, arrays)


def step(number: int = 0, **values: Any) -> Callable[[Any, Any], None]:
    return lambda content, arrays: content["steps"][number].update(values)


def setting(number: int = 0, **values: Any) -> Callable[[Any, Any], None]:
    return lambda content, arrays: content["steps"][number]["settings"].update(values)


def fact(number: int = 0, **values: Any) -> Callable[[Any, Any], None]:
    return lambda content, arrays: content["steps"][number]["facts"].update(values)


def change(name: str, make: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda content, arrays: arrays.update({name: make(arrays[name])})


def top(**values: Any) -> Callable[[Any, Any], None]:
    return lambda content, arrays: content.update(values)


WRONG = "holds nothing that this version can use"
FORGED: dict[str, tuple[str, Callable[[Any, Any], Any], tuple[str, ...]]] = {
    "a-class-of-python": ("sn", step(**{"class": "os.system"}), ("os.system", WRONG)),
    "a-class-of-builtins": ("sn", step(**{"class": "eval"}), ("'eval'",)),
    "a-class-of-sklearn": ("sn", step(**{"class": "PCA"}), ("'PCA'",)),
    "a-private-class": ("sn", step(**{"class": "_Calibrator"}), ("no class",)),
    "no-class": ("sn", step(**{"class": None}), ("no class None",)),
    "a-list-for-a-class": ("sn", step(**{"class": ["Standardizer"]}), ("no class",)),
    "a-step-as-text": ("sn", top(steps=["sn"]), ("no mapping",)),
    "no-steps": ("sn", top(steps=[]), ("'steps'",)),
    "steps-as-text": ("sn", top(steps="sn"), ("'steps'",)),
    "pipeline-as-text": ("sn", top(pipeline="no"), ("'steps'",)),
    "two-steps-and-no-pipeline": ("two", top(pipeline=False), ("no pipeline",)),
    "no-name": ("two", step(name=None), ("no name",)),
    "one-name-twice": ("two", step(1, name="standardizer"), ("same name",)),
    "steps-of-other-widths": (
        "two", lambda c, a: c.update(steps=c["steps"][::-1]), ("missing", WRONG),
    ),
    "no-settings": ("sn", step(settings=None), ("says nothing",)),
    "an-unknown-setting": ("sn", setting(x="y"), ("no setting 'x'",)),
    "a-setting-of-the-machine": ("flow", setting(device="cpu"), ("no setting 'device'",)),
    "text-for-a-number": ("flow", setting(levels="2"), ("wrong type", "'2'")),
    "code-for-a-number": ("flow", setting(depth="__import__('os')"), ("wrong type", "depth")),
    "true-for-a-number": ("flow", setting(depth=True), ("wrong type", "depth")),
    "levels-of-0": ("flow", setting(levels=0), ("levels is 0",)),
    "an-unknown-permutation": ("flow", setting(permutation="x"), ("permutation is 'x'",)),
    "an-unknown-rotation": ("flow", setting(rotation="x"), ("rotation is 'x'",)),
    "a-vast-width": ("flow", setting(width=10**9), ("more arrays than",)),
    "a-vast-depth": ("flow", setting(depth=10**9), ("more arrays than",)),
    "a-vast-rotation": ("flow", setting(rotation="pca"), ("missing",)),
    "no-rotation": ("turned", setting(rotation="none"), ("array",)),
    "no-width": ("sn", fact(n_features_in=None), ("'n_features_in' is None",)),
    "another-width": ("sn", fact(n_features_in=7), ("shape", "mean_")),
    "another-width-out": ("whiten", fact(n_features_out=5), ("another width",)),
    "names-of-another-number": ("sn", fact(feature_names_in=["a"]), ("list of 6 names",)),
    "names-that-are-numbers": ("sn", fact(feature_names_in=[1] * 6), ("list of 6 names",)),
    "seconds-as-text": ("flow", fact(training={"seconds": "1"}), ("seconds",)),
    "swapped-arrays": (
        "whiten",
        lambda c, a: a.update({"0.mean_": a["0.variances_"], "0.variances_": a["0.mean_"]}),
        ("of shape",),
    ),
    "a-missing-array": ("sn", lambda c, a: a.pop("0.mean_"), ("'mean_' is missing",)),
    "one-array-more": ("sn", lambda c, a: a.update({"0.x": np.ones(1)}), ("no array x",)),
    "a-stray-array": ("sn", lambda c, a: a.update({"9.x": np.ones(1)}), ("belong to no step",)),
    "nan": ("sn", change("0.mean_", lambda a: a * np.nan), ("not finite",)),
    "infinity": ("natsv", change("0.mean_", lambda a: a + np.inf), ("not finite",)),
    "scale-of-0": ("sn", change("0.scale_", lambda a: a * 0), ("not positive",)),
    "variance-of-0": ("whiten", change("0.variances_", lambda a: a * 0), ("not positive",)),
    "half-precision": ("sn", change("0.mean_", lambda a: a.astype(np.float16)), ("float64",)),
    "single-precision": ("sn", change("0.mean_", lambda a: a.astype(np.float32)), ("float64",)),
    "transposed": ("whiten", change("0.directions_", lambda a: a.T.copy()), ("shape",)),
    "a-scalar": ("whiten", change("0.directions_", lambda a: a.sum()[None]), ("shape",)),
    "mixed-precision": (
        "flow",
        change("0.flow_.steps.0.0.bias", lambda a: a.astype(np.float64)),
        ("not all float32 or all float64",),
    ),
    "inf-in-a-flow": (
        "flow", change("0.flow_.steps.0.0.bias", lambda a: a + np.inf), ("not finite",),
    ),
    "no-order": ("flow", change("0.flow_.steps.0.1.order", lambda a: a * 0 + 99), ("no order",)),
    "no-way-back": (
        "flow", change("0.flow_.steps.0.1.restore", lambda a: np.roll(a, 1)), ("no order",),
    ),
    "no-rotation-at-all": (
        "turned", change("0.flow_.steps.0.0.matrix", lambda a: a + 0.1), ("rotation is none",),
    ),
    "all-dead": ("flow", change("0.live_", lambda a: a & False), ("the flow needs two",)),
    "mean-of-a-live-one": ("flow", change("0.dead_mean_", lambda a: a + 1), ("not dead",)),
    "history-of-two": ("flow", change("0.history_.loss", lambda a: a[None]), ("of shape",)),
    "encoder-at-the-end": (
        "words", lambda c, a: c["steps"].append(c["steps"][0] | {"name": "x"}), ("first step",),
    ),
    "encoder-of-no-name": ("words", setting(model=None), ("no setting 'model'",)),
    "encoder-with-code": ("words", setting(download=True), ("no setting 'download'",)),
    "layers-of-lists": ("words", setting(layers=[[1]]), ("'layers'",)),
    "states-as-text": ("words", fact(hidden_states="all"), ("hidden_states",)),
    "fingerprint-as-number": ("words", fact(fingerprint=1), ("fingerprint",)),
    "weights-of-no-kind": ("weighted", setting(weights="x"), ("no token weights 'x'",)),
    "weights-as-number": ("weighted", setting(weights=1), ("no setting 'weights'",)),
    "weights-of-another-kind": ("weighted", setting(weights="sif"), ("'weights' is 'idf'",)),
    "weights-taken-away": ("weighted", setting(weights=None), ("'weights' is 'idf'",)),
    "weights-without-values": ("words", lambda c, a: (
        setting(weights="idf")(c, a), fact(weights="idf")(c, a)), ("'token_weights' is missing",)),
    "weights-below-0": (
        "weighted", change("0.token_weights", lambda a: a * -1), ("from 0 to 1,000,000",),
    ),
    "vast-weights": (
        "weighted", change("0.token_weights", lambda a: a * np.float32(1e9)), ("1,000,000",),
    ),
    "weights-of-0": (
        "weighted", change("0.token_weights", lambda a: a * 0), ("all token weights",),
    ),
    "weights-that-are-nan": (
        "weighted", change("0.token_weights", lambda a: a * np.float32(np.nan)), ("not finite",),
    ),
    "weights-in-double": (
        "weighted", change("0.token_weights", lambda a: a.astype(float)), ("float32",),
    ),
    "weights-as-a-table": (
        "weighted", change("0.token_weights", lambda a: a[:, None]), ("of shape",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_file_is_refused(case: str, saved: Path, tmp_path: Path) -> None:
    kind, alter, words = FORGED[case]
    path = copy(saved, kind, tmp_path)
    bf.load(path)
    forge(path, alter)
    must(refuses(ValueError, *words, str(path)), lambda: bf.load(path), tmp_path)


# --- fuzzed --------------------------------------------------------------------------------------

fuzz = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
a_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


def load_or_refuse(path: Path) -> None:
    """Load it, or raise one of the errors that are promised; then look whether it works."""
    try:
        calibrator = bf.load(path)
    except (ValueError, FileNotFoundError) as error:
        helps(str(error))
        return
    width = calibrator.n_features_in_
    assert np.isfinite(calibrator.transform(np.zeros((2, width), np.float32))).all()


def keys_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, inner in below:
        here = (*path, key)
        found += keys_of(inner, here) if isinstance(inner, dict | list) else [here]
    return found


@fuzz
@given(kind=st.sampled_from(["sn", "natsv", "whiten", "flow"]), data=st.data())
def test_any_value_at_any_place_of_the_description(
    saved: Path, tmp_path: Path, kind: str, data: Any
) -> None:
    path = copy(saved, kind, tmp_path)

    def alter(content: dict[str, Any], arrays: dict[str, Any]) -> None:
        place = data.draw(st.sampled_from(keys_of(content)))
        inner: Any = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = data.draw(a_value)

    try:
        forge(path, alter)
    except (UnicodeEncodeError, TypeError):  # a lone surrogate cannot be written
        return
    load_or_refuse(path)


@fuzz
@given(kind=st.sampled_from(["sn", "natsv", "whiten", "flow"]), data=st.data())
def test_any_array_in_place_of_any(saved: Path, tmp_path: Path, kind: str, data: Any) -> None:
    path = copy(saved, kind, tmp_path)

    def alter(content: dict[str, Any], arrays: dict[str, Any]) -> None:
        name = data.draw(st.sampled_from(sorted(arrays)))
        shape = data.draw(st.lists(st.integers(0, 7), max_size=3).map(tuple))
        kinds = [np.float64, np.float32, np.float16, np.int64, np.bool_, np.uint8]
        arrays[name] = np.ones(shape, data.draw(st.sampled_from(kinds)))

    forge(path, alter)
    load_or_refuse(path)


def test_the_description_is_plain_text(saved: Path) -> None:
    raw = (saved / "flow.safetensors").read_bytes()
    assert b"pickle" not in raw
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert json.loads(header["__metadata__"]["bertflow_lite"])["format"] == "bertflow-lite"
