"""What tests do in a process that was started afresh, which knows no test module by its name."""

from __future__ import annotations

import os
import sys
from typing import Any


def load_libraries() -> None:
    """Import what nearly all tasks need."""
    try:
        import bertflow_lite.export.dense
    except ImportError:  # no sentence-transformers here
        import bertflow_lite.encoders.transformer  # noqa: F401


def forget_models() -> dict[str, Any]:
    """Make transformers forget which models were made in this process; give what it knew.

    What is unpickled next stands there as in a process that has made none.
    """
    from transformers.utils import output_capturing

    registry = output_capturing._CAN_RECORD_REGISTRY
    known = dict(registry)
    registry.clear()
    return known


def remember_models(known: dict[str, Any]) -> None:
    from transformers.utils import output_capturing

    dict.update(output_capturing._CAN_RECORD_REGISTRY, known)


def encode_without_this_package(folder: str, sentences: list[str]) -> Any:
    """Encode with a saved model where this package cannot be imported, and nothing be unpickled."""
    assert "bertflow_lite" not in sys.modules, "this must come first"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("unpickled something")

    read, torch.load = torch.load, refuse
    sys.modules["bertflow_lite"] = None  # type: ignore[assignment]  # importing it fails now
    try:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(folder, device="cpu").encode(sentences)
    finally:
        torch.load = read
        del sys.modules["bertflow_lite"]
