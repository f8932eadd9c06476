"""The command line, mistyped, interrupted, cut off, and read by other programs."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
from refusal import helps, nothing_left
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.experiments.runs import load_run

SUBJECTS = ("the cat", "a dog", "the red tree", "one mat", "two dog", "three cat")
VERBS = ("sat on it", "ran", "is blue", "is not red", "sat and ran")
SENTENCES = [f"{subject} {verb} ." for subject in SUBJECTS for verb in VERBS]
CODES = {0: "done", 1: "would not do", 2: "misspelled", 130: "interrupted", 141: "closed"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    """Lay out what the commands are tried on: files, a model, a fitted calibrator."""
    place = tmp_path_factory.mktemp("prepared")
    (place / "s.txt").write_text("\n".join(SENTENCES) + "\n")
    (place / "one.txt").write_text("the cat\n")
    (place / "same.txt").write_text("the cat\n" * 9)
    (place / "bad.txt").write_bytes(b"caf\xe9\n")
    (place / "é x.txt").write_text("the cat é\n" + "\n".join(SENTENCES), encoding="utf-8")
    rows = [
        f"{a}\t{b}\t{i % 6}" for i, (a, b) in enumerate(zip(SENTENCES, SENTENCES[7:], strict=False))
    ]
    head = "sentence1\tsentence2\tscore\n"
    (place / "p.tsv").write_text(head + "\n".join(rows) + "\n")
    (place / "constant.tsv").write_text(head + "".join(f"{row[:-1]}3\n" for row in rows))
    (place / "one.tsv").write_text(head + rows[0] + "\n")
    (place / "equal.tsv").write_text(
        head + "".join(f"{t}\t{t}\t{i % 6}\n" for i, t in enumerate(SENTENCES))
    )
    (place / "half.tsv").write_text(f"{head}the cat\t\t3\n")
    (place / "thesis").mkdir()
    (place / "thesis" / "thesis.tex").write_text("three years of work")
    (place / "file").write_text("a file")
    (place / "model").symlink_to(tiny_bert_folder)
    encoder = bf.load_encoder(place / "model", max_length=24)
    vectors = encoder.encode(SENTENCES, "last2avg")
    step = bf.SentenceEncoder(encoder.name, layers="last2avg", max_length=encoder.max_length)
    pipeline = make_pipeline(step, bf.Standardizer().fit(vectors))
    bf.save(pipeline, place / "c.safetensors")
    (place / "there.npy").write_bytes(b"an array")
    return place


@pytest.fixture
def place(prepared: Path, workplace: Path) -> Path:
    """Give a copy of it, as the current folder."""
    for path in prepared.iterdir():
        if path.is_symlink():
            (workplace / path.name).symlink_to(path.resolve())
        elif path.is_dir():
            (workplace / path.name).mkdir()
            for inner in path.iterdir():
                (workplace / path.name / inner.name).write_bytes(inner.read_bytes())
        else:
            (workplace / path.name).write_bytes(path.read_bytes())
    return workplace


M = "--model model --max-length 24"
W = "--with c.safetensors --model model --max-length 24"

MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    # id: (command, words of the one line on stderr); all exit with 1
    "unknown-model": ("fit s.txt --out o.safetensors --model minlm", ("'minlm'", "Did you mean 'minilm'")),
    "empty-model": ("fit s.txt --out o.safetensors --model ''", ("name is empty", "minilm")),
    "model-is-a-file": ("fit s.txt --out o.safetensors --model file", ("'file'", "not a folder")),
    "model-is-another-folder": ("fit s.txt --out o.safetensors --model thesis", ("thesis", "complete")),
    "unknown-set": (f"sts {M} --data stsc", ("'stsc'", "Did you mean 'stsb'")),
    "unknown-split": (f"sts {M} --data mini-sts --split dev", ("no split 'dev'", "test")),
    "set-not-here": (f"sts {M} --data stsb", ("stsb", "not found", "--download")),
    "no-set": (f"sts {M} --data ,", ("','", "names nothing")),
    "unknown-layer": (f"fit s.txt --out o.safetensors {M} --layers lst", ("'lst'", "Did you mean 'last'")),
    "index-out-of-range": (f"fit s.txt --out o.safetensors {M} --layers 3", ("hidden state 3", "has 3")),
    "negative-out-of-range": (f"fit s.txt --out o.safetensors {M} --layers=-4", ("hidden state -4", "has 3")),
    "one-index-too-high": (f"fit s.txt --out o.safetensors {M} --layers 1,9", ("hidden state 9", "has 3")),
    "layers-of-a-larger-model": (f"sts {M} --layers 12", ("hidden state 12", "has 3")),
    "no-layer": (f"fit s.txt --out o.safetensors {M} --layers ''", ("unknown layers ''", "last2avg")),
    "preset-misspelt": (
        f"fit s.txt --out o.safetensors {M} --calibrate flow:recomended",
        ("'recomended'", "Did you mean 'recommended'"),
    ),
    "calibrator-misspelt": (f"fit s.txt --out o.safetensors {M} --calibrate flwo", ("Did you mean 'flow'",)),
    "calibrator-with-text": (f"fit s.txt --out o.safetensors {M} --calibrate natsv:x", ("'x'", "whole number")),
    "too-many-directions": (f"fit s.txt --out o.safetensors {M} --calibrate natsv:99", ("k is 99", "15")),
    "no-directions": (f"fit s.txt --out o.safetensors {M} --calibrate whiten:0", ("n_components is 0", "16")),
    "fit-nothing": (f"fit s.txt --out o.safetensors {M} --calibrate none", ("fits nothing", "choose")),
    "check-nothing": (f"check s.txt {M} --calibrate none", ("changes nothing", "choose")),
    "no-calibrator": (f"evaluate p.tsv {M} --calibrate ''", ("names nothing",)),
    "too-long": ("fit s.txt --out o.safetensors --model model --max-length 999", ("999", "takes 3 to 24")),
    "length-0": ("encode s.txt --out v.npy --model model --max-length 0", ("max_length is 0",)),
    "unknown-device": (f"fit s.txt --out o.safetensors {M} --device tpu9", ("'tpu9'", "cannot be used")),
    "no-file": (f"fit none.txt --out o.safetensors {M}", ("no file 'none.txt'",)),
    "not-utf-8": (f"fit bad.txt --out o.safetensors {M}", ("bad.txt", "line 1", "UTF-8")),
    "column-of-plain-text": (f"fit s.txt --out o.safetensors {M} --column x", ("no column 'x'",)),
    "one-sentence": (f"fit one.txt --out o.safetensors {M} --calibrate sn", ("1 sample", "minimum of 2")),
    "one-different-sentence": (f"fit same.txt --out o.safetensors {M} --calibrate sn", ("1 sample",)),
    "too-few-to-check": (f"check one.txt {M}", ("too few", "24 or more")),
    "out-exists": (f"fit s.txt --out c.safetensors {M}", ("'c.safetensors' exists", "--overwrite")),
    "out-is-foreign": (f"fit s.txt --out thesis {M} --overwrite", ("thesis", "must be .safetensors")),
    "out-is-a-file": (f"fit s.txt --out file {M} --overwrite", ("file", "must be .safetensors")),
    "out-below-a-file": (f"fit s.txt --out file/o.safetensors {M}", ("file", "name another place")),
    "array-exists": (f"encode s.txt --out there.npy {M}", ("'there.npy' exists", "--overwrite")),
    "array-is-a-folder": (f"encode s.txt --out thesis.npy/x.txt {M}", ("must be .npy",)),
    "array-below-a-file": (f"encode s.txt --out file/v.npy {M}", ("file", "another place")),
    "array-with-another-ending": (f"encode s.txt --out v.csv {M}", ("v.csv", "must be .npy")),
    "table-with-another-ending": (f"sts {M} --out t.xls", ("t.xls", ".json, .csv")),
    "table-below-a-file": (f"sts {M} --out file/t.csv", ("file", "another place")),
    "unknown-aggregation": (f"sts {M} --aggregation best", ("'best'", "mean or wmean")),
    "unknown-fit": (f"sts {M} --fit-on dev", ("'dev'", "target, train")),
    "with-another-model": (
        "encode s.txt --out v.npy --with c.safetensors --model glove",
        ("fitted with the encoder", "Use what it was fitted with"),
    ),
    "with-another-length": (
        "encode s.txt --out v.npy --with c.safetensors --model model --max-length 12",
        ("fitted with max_length 24, not 12", "Use what it was fitted with"),
    ),
    "with-other-layers": (
        f"encode s.txt --out v.npy {W} --layers last",
        ("fitted with hidden states", "Use what it was fitted with", "anew"),
    ),
    "layers-of-word-vectors": (
        "fit s.txt --out o.safetensors --model glove --layers 4", ("no layers", "leave out --layers 4"),
    ),
    "length-0-of-word-vectors": (
        "fit s.txt --out o.safetensors --model glove --max-length 0", ("max_length is 0", "from 1 up"),
    ),
    "nothing-known": ("similar qqzzx --in s.txt --model glove", ("no word of the query",)),
    "half-a-pair": (f"evaluate half.tsv {M}", ("row 2", "second is empty", "delete the row")),
    "column-without-a-file": (f"evaluate p.tsv {M} --column x", ("--fit-on", "--columns")),
    "with-nothing": (f"encode s.txt --out v.npy {M} --with none", ("'none'", "not there")),
    "with-another-folder": (f"encode s.txt --out v.npy {M} --with thesis", ("thesis", "a folder")),
    "empty-query": (f"similar ' ' --in s.txt {M}", ("query is empty",)),
    "two-columns": (f"evaluate p.tsv {M} --columns a,b", ("2 names", "rating")),
    "unknown-columns": (f"evaluate p.tsv {M} --columns a,b,c", ("no column 'a'", "sentence1")),
    "constant-gold": (f"evaluate constant.tsv {M} --calibrate none", ("undefined", "the same")),
    "constant-cosine": (f"evaluate equal.tsv {M} --calibrate none", ("undefined", "the same")),
    "one-pair": (f"evaluate one.tsv {M} --calibrate none", ("undefined", "one value")),
    "pairs-in-plain-text": (f"evaluate s.txt {M}", ("rated pairs come in", ".tsv")),
    "unknown-table": (f"table 99 {M.split(' --max')[0]}", ("no table 99", "there are")),
    "unknown-figure": (f"figure 9 {M.split(' --max')[0]}", ("no figure 9", "there are")),
    "no-layers-to-measure": ("geometry --model glove", ("no layers", "transformer")),
    "export-over-a-folder": ("export c.safetensors --out thesis", ("'thesis' exists", "does not")),
    "export-nothing": ("export none --out e", ("'none'", "not there")),
}  # fmt: skip


def words_of(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    case: str, place: Path, runner: CliRunner
) -> None:
    command, words = MISTAKES[case]
    if "glove" in command and not any(m.name == "glove" and m.found for m in bf.list_models()):
        pytest.skip("glove is not installed")
    with nothing_left(place):
        run = runner.invoke(app, words_of(command))
    assert run.exit_code == 1, run.output
    assert run.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", run.stderr), run.stderr
    helps(run.stderr, *words)


MISSPELT = [
    "fitt s.txt",
    "--verson",
    "fit s.txt",
    "fit s.txt --out o.safetensors --seed x",
    "fit s.txt --out o.safetensors --seed -1",
    "check s.txt --seed -1",
    "evaluate p.tsv --seed -1",
    "similar a --in s.txt --top 0",
    "fit s.txt --out o.safetensors --threads 0",
    "sts",
    "sts --model model --seeds 0",
    "table x --model model",
    "encode s.txt",
    "pmi --contexts 1",
    "fit s.txt --out o.safetensors --colum x",
    "evaluate",
]


@pytest.mark.parametrize("command", MISSPELT)
def test_a_misspelt_command_is_code_2(command: str, place: Path, runner: CliRunner) -> None:
    with nothing_left(place):
        run = runner.invoke(app, words_of(command))
    assert run.exit_code == 2
    assert run.stdout == "" and "Traceback" not in run.stderr
    assert re.search(r"Missing|No such|Invalid|Got unexpected", run.stderr)


AS_JSON: dict[str, str] = {
    "info": "info --json",
    "fit": f"fit s.txt --out o.safetensors {M} --calibrate sn --json",
    "fit-verbose": f"-v fit s.txt --out o.safetensors {M} --calibrate flow --json",
    "similar": f"similar 'the cat' --in s.txt {W} --json",
    "similar-accents": f"similar 'é 雪 😀' --in 'é x.txt' {M} --json",
    "check": f"check s.txt {M} --calibrate sn --json",
    "evaluate": f"evaluate p.tsv {M} --calibrate none,sn --json",
    "sts": f"sts {M} --calibrate none --json",
    "sts-and-a-table": f"sts {M} --calibrate none --json --out new/t.csv",
    "dead-dimensions": f"fit s.txt --out o.safetensors {M} --calibrate sn+natsv --json",
}


@pytest.mark.parametrize("case", AS_JSON)
@pytest.mark.filterwarnings("ignore")
def test_json_is_json_and_nothing_else(case: str, place: Path, runner: CliRunner) -> None:
    run = runner.invoke(app, words_of(AS_JSON[case]))
    assert run.exit_code == 0, run.stderr
    assert isinstance(json.loads(run.stdout, parse_constant=pytest.fail), dict)
    assert run.stdout.isascii()  # so that no terminal can spoil it
    if case == "sts-and-a-table":
        assert (place / "new" / "t.csv").read_text().startswith("data,split,")


WARNINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    # id: (command, words of the lines on stderr); all exit with 0
    "few-sentences": (f"fit s.txt --out o.safetensors {M} --calibrate whiten", ("30 different", "16 direct")),
    "fitted-on-what-is-scored": (
        f"evaluate p.tsv {M} --calibrate sn", ("30 different", "that are scored", "--fit-on"),
    ),
    "fewer-than-directions": (
        f"evaluate p.tsv {M} --calibrate none,whiten --fit-on some.txt",
        ("3 different sentences are fewer", "whiten must learn"),
    ),
    "unknown-words": (
        "encode odd.txt --out v.npy --model glove", ("2 of 3 sentences", "'glove' knows", "zero"),
    ),
    "cut": (f"encode long.txt --out v.npy {M}", ("1 of 2 sentences were cut at 24 tokens",)),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNINGS)
def test_a_warning_is_one_line_on_stderr(case: str, place: Path, runner: CliRunner) -> None:
    command, words = WARNINGS[case]
    if "glove" in command and not any(m.name == "glove" and m.found for m in bf.list_models()):
        pytest.skip("glove is not installed")
    (place / "some.txt").write_text("the cat sat\na dog ran\nthe tree is red\nthe cat sat\n")
    (place / "odd.txt").write_text("the cat\nqqzzx\n\n")
    (place / "long.txt").write_text("the cat\n" + "the cat sat " * 20)
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()  # pytest's own: else the command line would add none
    try:
        run = runner.invoke(app, words_of(command))
    finally:
        root.handlers[:] = before
    assert run.exit_code == 0, run.output
    assert all(line.startswith("warning: ") for line in run.stderr.splitlines()), run.stderr
    helps(run.stderr, *words)


# --- real streams --------------------------------------------------------------------------------


def command(
    place: Path, arguments: str, out: Any = None, encoding: str = "utf-8"
) -> tuple[Any, Any]:
    child, pipe = children.start(
        children.run_command, words_of(arguments), place, place.parent / "cache", out, encoding
    )
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() == "begun"
    return child, pipe


@pytest.mark.parametrize(
    "arguments", ["info", "info --json", f"similar cat --in s.txt {M} --top 30"]
)
def test_a_closed_pipe_ends_it_quietly(arguments: str, place: Path) -> None:
    reader, writer = children.CONTEXT.Pipe(duplex=False)
    reader.close()  # as `| true` does, before anything is written
    child, pipe = command(place, arguments, writer)
    writer.close()
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() == ("answer", 141)
    child.join(children.PATIENCE)
    assert (place / "stderr").read_text() == ""


MANY = "\n".join(f"{a} {b} {c} ." for a in SUBJECTS for b in VERBS for c in SENTENCES)


@pytest.mark.parametrize("milliseconds", [0, 20, 100, 300, 700])
def test_ctrl_c_at_any_time_is_code_130_and_leaves_no_output(
    milliseconds: int, place: Path
) -> None:
    (place / "many.txt").write_text(MANY * 20)
    child, pipe = command(place, f"encode many.txt --out v.npy {M}")
    child.join(milliseconds / 1000)
    with contextlib.suppress(ProcessLookupError):  # a quick machine has finished
        os.kill(child.pid, signal.SIGINT)
    assert pipe.poll(children.PATIENCE), "Ctrl-C was not heeded"
    kind, code = pipe.recv()
    child.join(children.PATIENCE)
    finished = (place / "v.npy").exists()
    # It may come when the file stands already, and before the answer is given.
    assert kind == "answer" and code in ((0, 130) if finished else (130,))
    assert not list(place.glob(".v.npy*"))
    if finished:
        assert np.load(place / "v.npy").shape[1] == 16
    assert "Traceback" not in (place / "stderr").read_text()


@pytest.mark.parametrize("when", ["cli.common", "datasets.own_files"])
def test_ctrl_c_while_modules_are_imported_is_code_130(when: str, place: Path) -> None:
    """In the first seconds most of the time goes into imports."""
    code = (
        "import sys, builtins, runpy\n"
        "real = builtins.__import__\n"
        "def stop(name, *rest, **how):\n"
        f"    if name == 'bertflow_lite.{when}': raise KeyboardInterrupt\n"
        "    return real(name, *rest, **how)\n"
        "builtins.__import__ = stop\n"
        "sys.argv[1:] = ['encode', 's.txt', '--out', 'v.npy']\n"
        "runpy.run_module('bertflow_lite', run_name='__main__', alter_sys=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place)
    assert run.returncode == 130, run.stderr
    assert re.fullmatch(r"stopped[^\n]*\n", run.stderr), run.stderr


def test_help_and_version_do_not_wait_for_torch(place: Path) -> None:
    code = (
        "import sys\n"
        "from bertflow_lite.cli import app\n"
        "for option in ('--help', '--version'):\n"
        "    try: app([option])\n"
        "    except SystemExit as end: assert not end.code\n"
        "    slow = {'torch', 'transformers', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "    assert not slow, (option, slow)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith(f"\nbertflow-lite {bf.__version__}\n")


# In a terminal whose variables are nonsense, so that one process shows both.
NAMES_AND_INFO = """
import runpy, sys, bertflow_lite as bf
assert 'torch' not in sys.modules and set(bf.__all__) <= set(dir(bf))
assert bf.flow.Glow is bf.Glow
from bertflow_lite import *
assert load_sts is bf.load_sts and SentencePairs is bf.datasets.pairs.SentencePairs
assert not hasattr(bf, 'nonsense') and not hasattr(bf, '_nonsense')
print('the names are there', file=sys.stderr)
sys.argv[1:] = ['info', '--json']
runpy.run_module('bertflow_lite', run_name='__main__', alter_sys=True)
"""


def test_the_package_gives_its_names_when_they_are_used_and_variables_may_be_nonsense(
    place: Path,
) -> None:
    variables = {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "nonsense", "COLUMNS": "-3",
                 "TERM": "none-such", "BERTFLOW_CACHE": str(place.parent / "cache")}  # fmt: skip
    how = [sys.executable, "-c", NAMES_AND_INFO]
    run = subprocess.run(how, capture_output=True, env=os.environ | variables, cwd=place)
    assert run.returncode == 0, run.stderr
    assert b"the names are there" in run.stderr
    assert "models" in json.loads(run.stdout)


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "the cat é"), ("cp1252", "the cat é \\u96ea"), ("utf-8", "the cat é 雪")],
)
def test_a_terminal_without_unicode(encoding: str, shown: str, place: Path) -> None:
    """What it cannot show comes as a code; to an ASCII terminal typer writes UTF-8 all the same."""
    with (place / "é x.txt").open("a", encoding="utf-8") as file:
        file.write("the cat é 雪\n")
    arguments = f"similar 'the cat é' --in 'é x.txt' {M} --top 40"
    child, pipe = command(place, arguments, encoding=encoding)
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() == ("answer", 0)
    child.join(children.PATIENCE)
    text = (place / "stdout").read_bytes().decode("utf-8" if encoding == "ascii" else encoding)
    assert shown in text
    assert (place / "stderr").read_text() == ""


def test_head_of_a_long_table(place: Path) -> None:
    (place / "many.txt").write_text(f"{MANY}\n" * 4)
    reader, writer = children.CONTEXT.Pipe(duplex=False)
    child, pipe = command(place, f"similar cat --in many.txt {M} --top 4000", writer)
    writer.close()
    assert os.read(reader.fileno(), 6) == b"cosine"  # as `| head -1` does
    reader.close()
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() == ("answer", 141)
    child.join(children.PATIENCE)
    assert (place / "stderr").read_text() == ""


# --- what is documented --------------------------------------------------------------------------


def test_exit_codes_are_in_the_help_and_on_a_page(runner: CliRunner) -> None:
    page = (Path(__file__).parents[2] / "book" / "promises.md").read_text(encoding="utf-8")
    told = " ".join(re.sub(r"[│\n]", " ", runner.invoke(app, ["--help"]).stdout).split())
    for code, word in CODES.items():
        assert re.search(rf"\b{code}\b[^;:|]*{word}", told), (code, told)
        assert re.search(rf"^\| `{code}` \|.*{word}", page, re.MULTILINE), code


LIBRARY: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "preset": (
        lambda: bf.FlowCalibrator.from_preset("papr"), ValueError, ("Did you mean 'paper'",),
    ),
    "set": (lambda: bf.load_sts("mini_stss"), ValueError, ("Did you mean 'mini-sts",)),
    "split": (lambda: bf.load_sts("mini-sts", "train"), ValueError, ("no split 'train'",)),
    "model": (lambda: bf.load_encoder("smolm2"), FileNotFoundError, ("Did you mean 'smollm2'",)),
    "calibrator": (lambda: bf.make_calibrator("witen"), ValueError, ("Did you mean 'whiten'",)),
    "precision": (
        lambda: bf.load_encoder("minilm", precision="int8"), ValueError, ("'int8'", "float32"),
    ),
    "run": (lambda: load_run("sts", "none"), FileNotFoundError, ("no stored run sts/none",)),
    "a-file-for-a-set": (
        lambda: bf.load_sts("my/pairs.csv"), ValueError, ("read_pairs", "'pairs.csv'"),
    ),
    "data-folder": (
        lambda: bf.load_sts("stsb", data_dir="no/such"), FileNotFoundError, ("no/such",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LIBRARY)
def test_the_library_offers_the_closest_name(case: str, workplace: Path) -> None:
    action, kind, words = LIBRARY[case]
    with nothing_left(workplace), pytest.raises(kind) as caught:
        action()
    helps(str(caught.value), *words)
