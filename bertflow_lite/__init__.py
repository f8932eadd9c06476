"""BERT-flow, small and explained: sentence embeddings calibrated by a normalizing flow.

>>> import bertflow_lite as bf
>>> pairs = bf.load_sts("mini-sts")
>>> encoder = bf.load_encoder("glove")       # or "minilm", "mini-bert", a folder, a hub id
>>> raw = encoder.encode(pairs.sentences)
>>> z = bf.FlowCalibrator(random_state=0).fit_transform(raw)
>>> bf.score_sts(pairs, z).all > bf.score_sts(pairs, raw).all + 2  # Spearman x 100
True
"""

from importlib.metadata import PackageNotFoundError, version

from bertflow_lite.artifacts import load as load_calibrator
from bertflow_lite.artifacts import save as save_calibrator
from bertflow_lite.calibrate import PRESETS, FlowCalibrator, make_calibrator
from bertflow_lite.datasets import SentencePairs, list_datasets, load_sts
from bertflow_lite.encode import Encoder, load_encoder
from bertflow_lite.evaluate import (
    bootstrap_difference,
    bootstrap_interval,
    cosine,
    pair_cosines,
    score_similarities,
    score_sts,
    spearman,
)
from bertflow_lite.flow import Glow
from bertflow_lite.layers import LAYER_NAMES
from bertflow_lite.linear import Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.model_selection import PairSimilarity, pair_rows, pair_scorer
from bertflow_lite.models import list_models
from bertflow_lite.runs import load_run
from bertflow_lite.streaming import EmbeddingStream
from bertflow_lite.word_vectors import WordVectorEncoder

try:
    __version__ = version("bertflow-lite")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "LAYER_NAMES",
    "PRESETS",
    "EmbeddingStream",
    "Encoder",
    "FlowCalibrator",
    "Glow",
    "PairSimilarity",
    "SentencePairs",
    "Standardizer",
    "TopDirectionRemover",
    "Whitener",
    "WordVectorEncoder",
    "bootstrap_difference",
    "bootstrap_interval",
    "cosine",
    "list_datasets",
    "list_models",
    "load_calibrator",
    "load_encoder",
    "load_run",
    "load_sts",
    "make_calibrator",
    "pair_cosines",
    "pair_rows",
    "pair_scorer",
    "save_calibrator",
    "score_similarities",
    "score_sts",
    "spearman",
]
