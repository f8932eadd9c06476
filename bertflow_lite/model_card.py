"""The README beside a saved calibrator: what it is, for whom, how it was made, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertflow_lite.artifact_origin import layers_argument

__all__ = ["model_card"]

WHAT = {
    "Standardizer": "SN: subtracts the mean of each dimension and divides by its deviation",
    "TopDirectionRemover": "NATSV: subtracts the mean and nulls the strongest directions",
    "Whitener": "whitening: turns to the principal directions and gives each variance 1",
    "FlowCalibrator": "BERT-flow: maps to a standard Gaussian by an invertible network",
}


def model_card(description: Mapping[str, Any]) -> str:
    """Write the model card of a saved calibrator.

    Parameters
    ----------
    description : mapping
        What ``calibrator.json`` holds (`artifacts.read_description`).

    Returns
    -------
    str
        Markdown with a YAML head, as the Hugging Face hub shows it.
    """
    parts = [
        "---\nlibrary_name: bertflow-lite\ntags:\n- sentence-similarity\n- sentence-embeddings\n"
        "- calibration\n---",
        "# A calibrator of sentence embeddings",
        *_what(description),
        *_how_fitted(description),
        *_how_to_use(description),
        *_limits(description),
    ]
    return "\n\n".join(parts) + "\n"


def _what(description: Mapping[str, Any]) -> list[str]:
    steps = description["steps"]
    chain = "; then ".join(WHAT[step["class"]] for step in steps)
    return [
        f"It takes vectors of width {steps[0]['width_in']} and gives vectors of width "
        f"{steps[-1]['width_out']}, meant to be compared by cosine. What it does to a vector: "
        f"{chain}.",
        "The folder holds numbers and text only: nothing in it is run when it is loaded.",
    ]


def _how_fitted(description: Mapping[str, Any]) -> list[str]:
    encoder, data = description["encoder"], description["data"]
    rows = []
    if encoder is not None:
        rows.append(("encoder", f"{encoder['name']} (fingerprint {encoder['fingerprint']})"))
        if "layers" in encoder:
            states = ", ".join(map(str, encoder["hidden_states"]))
            how = f"{encoder['pooling']} over tokens of hidden states {states}"
            rows.append(("layers", f"{encoder['layers']}: {how}"))
            rows.append(("longest sentence", f"{encoder['max_length']} tokens"))
    else:
        rows.append(("encoder", "not recorded"))
    rows.append(("data", "not recorded" if data is None else data["description"]))
    if data is not None and "fingerprint" in data:
        rows.append(("fingerprint of the data", data["fingerprint"]))
    rows.append(("labels", "none: fitting needs sentences only"))
    for step in description["steps"]:
        settings = ", ".join(f"{key}={value!r}" for key, value in step["settings"].items())
        rows.append((step["class"], settings or "no settings"))
        if "training" in step:
            rows.append(("training", _training(step["training"])))
    versions = description["versions"]
    rows.append(("versions", ", ".join(f"{name} {number}" for name, number in versions.items())))
    rows.append(("date", description["date"]))
    return [
        "## How it was fitted",
        "| | |\n|---|---|\n" + "\n".join(f"| {name} | {_cell(text)} |" for name, text in rows),
    ]


def _cell(text: Any) -> str:
    """Keep what would end a cell or a row out of it."""
    return " ".join(str(text).replace("|", "/").split())


def _training(training: Mapping[str, Any]) -> str:
    if training["first_bits_per_dim"] is None or training["last_bits_per_dim"] is None:
        return "none: the flow is as it was initialized"
    return (
        f"{training['steps']} steps, {training['epochs']} epochs; measured on the training "
        f"sentences: {training['first_bits_per_dim']:.3f} bits per dimension at the first step, "
        f"{training['last_bits_per_dim']:.3f} on average over the last epoch"
    )


def _how_to_use(description: Mapping[str, Any]) -> list[str]:
    encoder = description["encoder"]
    if encoder is None:
        code = (
            'calibrator = bf.load_calibrator("this-folder")\n'
            "calibrated = calibrator.transform(embeddings)    # shape (n, width)"
        )
    else:
        layers = encoder.get("layers")
        checked = "" if layers is None else f", layers={layers_argument(layers)}"
        length = f", max_length={encoder['max_length']}" if "max_length" in encoder else ""
        code = (
            f"encoder = bf.load_encoder({encoder['name']!r}{length})\n"
            f'calibrator = bf.load_calibrator("this-folder", encoder=encoder{checked})\n'
            f"raw = encoder.encode(sentences{checked})\n"
            "calibrated = calibrator.transform(raw)           # compare by cosine"
        )
    return [
        "## How to use it",
        "For similarity, search, clustering or duplicates among sentences like those it was "
        "fitted on, compared by cosine:",
        f"```python\nimport bertflow_lite as bf\n\n{code}\n```",
        "`bf.to_sentence_transformer` makes a sentence-transformers model of it.",
    ]


def _limits(description: Mapping[str, Any]) -> list[str]:
    lines = [
        "It belongs to one encoder, one choice of layers and one kind of text. With other ones it "
        "gives numbers that mean nothing.",
        "It was fitted without labels, so nothing here says that it helps your task. On a model "
        "that is tuned for sentences, and on its last layer, calibration often makes rankings "
        "worse. Score labeled pairs of your own, raw and calibrated, before you rely on it.",
        "Fewer bits per dimension mean a better fit of the density, which is not the same as "
        "better similarities.",
        "A space in which random token vectors are averaged gains much from calibration too: a "
        "gain is no proof that the encoder knows more about meaning than a bag of words.",
        "It changes no bias that the encoder has learned from its texts.",
    ]
    kinds = {step["class"] for step in description["steps"]}
    if "TopDirectionRemover" in kinds:
        lines.append("Directions that it nulls are lost: it has no inverse.")
    if any(step["width_out"] < step["width_in"] for step in description["steps"]):
        lines.append("It keeps fewer dimensions than it takes: its inverse is an approximation.")
    return ["## Limits", "\n".join(f"- {line}" for line in lines)]
