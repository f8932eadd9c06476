"""How long the paper's whole evaluation takes: encode, fit and score all seven STS sets.

    python benchmarks/gpu_check.py --shape base --precision bfloat16 --store
    python benchmarks/gpu_check.py --all --store      # base and large, bfloat16 and float32

The encoder has BERT's shape and random weights, so no download is needed; time does not depend on
what the weights are. Sentences are the real ones where `BERTFLOW_DATA` names SentEval's folder.
Elsewhere they are made up, with as many different sentences in each set and as many tokens in each
sentence as the real sets have (benchmarks/sts_lengths.json), and gold scores are drawn at random:
then only times are reported, never scores. Written to benchmarks/results/gpu-<card>.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import bertflow_lite as bf
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.files import write_json

HERE = Path(__file__).parent
SETS = ("stsb", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")
SHAPES = {  # blocks, width, heads
    "tiny": (2, 64, 2),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
TARGET_SECONDS = 60.0  # base, on an H100


def made_up_pairs(name: str, lengths: dict[str, int], n_pairs: int, seed: int) -> SentencePairs:
    """Pairs of made-up sentences with the token counts of a real set."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat([int(k) for k in lengths], list(lengths.values()))
    texts = [
        " ".join(f"w{word}" for word in rng.integers(20_000, size=max(size - 2, 1)))
        for size in rng.permutation(sizes)
    ]
    # Every text occurs, as in the real set; the other places are repeats.
    extra = rng.integers(len(texts), size=2 * n_pairs - len(texts))
    places = rng.permutation([*range(len(texts)), *extra])
    filled = [texts[i] for i in places]
    one, two = tuple(filled[:n_pairs]), tuple(filled[n_pairs:])
    gold = rng.uniform(0, 5, n_pairs)
    return SentencePairs(name, "all", one, two, gold, np.full(len(gold), name))


def load_pairs() -> tuple[list[tuple[SentencePairs, SentencePairs]], str]:
    """Give (pairs to fit on, pairs to score) for each set, and where they are from."""
    try:
        real = [(bf.load_sts(name, "all"), bf.load_sts(name)) for name in SETS]
        return real, "real sentences"
    except FileNotFoundError:
        lengths = json.loads((HERE / "sts_lengths.json").read_text())
        made = []
        for seed, (name, entry) in enumerate(lengths.items()):
            pairs = made_up_pairs(name, entry["lengths"], entry["pairs"], seed)
            made.append((pairs, pairs))
        return made, "made-up sentences of the real sets' lengths"


def make_folder(shape: str, vocabulary: list[str], folder: Path) -> None:
    """A transformers folder: BERT's shape, random weights, one token for each word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    ids = {word: i for i, word in enumerate([*special, *vocabulary])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)
    blocks, width, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=max(30_522, len(ids)),
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)


def measure(shape: str, precision: str, device: str) -> dict[str, object]:
    """Time the three parts over all sets, after a warm-up on a few sentences."""
    data, where = load_pairs()
    words = {word for fit, _ in data for text in fit.sentences for word in text.split()}
    with tempfile.TemporaryDirectory() as scratch:
        make_folder(shape, sorted(words), Path(scratch))
        encoder = bf.load_encoder(scratch, device=device, precision=precision, cache=False)
    warm = data[0][0].sentences[:256]
    flow = bf.FlowCalibrator(device=device)
    flow.fit(encoder.encode(warm, "first-last"))
    seconds = {"encode": 0.0, "fit": 0.0, "evaluate": 0.0}
    sentences = 0
    for fit, scored in data:
        started = time.perf_counter()
        both = encoder.encode([*fit.sentences, *scored.sentences], "first-last")
        seconds["encode"] += time.perf_counter() - started
        sentences += len(set(fit.sentences) | set(scored.sentences))
        started = time.perf_counter()
        flow = bf.FlowCalibrator(device=device).fit(both[: len(fit.sentences)])
        seconds["fit"] += time.perf_counter() - started
        started = time.perf_counter()
        bf.score_sts(scored, flow.transform(both[len(fit.sentences) :]))
        seconds["evaluate"] += time.perf_counter() - started
    total = sum(seconds.values())
    row: dict[str, object] = {
        "shape": shape,
        "precision": precision,
        "sentences": sentences,
        "from": where,
        **{name: round(value, 2) for name, value in seconds.items()},
        "total": round(total, 2),
    }
    if device == "cuda":
        row["memory_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        torch.cuda.reset_peak_memory_stats()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--all", action="store_true", help="base and large, both precisions")
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/gpu-*.json")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    card = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    chosen = [(arguments.shape, arguments.precision)]
    if arguments.all:
        chosen = [(s, p) for s in ("base", "large") for p in ("bfloat16", "float32")]
    rows = []
    for shape, precision in chosen:
        rows.append(measure(shape, precision, device))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.store:
        name = card.lower().replace(" ", "-")
        content = {"card": card, "machine": describe_machine("transformers"), "rows": rows}
        write_json(HERE / "results" / f"gpu-{name}.json", content)
    base = [r for r in rows if r["shape"] == "base" and r["precision"] == "bfloat16"]
    slow = "H100" in card and any(float(str(r["total"])) > TARGET_SECONDS for r in base)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
