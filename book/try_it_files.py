"""The data scripts of the page `book/try_it`, made when the book is built.

A page that was opened as a file may not fetch data, but it may add a script. So the model and what
was fitted come as two scripts, numbers in base64:

- `try_it_model.js`: mini-bert, each row of a large matrix as whole numbers from -127 to 127 and a
  scale, so that it has half the size of the float16 weights in the repository;
- `try_it_fitted.js`: calibrators, weights by rarity and random pairs, from data/try_it.

Only the standard library is used: `make book` installs neither torch nor numpy.
"""

from __future__ import annotations

import array
import base64
import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MODEL = "mini-bert"
MODEL_FOLDER = ROOT / "data" / "models" / MODEL
FITTED = ROOT / "data" / "try_it" / f"{MODEL}.safetensors"
ORIGIN = FITTED.with_suffix(".json")
SPACES = ("raw", "rarity", "sn", "whiten", "flow")

_CODES = {"F16": "e", "F32": "f", "F64": "d", "I32": "i", "I64": "q"}  # struct's names
_LOG_SCALE_FACTOR = 3.0  # flow.py: log-scales are learned divided by it


class Entry(NamedTuple):
    """A tensor as it lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def numbers(self) -> list[Any]:
        """Give its numbers, row after row."""
        code = _CODES[self.dtype]
        return list(struct.unpack(f"<{len(self.data) // struct.calcsize(code)}{code}", self.data))


def read_safetensors(path: Path) -> dict[str, Entry]:
    """Read a safetensors file: 8 bytes with the header's length, a JSON header, the numbers."""
    whole = memoryview(path.read_bytes())
    (length,) = struct.unpack("<Q", whole[:8])
    head = json.loads(bytes(whole[8 : 8 + length]))
    head.pop("__metadata__", None)
    body = whole[8 + length :]
    return {
        name: Entry(each["dtype"], tuple(each["shape"]), body[slice(*each["data_offsets"])])
        for name, each in head.items()
    }


class Blob:
    """Numbers one after the other, and where each array begins."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, data: bytes) -> int:
        """Append bytes; give the offset, a multiple of 4, as typed arrays want it."""
        self.data.extend(bytes(-len(self.data) % 4))
        at = len(self.data)
        self.data.extend(data)
        return at

    def floats(self, values: Iterable[float]) -> dict[str, int]:
        """Append numbers as float32; give offset and count."""
        numbers = array.array("f", values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return {"at": self.add(numbers.tobytes()), "count": len(numbers)}

    def rows(self, parts: Sequence[Entry]) -> dict[str, int]:
        """Append matrices, one below the other, as whole numbers with a scale for each row."""
        whole = bytearray()
        scales: list[float] = []
        for part in parts:
            width = part.shape[1]
            pack = struct.Struct(f"{width}b").pack
            for row in struct.iter_unpack(f"<{width}{_CODES[part.dtype]}", part.data):
                largest = max(max(row), -min(row)) or 1.0
                factor = 127 / largest
                whole += pack(*[round(value * factor) for value in row])
                scales.append(largest / 127)
        return {
            "at": self.add(bytes(whole)),
            "scale": self.floats(scales)["at"],
            "rows": len(scales),
        }

    def text(self) -> str:
        """Give all of it in base64."""
        return base64.b64encode(self.data).decode("ascii")


def origin() -> dict[str, Any]:
    """Read how the stored numbers came about."""
    how: dict[str, Any] = json.loads(ORIGIN.read_text(encoding="utf-8"))["how"]
    return how


def model_head(folder: Path, blob: Blob) -> dict[str, Any]:
    """Put a BERT's weights into the blob; give its sizes and where each array lies."""
    tensors = read_safetensors(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, blocks = config["hidden_size"], config["num_hidden_layers"]

    def floats(*names: str) -> dict[str, int]:
        return blob.floats(value for name in names for value in tensors[name].numbers())

    def linear(*names: str) -> dict[str, Any]:
        matrix = blob.rows([tensors[f"{name}.weight"] for name in names])
        return {**matrix, "bias": floats(*[f"{name}.bias" for name in names])}

    def norm(name: str) -> dict[str, Any]:
        return {"weight": floats(f"{name}.weight"), "bias": floats(f"{name}.bias")}

    embeddings = "bert.embeddings"
    # A sentence alone is all of the first kind, so that its vector belongs to each position.
    kind = tensors[f"{embeddings}.token_type_embeddings.weight"].numbers()[:width]
    longest = origin()["max_length"]
    position = tensors[f"{embeddings}.position_embeddings.weight"].numbers()[: longest * width]
    head: dict[str, Any] = {
        "width": width,
        "heads": config["num_attention_heads"],
        "inner": config["intermediate_size"],
        "epsilon": config["layer_norm_eps"],
        "longest": longest,
        "words": blob.rows([tensors[f"{embeddings}.word_embeddings.weight"]]),
        "positions": blob.floats(v + kind[i % width] for i, v in enumerate(position)),
        "norm": norm(f"{embeddings}.LayerNorm"),
        "pooled": [blocks - 1, blocks],  # last2avg, counted from the embeddings' 0
        "blocks": [],
    }
    for k in range(blocks):
        layer = f"bert.encoder.layer.{k}"
        parts = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        head["blocks"].append(
            {
                "attend": linear(*parts),
                "mix": linear(f"{layer}.attention.output.dense"),
                "norm1": norm(f"{layer}.attention.output.LayerNorm"),
                "up": linear(f"{layer}.intermediate.dense"),
                "down": linear(f"{layer}.output.dense"),
                "norm2": norm(f"{layer}.output.LayerNorm"),
            }
        )
    return head


def vocabulary(folder: Path) -> list[str]:
    """Give the word pieces in the order of their numbers."""
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    numbers: dict[str, int] = described["model"]["vocab"]
    pieces = sorted(numbers, key=numbers.__getitem__)
    if [numbers[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"The word pieces of {folder.name} are not numbered from 0 without gaps.")
    return pieces


def flow_steps(tensors: dict[str, Entry], settings: dict[str, Any], blob: Blob) -> list[Any]:
    """Put the flow's layers into the blob, scales worked out; give them in order."""
    steps: list[Any] = []

    def scales(name: str) -> list[float]:
        return [math.exp(_LOG_SCALE_FACTOR * value) for value in tensors[name].numbers()]

    def linear(weight: str, bias: str, scale: str) -> dict[str, Any]:
        """Put a linear map into the blob, with the scale that follows it worked in."""
        by, width = scales(scale), tensors[weight].shape[1]
        scaled = [value * by[i // width] for i, value in enumerate(tensors[weight].numbers())]
        shift = [b * s for b, s in zip(tensors[bias].numbers(), by, strict=True)]
        return {"weight": blob.floats(scaled), "bias": blob.floats(shift)}

    for level in range(settings["levels"]):
        for k in range(settings["depth"]):
            norm, order, coupling = (f"flow.steps.{level}.{3 * k + part}" for part in range(3))
            steps.append(
                {
                    "kind": "actnorm",
                    "shift": blob.floats(tensors[f"{norm}.bias"].numbers()),
                    "scale": blob.floats(scales(f"{norm}.log_scale")),
                }
            )
            steps.append({"kind": "order", "order": tensors[f"{order}.order"].numbers()})
            net = f"{coupling}.network"
            steps.append(
                {
                    "kind": "coupling",
                    "layers": [
                        linear(f"{net}.weight1", f"{net}.norm1.bias", f"{net}.norm1.log_scale"),
                        linear(f"{net}.weight2", f"{net}.norm2.bias", f"{net}.norm2.log_scale"),
                        linear(f"{net}.weight3", f"{net}.bias3", f"{net}.log_scale3"),
                    ],
                }
            )
        if level + 1 < settings["levels"]:
            steps.append({"kind": "split"})
    return steps


def fitted_head(blob: Blob) -> dict[str, Any]:
    """Put what was fitted into the blob; give where each part lies."""
    how = origin()
    weights = hashlib.sha256((MODEL_FOLDER / "model.safetensors").read_bytes()).hexdigest()
    if how["weights_sha256"] != weights:
        raise ValueError(
            f"{ORIGIN.relative_to(ROOT)} was fitted on other weights than those in "
            f"{MODEL_FOLDER.relative_to(ROOT)}: run `python book/try_it_fit.py`."
        )
    tensors = read_safetensors(FITTED)
    n = how["fitted"]
    idf = [math.log((1 + n) / (1 + holding)) + 1 for holding in tensors["rarity.holding"].numbers()]
    wide = tensors["whiten.directions"].shape[1]
    by = [1 / math.sqrt(variance) for variance in tensors["whiten.variances"].numbers()]
    directions = tensors["whiten.directions"].numbers()
    return {
        "rarity": blob.floats(idf),
        "sn": {
            "mean": blob.floats(tensors["sn.mean"].numbers()),
            "scale": blob.floats(1 / scale for scale in tensors["sn.scale"].numbers()),
        },
        "whiten": {
            "mean": blob.floats(tensors["whiten.mean"].numbers()),
            "map": blob.floats(value * by[i // wide] for i, value in enumerate(directions)),
        },
        "flow": flow_steps(tensors, how["flow"], blob),
        "shares": {name: blob.floats(tensors[f"shares.{name}"].numbers()) for name in SPACES},
    }


def model_script() -> str:
    """Give try_it_model.js."""
    blob = Blob()
    head = model_head(MODEL_FOLDER, blob)
    return _script("model", {"head": head, "pieces": vocabulary(MODEL_FOLDER)}, blob)


def fitted_script() -> str:
    """Give try_it_fitted.js."""
    blob = Blob()
    return _script("fitted", {"head": fitted_head(blob)}, blob)


def _script(name: str, content: dict[str, Any], blob: Blob) -> str:
    text = json.dumps({**content, "data": blob.text()}, ensure_ascii=True, separators=(",", ":"))
    return f"(self.bertflowTryIt ??= {{}}).{name} = {text};\n"


def write_scripts(folder: Path) -> int:
    """Write both scripts into a folder; give their size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    size = 0
    for name, script in (("model", model_script()), ("fitted", fitted_script())):
        size += (folder / f"try_it_{name}.js").write_bytes(script.encode("ascii"))
    return size


if __name__ == "__main__":
    print(write_scripts(Path(sys.argv[1])))
