"""The README of a pre-trained model: what it is, what it has read, how, for whom, its limits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bertflow_lite.experiments.pretraining.checkpoints import Training
from bertflow_lite.experiments.pretraining.recipe import RECIPES

__all__ = ["KNOWN_CORPORA", "pretraining_card", "training_command"]

KNOWN_CORPORA = {
    "17be6f81ed6c44a8": (
        "Paragraphs of English Wikipedia: the articles with page ids 12 to 12334, from a dump of "
        "autumn 2020, without markup, headings, lists and exact duplicates (186,592 paragraphs, "
        "15.3 million words). The text is by Wikipedia's authors, under CC BY-SA 3.0 and GFDL; it "
        "was taken from the folder datasets/monolingual-en of the public repository "
        "RalleGr/msc-code-switching, which extracted it from the dump. Nearly the same articles "
        "are rows of the hub data set wikimedia/wikipedia, configuration 20231101.en, with ids up "
        "to 12334. The text is not part of this folder."
    )
}
"""Fingerprint of a packed corpus (`corpus.pack_corpus`) to what the text is."""
_OPTIONS = ("learning_rate", "weight_decay", "masked", "tied", "bias")
"""Settings of a recipe that the command `pretrain` takes."""


def pretraining_card(
    name: str,
    training: Training,
    *,
    parameters: int,
    sha256: str,
    corpus: str | None = None,
    machine: str | None = None,
    command: str | None = None,
) -> str:
    """Write the model card of a pre-trained model.

    Parameters
    ----------
    name : str
        Of the model.
    training : Training
        Of the finished run (`publish.finished_run`).
    parameters : int
        Of the model, tied ones once.
    sha256 : str
        Of the weights' file.
    corpus, machine, command : str, optional
        See `publish.publish_model`.

    Returns
    -------
    str
        Markdown with a YAML head, as the Hugging Face hub shows it.

    Raises
    ------
    ValueError
        If the corpus is not known and not described.
    """
    settings = training.settings
    text = corpus or KNOWN_CORPORA.get(settings["corpus"])
    if not text:
        raise ValueError(
            f"the run's corpus (fingerprint {settings['corpus']}) is not the book's: say what the "
            "text was and whose it is (corpus=..., command line: --corpus)."
        )
    recipe = settings["recipe"]
    parts = [
        "---\nlanguage: en\nlicense: apache-2.0\nlibrary_name: transformers\n"
        "pipeline_tag: fill-mask\ntags:\n- bert\n- masked-language-model\n---",
        f"# {name}",
        f"A small masked language model: a BERT of {recipe['blocks']} blocks, {recipe['width']} "
        f"dimensions and {recipe['heads']} heads, with {parameters / 1e6:.1f} million parameters. "
        "It guesses a hidden word piece from the pieces around it. It was trained from scratch by "
        "bertflow-lite, for its book on the embeddings of such models.",
        "## What it has read",
        f"{_sentence(text)}",
        "Its word pieces are those of BERT's uncased English vocabulary, lower-cased "
        f"(corpus, vocabulary and row length have the fingerprint {settings['corpus']}).",
        *_training(training, machine),
        *_recipe(recipe),
        *_use(name, settings, recipe, command),
        *_limits(recipe),
        "## License",
        "The code that made it and the configuration are under Apache-2.0. So are the weights, as "
        "far as that is ours to say: they hold no text, but they were made from the text named "
        "above, so name its source when you hand them on. The vocabulary is BERT's, by Google "
        "(Apache-2.0).",
        "## Checksum",
        f"`model.safetensors`, weights in float16: sha256 `{sha256}`",
    ]
    return "\n\n".join(parts) + "\n"


def _training(training: Training, machine: str | None) -> list[str]:
    settings, first, last = training.settings, training.loss[0], training.loss[-1]
    done = [
        ("updates (steps)", f"{training.steps:,}"),
        ("word pieces seen", f"{training.tokens:,}"),
        ("seconds of training", f"{training.seconds:,.0f}"),
        ("machine", machine or "not recorded"),
        ("processes", str(settings.get("processes", "not recorded"))),
        ("CPU threads of a process", str(settings.get("threads", "not recorded"))),
        ("arithmetic", "bfloat16 autocast" if settings["bf16"] else "float32"),
        ("seed", str(settings["seed"])),
        ("held-out loss before training", f"{first[3]:.3f} nats"),
        ("final training loss (running mean)", f"{last[2]:.3f} nats"),
        ("final held-out loss", f"{last[3]:.3f} nats (perplexity {math.exp(last[3]):.1f})"),
    ]
    return [
        "## How it was trained",
        "On the masked-language-model task alone: no pairs of sentences, no labels. Losses are "
        "natural logarithms for one hidden piece. The held-out loss is over rows of the same "
        "text that were never trained on, with 15 % of the pieces to guess. Before training, the "
        "model guesses by how frequent each piece is.",
        _table(("", ""), done),
    ]


def _recipe(recipe: Mapping[str, Any]) -> list[str]:
    return [
        "## Recipe",
        "What each setting means stands in `bertflow_lite.experiments.pretraining.recipe.Recipe`.",
        _table(("setting", "value"), [(key, _plain(value)) for key, value in recipe.items()]),
    ]


def _use(
    name: str, settings: Mapping[str, Any], recipe: Mapping[str, Any], command: str | None
) -> list[str]:
    place = name if name == "mini-bert" else "this-folder"
    made = [training_command(settings)] + ([command] if command else [])
    return [
        "## How to use it",
        "```python\nfrom bertflow_lite import load_encoder\nfrom bertflow_lite.encoders.language_model import "
        "fill_mask\nfrom bertflow_lite.encoders.language_model import load_language_model\n\n"
        f'lm = load_language_model("{place}")\n'
        'fill_mask(lm, ["The river flows into the [MASK]."])\n'
        f'load_encoder("{place}").encode(["It rained."])  # shape (1, {recipe["width"]})\n```',
        "transformers reads the folder too, with "
        '`AutoModelForMaskedLM.from_pretrained(folder, dtype="float32")`.',
        "## The commands that made it",
        "```\n" + "\n".join(line for line in made if line) + "\n```",
    ]


def _limits(recipe: Mapping[str, Any]) -> list[str]:
    lines = [
        "It is meant for teaching, and for examples that run without a network. It is too small "
        "and has read too little for anything else: not for production, not for decisions about "
        "people.",
        "English only, lower-cased.",
        f"Rows of at most {recipe['length']} pieces: longer ones were never trained, and its "
        "tokenizer's limit is set to that.",
        "It states no facts. It repeats what is frequent in its text.",
        "It is biased as its text is. Nothing was filtered or balanced.",
    ]
    return ["## Intended use and limits", "\n".join(f"- {line}" for line in lines)]


def training_command(settings: Mapping[str, Any]) -> str:
    """Write the command line that trains with some settings; TEXT and RUN stand for two paths.

    Parameters
    ----------
    settings : mapping
        Of a run: recipe, tokens or minutes, seed; bf16 and processes, where they are known.

    Returns
    -------
    str

    Examples
    --------
    >>> recipe = RECIPES["tiny"].as_dict() | {"masked": 0.2, "masked_last": 0.2}
    >>> training_command({"recipe": recipe, "tokens": 5e4, "minutes": None, "seed": 1})
    'python -m bertflow_lite pretrain --corpus TEXT --out RUN --config tiny --masked 0.2 --tokens
    50000 --seed 1'
    """
    asked = dict(settings["recipe"])
    changes = {
        name: {k: v for k, v in asked.items() if v != recipe.as_dict().get(k)}
        for name, recipe in RECIPES.items()
    }
    config = min(changes, key=lambda name: ("width" in changes[name], len(changes[name])))
    changed, options = changes[config], set(_OPTIONS)
    if asked["masked"] == asked.get("masked_last", asked["masked"]):  # --masked sets both
        if changed.pop("masked_last", None) is not None:
            changed["masked"] = asked["masked"]
    else:
        options.remove("masked")
    several = int(settings.get("processes", 1))
    words = ["torchrun", "--nproc-per-node", str(several)] if several > 1 else ["python"]
    words += ["-m", "bertflow_lite", "pretrain", "--corpus", "TEXT", "--out", "RUN"]
    words += ["--config", config]
    for key in (key for key in _OPTIONS if key in changed and key in options):
        option = f"--{key.replace('_', '-')}"
        if isinstance(changed[key], bool):
            words.append(option if changed[key] else f"--no-{option[2:]}")
        else:
            words += [option, str(changed[key])]
    for key in ("tokens", "minutes"):
        if (value := settings.get(key)) is not None:
            words += [f"--{key}", str(int(value)) if float(value).is_integer() else f"{value:g}"]
    words += ["--seed", str(settings["seed"])]
    if "bf16" in settings:  # said either way: what is the default depends on the hardware
        words.append("--bf16" if settings["bf16"] else "--no-bf16")
    if others := sorted(set(changed) - options):
        return f"{shlex.join(words)}  # no option sets {', '.join(others)}: see the recipe"
    return shlex.join(words)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(text: str) -> str:
    """Keep what would end a cell or a row out of it."""
    return " ".join(text.replace("|", "/").split())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
