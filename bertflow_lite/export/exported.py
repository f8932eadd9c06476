"""A sentence-transformers model that takes its hidden states along to other processes."""

from __future__ import annotations

from typing import Any

import sentence_transformers
from transformers import PreTrainedModel

from bertflow_lite.encoders.models import let_record, without_recorders

__all__ = ["SentenceTransformer"]


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """The library's model, but for its way into a worker process; it is saved as the library's."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(without_recorders(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for module in self.modules():
            if isinstance(module, PreTrainedModel):
                let_record(module)
