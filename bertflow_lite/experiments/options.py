"""What all experiments can be told, said once; and where an interrupted one is found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments.resume import Keep, KeptResults, no_keep
from bertflow_lite.saving import package_versions

__all__ = ["AnyEncoder", "RunOptions", "open_kept", "seeds_for"]

AnyEncoder = Encoder | WordVectorEncoder


@dataclass(frozen=True)
class RunOptions:
    """How to run a table or a figure; each experiment uses what makes sense for it.

    Attributes
    ----------
    seeds : int, default 3
        Flows are fitted with random states 0 to seeds - 1 (`seeds_for`).
    layers : sequence of str, default ()
        Layer choices beside the experiment's own.
    data : sequence of str, optional
        Names of sets; default: the experiment's own.
    nli_sentences : int, optional
        Fit flow (NLI) on this many NLI sentences, drawn at random (`choose_sentences`), where there
        are more; by default on all, up to 300,000.
    download : bool, default False
        Allow missing sets to be fetched.
    progress : bool, default False
        Progress bars while encoding and fitting.
    keep : Keep, default `no_keep`
        Gives finished parts back after an interruption.
    """

    seeds: int = 3
    layers: Sequence[str] = ()
    data: Sequence[str] | None = None
    nli_sentences: int | None = None
    download: bool = False
    progress: bool = False
    keep: Keep = no_keep

    def choices(self, *own: str) -> list[str]:
        """Layer choices: the experiment's own, then those that were asked for besides."""
        return list(dict.fromkeys([*own, *self.layers]))


def seeds_for(calibrator: str, seeds: int) -> range:
    """Give the random states to fit a calibrator with: one only, where none changes it."""
    return range(seeds if "flow" in calibrator else 1)


def open_kept(experiment: str, encoder: AnyEncoder, options: RunOptions) -> KeptResults:
    """Open what an interrupted run of the same experiment with the same settings left behind."""
    settings = {
        "fingerprint": encoder.fingerprint,
        "max_length": getattr(encoder, "max_length", None),
        "precision": str(getattr(encoder, "autocast", None)),
        "device": encoder.device.type,
        "seeds": options.seeds,
        "layers": list(options.layers),
        "data": list(options.data) if options.data is not None else None,
        "versions": package_versions(),
    }
    if options.nli_sentences is not None:
        settings["nli_sentences"] = options.nli_sentences
    return KeptResults(experiment, settings)
