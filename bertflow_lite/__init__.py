"""BERT-flow, small and explained: sentence embeddings calibrated by a normalizing flow.

>>> import bertflow_lite as bf
>>> pairs = bf.load_sts("mini-sts")
>>> encoder = bf.load_encoder("glove")       # or "minilm", "mini-bert", a folder, a hub id
>>> raw = encoder.encode(pairs.sentences)
>>> z = bf.FlowCalibrator(random_state=0).fit_transform(raw)
>>> bf.score_sts(pairs, z).all > bf.score_sts(pairs, raw).all + 2  # Spearman x 100
True
"""

from importlib import import_module, util
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` imports them, each when it is first used
    from bertflow_lite.calibrators import make_calibrator
    from bertflow_lite.calibrators.flow_calibrator import PRESETS, FlowCalibrator
    from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener
    from bertflow_lite.datasets.catalog import list_datasets
    from bertflow_lite.datasets.own_files import read_pairs, read_sentences
    from bertflow_lite.datasets.pairs import SentencePairs
    from bertflow_lite.datasets.sts import load_sts
    from bertflow_lite.encoders.models import list_models
    from bertflow_lite.encoders.pooling import LAYER_NAMES
    from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
    from bertflow_lite.encoders.token_weights import TokenWeights
    from bertflow_lite.encoders.transformer import Encoder, load_encoder
    from bertflow_lite.encoders.word_vectors import WordVectorEncoder
    from bertflow_lite.experiments.runs import load_run
    from bertflow_lite.export.pipeline import load, save
    from bertflow_lite.export.sentence_transformers import to_sentence_transformer
    from bertflow_lite.flow import Glow
    from bertflow_lite.measures.diagnosis import diagnose
    from bertflow_lite.measures.scores import (
        bootstrap_difference,
        bootstrap_interval,
        pair_cosines,
        pair_scorer,
        score_similarities,
        score_sts,
    )
    from bertflow_lite.measures.similarity import cosine, nearest, spearman

try:
    __version__ = version("bertflow-lite")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "LAYER_NAMES",
    "PRESETS",
    "Encoder",
    "FlowCalibrator",
    "Glow",
    "SentenceEncoder",
    "SentencePairs",
    "Standardizer",
    "TokenWeights",
    "TopDirectionRemover",
    "Whitener",
    "WordVectorEncoder",
    "bootstrap_difference",
    "bootstrap_interval",
    "cosine",
    "diagnose",
    "list_datasets",
    "list_models",
    "load",
    "load_encoder",
    "load_run",
    "load_sts",
    "make_calibrator",
    "nearest",
    "pair_cosines",
    "pair_scorer",
    "read_pairs",
    "read_sentences",
    "save",
    "score_similarities",
    "score_sts",
    "spearman",
    "to_sentence_transformer",
]

# Where each public name lives.  Torch takes seconds to import: `--help` shall not wait for it.
_HOMES = {
    "calibrators": "make_calibrator",
    "calibrators.flow_calibrator": "PRESETS FlowCalibrator",
    "calibrators.linear": "Standardizer TopDirectionRemover Whitener",
    "datasets.catalog": "list_datasets",
    "datasets.own_files": "read_pairs read_sentences",
    "datasets.pairs": "SentencePairs",
    "datasets.sts": "load_sts",
    "encoders.models": "list_models",
    "encoders.pooling": "LAYER_NAMES",
    "encoders.sentence_encoder": "SentenceEncoder",
    "encoders.token_weights": "TokenWeights",
    "encoders.transformer": "Encoder load_encoder",
    "encoders.word_vectors": "WordVectorEncoder",
    "experiments.runs": "load_run",
    "export.pipeline": "load save",
    "export.sentence_transformers": "to_sentence_transformer",
    "flow": "Glow",
    "measures.diagnosis": "diagnose",
    "measures.scores": "bootstrap_difference bootstrap_interval pair_cosines pair_scorer "
    "score_similarities score_sts",
    "measures.similarity": "cosine nearest spearman",
}
_ORIGIN = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import what is public, or a module such as ``bf.flow``, when it is first used."""
        if name in _ORIGIN:
            home = import_module(f"{__name__}.{_ORIGIN[name]}")
            globals()[name] = found = getattr(home, name)
            return found
        if not name.startswith("_") and util.find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
