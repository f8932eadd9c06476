"""Fixtures that several test modules share."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Workers share the cores; libraries read this when they are loaded, so it comes first.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import hypothesis
import pytest

if TYPE_CHECKING:  # the process that hands out the tests needs none of it
    from bertflow_lite.encoders.models import LoadedModel
    from bertflow_lite.encoders.pooling import LayerChoice
    from bertflow_lite.encoders.transformer import Encoder

# What tests of several folders import by name: `from hub_stand_in import Hub`.
sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

ROOT = Path(__file__).resolve().parents[1]
_BESIDE = ROOT.parent / "shared" / "data" / "senteval"

LARGE = 1_000_000_000  # bytes of a process
MORE = 200_000_000  # bytes by which it has grown since it was last tidied up
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

# The words that the tiny models know.
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "tree", "red", "blue", "one", "two"]
WORDS += ["three", "and", "not", "is", "it", "."]


# A shell's background job ignores Ctrl-C, and so would all processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests go to whichever worker is free, one by one; all others stay together.
SPREAD = ("tests/book/test_browser.py", "tests/book/test_exercises.py")
# What takes longest begins first, so that both workers end together.
LONG_FIRST = (
    "tests/encoders/test_mini_bert.py",
    "tests/experiments/test_spelling.py",
    "tests/experiments/test_paper_tables.py",
    "tests/integration/test_reference_scores.py",
    "tests/experiments/controls/test_controls.py",
    "tests/experiments/pretraining/test_measure.py",
    "tests/experiments/test_ablation.py",
    "tests/experiments/test_nli_fine_tune.py",
    "tests/book/test_exercises.py",
    "tests/book/test_browser.py",
)


SETTINGS = "_hypothesis_internal_use_settings"  # where hypothesis keeps what @settings has said
THOROUGH = "all"  # the profile of `make test-all`
# A busy machine is no failure. A quarter of the examples, the same ones each time;
# `--hypothesis-profile=all` tries as many as are asked for, others each time.
_UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile(
    "quarter", max_examples=25, derandomize=True, database=None, **_UNHURRIED
)
hypothesis.settings.register_profile(THOROUGH, max_examples=100, **_UNHURRIED)
hypothesis.settings.load_profile("quarter")


def _is_thorough(config: pytest.Config) -> bool:
    return bool(config.getoption("--hypothesis-profile") == THOROUGH)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-all` does; let the workers begin with what takes longest."""
    if not _is_thorough(config):
        left = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left)
        for test in {getattr(item, "obj", None) for item in items}:
            if own := vars(test).get(SETTINGS) if hypothesis.is_hypothesis_test(test) else None:
                fewer = max(own.max_examples // 4, 5)
                setattr(test, SETTINGS, hypothesis.settings(own, max_examples=fewer))
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(LONG_FIRST)}
        items.sort(key=lambda item: ranks.get(_file_of(item.nodeid), len(ranks)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Importing makes millions of objects that stay: do not look for garbage among them."""
    if session.config.getoption("dist", "no") == "no":  # where tests are run, not handed out
        gc.disable()


def pytest_collection_finish() -> None:
    """From here on, garbage is looked for, but only among what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes that are no text by what they are: gzip writes the time into them.

    Workers that collect in different seconds would otherwise find different tests, and stop.
    """
    if isinstance(val, bytes) and not (val.isascii() and val.decode("ascii").isprintable()):
        return "bytes"
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what to do about tests that have failed: run one of them alone."""
    stats = terminalreporter.stats
    if failed := [one.nodeid for kind in ("failed", "error") for one in stats.get(kind, [])]:
        profile = (
            f" --hypothesis-profile={THOROUGH}" if _is_thorough(terminalreporter.config) else ""
        )
        terminalreporter.write_line(
            f"What failed is told above. To see the first of {len(failed)} alone, with all it says:"
        )
        terminalreporter.write_line(
            f"    {_shown(sys.executable)} -m pytest -vv{profile} {shlex.quote(failed[0])}"
        )


def _shown(program: str) -> str:
    here = f"{ROOT}{os.sep}"
    return program.removeprefix(here)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files, in the order above; `--dist` with another word chooses another way."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file_of(nodeid)
            return nodeid if file in SPREAD else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Say whether everything is to be looked at, as in `make test-all`, and not a sample."""
    return _is_thorough(pytestconfig)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the tests out of the user's cache, in one that all workers of this run share.

    Only unpacked models outlive a run, in the folder that BERTFLOW_TEST_CACHE names: vectors that
    an older version of the code has made would hide what a newer one does.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "cache"
    folder.mkdir(exist_ok=True)
    if named := os.environ.get("BERTFLOW_TEST_CACHE"):
        models = Path(named).resolve() / "models"
        models.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another worker was quicker
            (folder / "models").symlink_to(models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTFLOW_CACHE", str(folder))
        yield folder


def _size() -> int:
    """Bytes that this process holds in memory, or 0 where that cannot be asked."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * PAGE if statm.exists() else 0


_tidied = 0  # bytes that were left the last time


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back() -> Iterator[None]:
    """Let go of models after a file whose process has grown large: others run, too."""
    global _tidied
    yield
    if _size() > max(LARGE, _tidied + MORE):
        from bertflow_lite.encoders import sentence_encoder, word_vectors

        sentence_encoder._load.cache_clear()
        word_vectors.load_glove.cache_clear()
        if "ipywidgets" in sys.modules:
            sys.modules["ipywidgets"].Widget.close_all()
        gc.collect()
        with contextlib.suppress(AttributeError):  # a C library that has its own ways
            ctypes.CDLL(None).malloc_trim(0)
        _tidied = _size()


@pytest.fixture
def every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all layers of what is encoded: another test that asks for others need not run a model.

    Chapters and examples encode the same sentences again and again.
    """
    from bertflow_lite.encoders.pooling import resolve_layers
    from bertflow_lite.encoders.transformer import Encoder

    pooled = Encoder._pooled

    def all_pooled(
        self: Encoder, texts: list[str], choices: list[LayerChoice], weights: Any, progress: bool
    ) -> Any:
        more = [resolve_layers(layer, self.n_layers + 1) for layer in range(self.n_layers + 1)]
        few = len(texts) < 100 or weights is not None
        return pooled(self, texts, choices if few else [*choices, *more], weights, progress)

    monkeypatch.setattr(Encoder, "_pooled", all_pooled)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what a test, or a chapter that it runs, sets of our loggers' levels."""

    def ours() -> list[logging.Logger]:
        return [
            logger
            for name, logger in logging.root.manager.loggerDict.items()
            if name.partition(".")[0] == "bertflow_lite" and isinstance(logger, logging.Logger)
        ]

    before = {logger.name: logger.level for logger in ours()}
    yield
    for logger in ours():
        if logger.level != (level := before.get(logger.name, logging.NOTSET)):
            logger.setLevel(level)  # which empties the memory of every logger there is


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse to look up hosts and to connect, and fail where it was tried.

    A client may swallow the refusal: so it is kept in mind, and told at the end.  What the hub's
    client remembers of its callers, in this process or in a file, is as if it had never asked.
    """
    from huggingface_hub import constants

    tried: list[str] = []

    def refuse(*what: Any, **_: Any) -> Any:
        tried.append(str(what))
        raise OSError(f"no network here, for {what}")

    for owner, name in (
        (socket.socket, "connect"),
        (socket.socket, "connect_ex"),
        (socket, "getaddrinfo"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    known = "huggingface_hub.utils._detect_agent._registry"
    with contextlib.suppress(AttributeError, ImportError):  # of a version that asks nothing
        monkeypatch.setattr(known, None)
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "not-there.json"))
    yield
    assert not tried, "the network was asked for"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an empty cache of its own."""
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of the real STS data, set as BERTFLOW_DATA, or skip."""
    folder = Path(os.environ.get("BERTFLOW_DATA") or _BESIDE)
    if not (folder / "downstream").is_dir() and not (folder / "senteval").is_dir():
        pytest.skip(f"the real STS data is not in {folder}; set BERTFLOW_DATA to its folder")
    monkeypatch.setenv("BERTFLOW_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def minilm() -> LoadedModel:
    """Load the packaged MiniLM once for all tests."""
    from bertflow_lite.encoders.models import load_model

    return load_model("minilm", device="cpu")


@pytest.fixture(scope="session")
def tiny_bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a random BERT: 2 blocks, 16-d, 24 tokens at most, dropout in training mode."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=26,  # two more than its tokenizer allows, as in RoBERTa
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    save_tokenizer(folder, special=True)
    return folder


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a random causal model: 2 blocks, 16-d, no [CLS], no token added to a sentence."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    LlamaModel(config).save_pretrained(folder)
    save_tokenizer(folder, special=False)
    return folder


@pytest.fixture
def tiny_bert(tiny_bert_folder: Path, own_cache: Path) -> Encoder:
    """Give a fresh encoder over the tiny BERT, with an empty cache."""
    return _tiny(tiny_bert_folder)


@pytest.fixture
def tiny_llama(tiny_llama_folder: Path, own_cache: Path) -> Encoder:
    """Give a fresh encoder over the tiny causal model, with an empty cache."""
    return _tiny(tiny_llama_folder)


def _tiny(folder: Path) -> Encoder:
    from bertflow_lite.encoders.models import load_model
    from bertflow_lite.encoders.transformer import Encoder

    return Encoder(load_model(folder, device="cpu"), max_length=24)


def save_tokenizer(folder: Path, *, special: bool) -> None:
    """Save a tokenizer of whole words, with BERT's special tokens or with none added."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]"}
    if special:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
        names |= {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=24, **names)
    fast.save_pretrained(folder)
