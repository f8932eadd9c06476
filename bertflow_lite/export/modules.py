"""Modules for a `SentenceTransformer`: layers pooled as here, and a calibrator at the end.

`Calibration` goes after any pooling:
``SentenceTransformer(modules=[transformer, pooling, Calibration(flow)])``.  Whole models are
made by `export.sentence_transformers`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bertflow_lite.artifact_format import write_files
from bertflow_lite.artifact_origin import DataArgument, describe_origin
from bertflow_lite.artifacts import artifact_files, load_with_description
from bertflow_lite.calibrator_state import list_steps, origin_of, width_out
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.encoders.pooling import LayersArgument, pool
from bertflow_lite.encoders.transformer import Encoder

try:
    from sentence_transformers.base.modules import Module
except ImportError as error:
    raise ImportError(
        "this needs sentence-transformers 6 or later. Run: pip install 'sentence-transformers>=6'"
    ) from error
__all__ = ["Calibration", "LayerPooling", "torch_steps"]


class LayerPooling(Module):
    """Average chosen hidden states, pooled over tokens: the layer choices of `Encoder.encode`.

    The transformer before it must give all hidden states
    (``Transformer(..., config_kwargs={"output_hidden_states": True})``) and keep its padding
    (``unpad_inputs=False``).

    Parameters
    ----------
    hidden_states : list of int
        Indices into the hidden states: 0 is the embedding layer, k the output of block k.
    embedding_dimension : int
        Width of a hidden state.
    pooling : {"mean", "cls"}, default "mean"
        Mean over the tokens that the attention mask keeps, or the first token.

    Notes
    -----
    The result is float32 whatever the type of the transformer, since rounding a mean to half
    precision loses much of what calibration works with.
    """

    config_keys: list[str] = ["hidden_states", "embedding_dimension", "pooling"]  # noqa: RUF012

    def __init__(
        self, hidden_states: list[int], embedding_dimension: int, pooling: str = "mean"
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "cls"):
            raise ValueError(f"pooling is {pooling!r}; it must be 'mean' or 'cls'.")
        if not hidden_states or min(hidden_states) < 0:
            raise ValueError(
                f"hidden_states is {list(hidden_states)}; name at least one, counted from 0."
            )
        self.hidden_states = list(hidden_states)
        self.embedding_dimension = embedding_dimension
        self.pooling = pooling

    def forward(self, features: dict[str, Tensor | Any], **kwargs: Any) -> dict[str, Tensor | Any]:
        """Set ``sentence_embedding`` from ``all_layer_embeddings``.

        Parameters
        ----------
        features : dict
            What the modules before it have made.
        **kwargs
            Not used.

        Returns
        -------
        dict
            The same, with ``sentence_embedding``: Tensor, shape (batch, dim).

        Raises
        ------
        ValueError
            If there are too few hidden states, or the attention mask has another shape.
        """
        states = features.get("all_layer_embeddings")
        if states is None:
            raise ValueError(
                "LayerPooling needs all hidden states: make the transformer with "
                "config_kwargs={'output_hidden_states': True}."
            )
        if max(self.hidden_states) >= len(states):
            raise ValueError(
                f"hidden state {max(self.hidden_states)} is asked for; the transformer gives "
                f"{len(states)}, counted from 0."
            )
        mask = features["attention_mask"]
        if mask.shape != states[0].shape[:2]:
            raise ValueError(
                f"the attention mask has shape {tuple(mask.shape)} and the hidden states "
                f"{tuple(states[0].shape)}: make the transformer with unpad_inputs=False."
            )
        total = sum(pool(states[k], mask, f"{self.pooling}:{k}") for k in self.hidden_states)
        features["sentence_embedding"] = total / len(self.hidden_states)
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the sentence embedding.

        Returns
        -------
        int
        """
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the settings; there are no weights.

        Parameters
        ----------
        output_path : str
            An existing folder.
        *args, **kwargs
            Not used.
        """
        self.save_config(output_path)


class Center(torch.nn.Module):
    """Subtract a constant from each dimension, whatever the float type."""

    mean: Tensor

    def __init__(self, mean: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(mean.copy()))

    def forward(self, x: Tensor) -> Tensor:
        """Center vectors, shape (batch, dim)."""
        return (x.to(self.mean) - self.mean).to(x.dtype)


class Calibration(Module):
    """Calibrate the sentence embedding with a fitted calibrator.

    Parameters
    ----------
    calibrator : fitted calibrator, or Pipeline of such
        A `FlowCalibrator`, `Standardizer`, `TopDirectionRemover` or `Whitener`.
    encoder, layers, data : optional
        What it was fitted for and on, kept in its files (`artifacts.save`); a calibrator that was
        loaded remembers it.

    Notes
    -----
    The weights stay in float32 (a linear calibrator's in float64) when the model is turned to
    half precision, autocast is off inside, and half-precision embeddings are brought to float32
    first: the result is float32, or float64 for float64 embeddings.  The calibrator is frozen,
    but gradients pass through to what comes before.  It is saved as `artifacts.save` does, so
    ``load_calibrator("model/2_Calibration")`` gives the calibrator itself again.

    Examples
    --------
    >>> import numpy as np
    >>> from bertflow_lite import Whitener
    >>> x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    >>> calibration = Calibration(Whitener(2).fit(x))
    >>> features = calibration({"sentence_embedding": torch.from_numpy(x).bfloat16()})
    >>> features["sentence_embedding"].shape, features["sentence_embedding"].dtype
    (torch.Size([50, 2]), torch.float32)
    """

    def __init__(
        self,
        calibrator: Any,
        *,
        encoder: Encoder | None = None,
        layers: LayersArgument | None = None,
        data: DataArgument | None = None,
    ) -> None:
        super().__init__()
        modules: list[torch.nn.Module] = []
        for module, (_, step) in zip(torch_steps(calibrator), list_steps(calibrator), strict=True):
            if isinstance(step, FlowCalibrator) and step._dead_mean().any():
                modules.append(Center(step._dead_mean()))  # the flow itself passes them through
            modules.append(module)
        self.steps = torch.nn.Sequential(*modules)
        self.calibrator = calibrator
        self.origin = describe_origin(encoder, layers, data, origin_of(calibrator))
        self.embedding_dimension = width_out(list_steps(calibrator)[-1][1])

    def forward(self, features: dict[str, Tensor | Any], **kwargs: Any) -> dict[str, Tensor | Any]:
        """Replace ``sentence_embedding``, shape (batch, dim), by its calibrated form.

        Parameters
        ----------
        features : dict
            What the modules before it have made.
        **kwargs
            Not used.

        Returns
        -------
        dict
            The same, with ``sentence_embedding``: Tensor, shape (batch, width).
        """
        x: Tensor = features["sentence_embedding"]
        with torch.autocast(x.device.type, enabled=False):
            features["sentence_embedding"] = self.steps(
                x if x.dtype == torch.float64 else x.float()
            )
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the calibrated embedding.

        Returns
        -------
        int
        """
        return self.embedding_dimension

    def get_config_dict(self) -> dict[str, Any]:
        """Say what it does, for the printed form of a model.

        Returns
        -------
        dict
        """
        return {"calibrator": str(self.calibrator), "embedding_dimension": self.embedding_dimension}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the calibrator's files; always safetensors, whatever is asked for.

        Parameters
        ----------
        output_path : str
            An existing folder.
        *args, **kwargs
            Not used.
        """
        write_files(Path(output_path), artifact_files(self.calibrator, self.origin))

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load from a saved model; every check of `artifacts.load` applies.

        Parameters
        ----------
        model_name_or_path : str
            A folder, or a model of the hub.
        subfolder : str, default ""
            The folder of this module within it.
        token, cache_folder, revision, local_files_only
            How sentence-transformers gets a model from the hub.
        init_defaults, **kwargs
            Not used.

        Returns
        -------
        Calibration

        Raises
        ------
        FileNotFoundError
            If there is no such folder, or a file is missing.
        ValueError
            If a file was cut or changed or is none of ours.
        """
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if folder is None:
            raise FileNotFoundError(f"{model_name_or_path!r} holds no folder {subfolder!r}.")
        return cls(load_with_description(folder)[0])  # which remembers what it was fitted for

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the model to another device, but not to another type."""

        def move(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=tensor.device)).device
            if device.type == "mps" and tensor.dtype == torch.float64:
                tensor = tensor.float()  # Apple's GPUs have no float64
            return tensor.to(device)

        return super()._apply(move, recurse)


def torch_steps(calibrator: Any) -> nn.Sequential:
    """Give a fitted calibrator, or a Pipeline of such, as a chain of torch modules.

    Each takes and gives vectors of shape (batch, width) in the float type of its input.  As in
    NumPy, the linear maps compute in float64 and a flow in the type that it was fitted in.
    """
    kinds: dict[type[Any], type[nn.Module]] = {
        Standardizer: Standardize,
        TopDirectionRemover: RemoveDirections,
        Whitener: Whiten,
        FlowCalibrator: RunFlow,
    }
    return nn.Sequential(*(kinds[type(step)](step) for _, step in list_steps(calibrator)))


class Standardize(nn.Module):
    """`Standardizer.transform`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, step: Standardizer) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("scale", _tensor(step.scale_))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and divide by the deviation."""
        return ((x.to(self.mean) - self.mean) / self.scale).to(x.dtype)


class RemoveDirections(nn.Module):
    """`TopDirectionRemover.transform`."""

    mean: Tensor
    directions: Tensor

    def __init__(self, step: TopDirectionRemover) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("directions", _tensor(step.directions_))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and what lies along the directions."""
        centered = x.to(self.mean) - self.mean
        along = (centered @ self.directions.T) @ self.directions
        return (centered - along).to(x.dtype)


class Whiten(nn.Module):
    """`Whitener.transform`."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, step: Whitener) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("matrix", _tensor(step.directions_.T / np.sqrt(step.variances_)))

    def forward(self, x: Tensor) -> Tensor:
        """Turn to the principal directions and divide by their deviations."""
        return ((x.to(self.mean) - self.mean) @ self.matrix).to(x.dtype)


class RunFlow(nn.Module):
    """`FlowCalibrator.transform`."""

    live: Tensor
    type_as: Tensor

    def __init__(self, step: FlowCalibrator) -> None:
        super().__init__()
        self.register_buffer("live", _tensor(np.flatnonzero(step.live_)))
        self.flow = copy.deepcopy(step.flow_).cpu()
        weight = self.flow.weight_like()
        kind = torch.float32 if weight is None else weight.dtype
        self.register_buffer("type_as", torch.empty(0, dtype=kind))
        for module in self.flow.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map the live dimensions to the latent; the others stay as they are."""
        z, _ = self.flow(x.index_select(1, self.live).to(self.type_as.dtype))
        return x.index_copy(1, self.live, z.to(x.dtype))


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))
