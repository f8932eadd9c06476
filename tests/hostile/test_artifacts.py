"""Saved calibrators that were damaged, swapped or forged: refused, and never executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
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
from safetensors.torch import load, save

import bertflow_lite as bf
from bertflow_lite.artifact_format import pack
from bertflow_lite.artifacts import read_description
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

JSON, WEIGHTS, CARD = "calibrator.json", "calibrator.safetensors", "README.md"


def embeddings(dim: int = 6) -> Any:
    return np.random.default_rng(0).normal(size=(80, dim)).astype(np.float32)


KINDS: dict[str, Any] = {
    "sn": bf.Standardizer(),
    "natsv": bf.TopDirectionRemover(2),
    "whiten": bf.Whitener(3),
    "flow": bf.FlowCalibrator(levels=1, depth=1, width=4),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save one calibrator of each kind."""
    place = tmp_path_factory.mktemp("saved")
    for name, calibrator in KINDS.items():
        calibrator.fit(embeddings()).save(place / name)
    return place


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


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: folder.joinpath(name).write_bytes(content)


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return damage


def flip(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(bytes(content))

    return damage


def change(**values: Any) -> Callable[[Path], None]:
    """Change the description and leave its checksum as it was."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / JSON).read_text())
        (folder / JSON).write_text(json.dumps(content | values, indent=1) + "\n")

    return damage


def swap(folder: Path) -> None:
    other = folder.parent / "other"
    bf.Standardizer().fit(embeddings() + 3).save(other)
    shutil.copy(other / WEIGHTS, folder / WEIGHTS)
    shutil.rmtree(other)


def pickled() -> bytes:
    file = io.BytesIO()
    torch.save(Bomb(), file)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("../../exploded/x", "x")
    return file.getvalue()


CHANGED = refuses(ValueError, "cut or changed", "again")
DAMAGED: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "newer-version": (change(format_version=99), refuses(ValueError, "format 99", "pip install")),
    "version-is-text": (change(format_version="1"), CHANGED),
    "version-is-true": (change(format_version=True), CHANGED),
    "version-is-negative": (change(format_version=-1), CHANGED),
    "another-format": (change(format="something"), CHANGED),
    "weights-half": (cut(WEIGHTS, 0.5), CHANGED),
    "weights-header-only": (cut(WEIGHTS, 0.1), CHANGED),
    "weights-empty": (cut(WEIGHTS, 0), CHANGED),
    "weights-one-bit": (flip(WEIGHTS), CHANGED),
    "weights-of-another": (swap, CHANGED),
    "weights-longer": (
        lambda folder: (folder / WEIGHTS).open("ab").write(b"\0"),
        CHANGED,
    ),
    "weights-gone": (
        lambda folder: (folder / WEIGHTS).unlink(),
        refuses(FileNotFoundError, WEIGHTS),
    ),
    "weights-are-a-folder": (
        lambda folder: ((folder / WEIGHTS).unlink(), (folder / WEIGHTS).mkdir()),
        refuses(FileNotFoundError, WEIGHTS, "Save or copy"),
    ),
    "weights-are-a-pickle": (lambda folder: write(WEIGHTS, pickle.dumps(Bomb()))(folder), CHANGED),
    "weights-are-a-torch-file": (lambda folder: write(WEIGHTS, pickled())(folder), CHANGED),
    "weights-are-a-zip": (lambda folder: write(WEIGHTS, zipped())(folder), CHANGED),
    "description-half": (cut(JSON, 0.5), CHANGED),
    "description-empty": (cut(JSON, 0), CHANGED),
    "description-one-bit": (flip(JSON), CHANGED),
    "description-gone": (lambda folder: (folder / JSON).unlink(), refuses(FileNotFoundError, JSON)),
    "description-is-a-list": (write(JSON, b"[]"), CHANGED),
    "description-is-a-number": (write(JSON, b"3"), CHANGED),
    "description-is-nan": (write(JSON, b"NaN"), CHANGED),
    "description-is-deep": (write(JSON, b"[" * 50_000), CHANGED),
    "description-is-no-text": (write(JSON, bytes(range(256))), CHANGED),
    "description-is-a-pickle": (lambda folder: write(JSON, pickle.dumps(Bomb()))(folder), CHANGED),
    "steps-of-the-wrong-type": (change(steps="all"), CHANGED),
    "weights-of-the-wrong-type": (change(weights=[]), CHANGED),
    "key-twice": (
        lambda folder: (folder / JSON).write_bytes(
            (folder / JSON).read_bytes().replace(b"{", b'{"format": 1, ', 1)
        ),
        CHANGED,
    ),
    "folder-gone": (shutil.rmtree, refuses(FileNotFoundError, "no folder")),
    "folder-is-a-file": (
        lambda folder: (shutil.rmtree(folder), folder.write_bytes(pickle.dumps(Bomb()))),
        refuses(FileNotFoundError, "no folder"),
    ),
}


@pytest.mark.parametrize("kind", ["sn", "flow"])
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_calibrator_is_refused(case: str, kind: str, saved: Path, tmp_path: Path) -> None:
    damage, expected = DAMAGED[case]
    folder = Path(shutil.copytree(saved / kind, tmp_path / "c"))
    damage(folder)
    must(expected, lambda: bf.load_calibrator(folder), tmp_path)


def test_a_changed_card_does_no_harm(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "sn", tmp_path / "c"))
    (folder / CARD).write_bytes(pickle.dumps(Bomb()))
    assert isinstance(bf.load_calibrator(folder), bf.Standardizer)


# --- forged: all checksums are right -------------------------------------------------------------


def forge(folder: Path, alter: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]) -> None:
    """Change what is saved, and write it anew with checksums that fit."""
    content = read_description(folder)
    tensors = load((folder / WEIGHTS).read_bytes())
    for key in ("format", "format_version", "weights", "checksum"):
        content.pop(key)
    alter(content, tensors)
    for name, data in pack(content, tensors)[1].items():
        (folder / name).write_bytes(data)


def step(**values: Any) -> Callable[[Any, Any], None]:
    return lambda content, tensors: content["steps"][0].update(values)


def setting(**values: Any) -> Callable[[Any, Any], None]:
    return lambda content, tensors: content["steps"][0]["settings"].update(values)


def tensor(name: str, make: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda content, tensors: tensors.update({name: make(tensors[name])})


WRONG = "does not hold a calibrator"
FORGED: dict[str, tuple[str, Callable[[Any, Any], Any], Any]] = {
    "a-class-of-python": ("sn", step(**{"class": "os.system"}), refuses(ValueError, "os.system")),
    "a-class-of-builtins": ("sn", step(**{"class": "eval"}), refuses(ValueError, "'eval'", WRONG)),
    "a-class-of-sklearn": ("sn", step(**{"class": "PCA"}), refuses(ValueError, "'PCA'", WRONG)),
    "a-dunder": ("sn", step(**{"class": "__import__"}), refuses(ValueError, "__import__", WRONG)),
    "no-class": ("sn", step(**{"class": None}), refuses(ValueError, "'class' is None")),
    "an-unknown-setting": ("sn", setting(x="y"), refuses(ValueError, "no setting 'x'")),
    "text-for-a-number": ("flow", setting(levels="2"), refuses(ValueError, "wrong type", "'2'")),
    "code-for-a-number": (
        "flow",
        setting(depth="__import__('os').mkdir('exploded')"),
        refuses(ValueError, "wrong type", "depth"),
    ),
    "true-for-a-number": ("flow", setting(depth=True), refuses(ValueError, "wrong type", "depth")),
    "a-vast-width": ("flow", setting(width=10**9), refuses(ValueError, "more tensors than")),
    "a-vast-depth": ("flow", setting(depth=10**9), refuses(ValueError, "more tensors than")),
    "no-width": ("sn", step(width_in=None), refuses(ValueError, "'width_in' is None")),
    "another-width": ("sn", step(width_in=7), refuses(ValueError, "shape", "mean_")),
    "swapped-tensors": (
        "whiten",
        lambda content, t: t.update({"0.mean_": t["0.variances_"], "0.variances_": t["0.mean_"]}),
        refuses(ValueError, "of shape", WRONG),
    ),
    "a-missing-tensor": (
        "sn", lambda content, t: t.pop("0.mean_"), refuses(ValueError, "'mean_' is missing"),
    ),
    "one-tensor-more": (
        "sn", lambda content, t: t.update({"0.x": torch.ones(1)}), refuses(ValueError, "tensor x"),
    ),
    "nan": ("sn", tensor("0.mean_", lambda t: t * torch.nan), refuses(ValueError, "not finite")),
    "infinity": ("natsv", tensor("0.mean_", lambda t: t / 0), refuses(ValueError, "not finite")),
    "scale-of-0": ("sn", tensor("0.scale_", lambda t: t * 0), refuses(ValueError, "not positive")),
    "half-precision": ("sn", tensor("0.mean_", lambda t: t.half()), refuses(ValueError, "float64")),
    "no-steps": ("sn", lambda content, t: content.update(steps=[]), refuses(ValueError, "'steps'")),
    "steps-as-text": (
        "sn", lambda content, t: content.update(steps="sn"), refuses(ValueError, "'steps'"),
    ),
    "encoder-as-text": (
        "sn", lambda content, t: content.update(encoder="minilm"), refuses(ValueError, "'encoder'"),
    ),
    "pipeline-as-text": (
        "sn", lambda content, t: content.update(pipeline="no"), refuses(ValueError, "'pipeline'"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_calibrator_is_refused(case: str, saved: Path, tmp_path: Path) -> None:
    kind, alter, expected = FORGED[case]
    folder = Path(shutil.copytree(saved / kind, tmp_path / "c"))
    forge(folder, alter)
    must(expected, lambda: bf.load_calibrator(folder), tmp_path)


@pytest.mark.parametrize("make", [lambda: pickle.dumps(Bomb()), pickled, zipped],
                         ids=["pickle", "torch", "zip"])  # fmt: skip
def test_a_pickle_with_the_right_checksum_is_not_run(
    make: Callable[[], bytes], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(saved / "sn", tmp_path / "c"))
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save", lambda tensors: make())
        forge(folder, lambda content, tensors: None)
    expected = refuses(ValueError, "no safetensors file", "could run code")
    must(expected, lambda: bf.load_calibrator(folder), tmp_path)


# --- for another encoder -------------------------------------------------------------------------


def test_the_wrong_encoder_layers_or_width(
    tiny_bert: Encoder, tiny_llama: Encoder, tmp_path: Path
) -> None:
    x = embeddings(16)
    folder = bf.Standardizer().fit(x).save(tmp_path / "c", encoder=tiny_bert, layers="last")
    words = WordVectorEncoder(embeddings(5)[:2], ["a", "b"], "words")
    cases = {
        "encoder": (tiny_llama, "last", ("fitted for the encoder", "Use what it was fitted for")),
        "layers": (tiny_bert, "first-last", ("fitted for layers 'last'", "first-last")),
        "words": (words, None, ("fitted for the encoder", "words")),
    }
    for encoder, layers, say in cases.values():
        must(
            refuses(ValueError, *say),
            lambda encoder=encoder, layers=layers: bf.load_calibrator(
                folder, encoder=encoder, layers=layers
            ),
            tmp_path,
        )
    bare = bf.Standardizer().fit(embeddings(7)).save(tmp_path / "bare")
    must(
        refuses(ValueError, "width 7", "gives 16"),
        lambda: bf.load_calibrator(bare, encoder=tiny_bert, layers="last"),
        tmp_path,
    )


def test_an_encoder_that_cuts_elsewhere_is_a_warning(
    tiny_bert_folder: Path, tmp_path: Path
) -> None:
    fitted, other = (bf.load_encoder(tiny_bert_folder, max_length=n) for n in (24, 8))
    folder = (
        bf.Standardizer().fit(embeddings(16)).save(tmp_path / "c", encoder=fitted, layers="last")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf.load_calibrator(folder, encoder=fitted, layers="last")
        bf.load_calibrator(folder)
    for load_it in (bf.load_calibrator, bf.Standardizer.load):
        for layers in ("last", None):
            with pytest.warns(UserWarning, match="cut at 24 tokens.* cuts at 8") as caught:
                load_it(folder, encoder=other, layers=layers)
            helps(str(caught[0].message), "max_length=24")
            assert caught[0].filename == __file__  # the line of the caller


@pytest.mark.parametrize(
    ("layers", "as_code"),
    [("last", "'last'"), (1, "1"), ((0, -1), "(0,-1)"), ("cls", "'cls'")],
)
def test_layers_that_are_not_named_are_a_warning(
    layers: Any, as_code: str, tiny_bert: Encoder, tmp_path: Path
) -> None:
    folder = (
        bf.Standardizer().fit(embeddings(16)).save(tmp_path / "c", encoder=tiny_bert, layers=layers)
    )
    for load_it in (bf.load_calibrator, bf.Standardizer.load):
        with pytest.warns(UserWarning, match="no layers were named") as caught:
            load_it(folder, encoder=tiny_bert)
        helps(str(caught[0].message), str(folder), "'last2avg'", f"layers={as_code}.")
        assert len(caught) == 1 and caught[0].filename == __file__
    default = (
        bf.Standardizer()
        .fit(embeddings(16))
        .save(tmp_path / "d", encoder=tiny_bert, layers="last2avg")
    )
    bare = bf.Standardizer().fit(embeddings(16)).save(tmp_path / "bare")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf.load_calibrator(folder, encoder=tiny_bert, layers=layers)
        bf.load_calibrator(folder)  # unchecked, as was asked for
        bf.load_calibrator(default, encoder=tiny_bert)  # what encode gives
        bf.load_calibrator(bare, encoder=tiny_bert)


UNFIT: dict[str, tuple[Callable[[], Any], Any]] = {
    "not-fitted": (bf.Standardizer, refuses(ValueError, "not fitted")),
    "none": (lambda: None, refuses(ValueError, "no calibrator that can be saved")),
    "a-class": (lambda: bf.Standardizer, refuses(ValueError, "no calibrator that can be saved")),
    "another-estimator": (
        lambda: __import__("sklearn.decomposition").decomposition.PCA().fit(embeddings()),
        refuses(ValueError, "'PCA'", "these can"),
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_saved(case: str, tmp_path: Path) -> None:
    make, expected = UNFIT[case]
    must(expected, lambda: bf.save_calibrator(make(), tmp_path / "c"), tmp_path)


# --- fuzzed --------------------------------------------------------------------------------------

fuzz = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
a_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def load_or_refuse(folder: Path) -> None:
    """Load it, or raise an error of the two kinds that are promised; then look whether it works."""
    try:
        calibrator = bf.load_calibrator(folder)
    except (ValueError, FileNotFoundError) as error:
        helps(str(error))
        return
    width = read_description(folder)["steps"][0]["width_in"]
    assert np.isfinite(calibrator.transform(embeddings(width))).all()


@fuzz
@given(name=st.sampled_from([JSON, WEIGHTS]), data=st.binary(max_size=300), place=st.floats(0, 1))
def test_any_bytes_in_a_file_are_found(
    name: str, data: bytes, place: float, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(shutil.copytree(saved / "sn", tmp_path_factory.mktemp("fuzz") / "c"))
    content = (folder / name).read_bytes()
    at = int(place * len(content))
    (folder / name).write_bytes(content[:at] + data + content[at + len(data) :])
    load_or_refuse(folder)
    shutil.rmtree(folder.parent)


@fuzz
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), value=a_value)
def test_any_forged_value_is_refused_or_harmless(
    data: st.DataObject, kind: str, value: Any, saved: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Every place of the description in turn, any value, and checksums that fit."""

    def alter(content: Any, tensors: Any) -> None:
        part = content
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            key = data.draw(st.sampled_from(keys))
            if isinstance(part[key], (dict, list)) and part[key] and data.draw(st.booleans()):
                part = part[key]
                continue
            part[key] = value
            return

    folder = Path(shutil.copytree(saved / kind, tmp_path_factory.mktemp("fuzz") / "c"))
    try:
        forge(folder, alter)
    except (ValueError, UnicodeEncodeError):  # what JSON cannot hold is not in a file either
        shutil.rmtree(folder.parent)
        return
    load_or_refuse(folder)
    shutil.rmtree(folder.parent)


@fuzz
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_any_forged_tensor_is_refused_or_harmless(
    data: st.DataObject, kind: str, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def alter(content: Any, tensors: Any) -> None:
        name = data.draw(st.sampled_from(sorted(tensors)))
        how = data.draw(st.sampled_from(["zero", "nan", "huge", "half", "flat", "row", "gone"]))
        old = tensors[name]
        new = {
            "zero": lambda: torch.zeros_like(old),
            "nan": lambda: torch.full_like(old.double(), torch.nan),
            "huge": lambda: (old.double() * 1e200).to(old.dtype),
            "half": lambda: old.half(),
            "flat": lambda: old.flatten(),
            "row": lambda: old[:1].clone() if old.ndim else old[None],
            "gone": lambda: None,
        }[how]()
        tensors[name] = new
        if new is None:
            del tensors[name]

    folder = Path(shutil.copytree(saved / kind, tmp_path_factory.mktemp("fuzz") / "c"))
    forge(folder, alter)
    try:
        load_or_refuse(folder)
    except AssertionError:  # weights that are huge, yet finite, can only give huge vectors
        assert bf.load_calibrator(folder) is not None
    shutil.rmtree(folder.parent)


def test_the_weights_are_written_by_safetensors(saved: Path) -> None:
    raw = (saved / "flow" / WEIGHTS).read_bytes()
    assert save(load(raw))[:8] == raw[:8]
    assert b"pickle" not in raw
