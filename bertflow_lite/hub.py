"""Files of the Hugging Face hub, by its own client: cache, resuming, login, ``HF_ENDPOINT``.

Nothing is asked of the hub unless a caller says ``download=True``. What the client raises, of
whatever type, becomes one of four errors that say what to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["hub_file", "hub_model"]

_WAIT = 5.0  # seconds for the hub's first answer
_REACH = 2.5  # seconds to reach one of its addresses, of which it has several
# What a model is made of, all at the top of its repository: no code, no weights for other
# frameworks, no second copy of the weights.
_TEXTS = ["*.json", "vocab.txt", "merges.txt", "dict.txt", "bpe.codes", "*.model", "*.spm"]
_WEIGHTS = (
    ["model.safetensors", "model-*.safetensors"],
    ["pytorch_model.bin", "pytorch_model-*.bin"],  # only where there are no others
)


def hub_file(repo: str, file: str, *, download: bool = False, progress: bool = True) -> Path:
    """Find one file of a data set in the hub's cache, or, where ``download`` is True, fetch it.

    Raises FileNotFoundError where there is none, PermissionError where the hub asks for a login or
    for consent, and ConnectionError where it cannot be reached.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def look(**_: Any) -> str:
        """Find it in the cache; even a local download would ask the hub something."""
        found = try_to_load_from_cache(repo, file, repo_type="dataset")
        if isinstance(found, str):
            return found
        raise FileNotFoundError(file)

    options = {"filename": file, "repo_type": "dataset"}
    what = f"{file} of the data set {repo!r}"
    client = hf_hub_download if download else look
    return _ask(client, f"datasets/{repo}", what, download, options, progress)


def hub_model(repo: str, *, download: bool = False) -> Path:
    """Find the folder of a transformer in the hub's cache, or fetch it."""
    from huggingface_hub import snapshot_download

    for weights in _WEIGHTS:
        options = {"allow_patterns": _TEXTS + weights, "ignore_patterns": ["*/*"]}
        folder = _ask(snapshot_download, repo, f"the model {repo!r}", download, options)
        found = [path for pattern in weights for path in folder.glob(pattern)]
        if found and (folder / "config.json").is_file():
            return folder
    raise FileNotFoundError(
        f"{repo!r} on the hub is no transformer that can be loaded here: it needs config.json and "
        "weights (model.safetensors or pytorch_model.bin)."
    )


def _ask(
    client: Callable[..., Any],
    page: str,
    what: str,
    download: bool,
    options: dict[str, Any],
    progress: bool = True,
) -> Path:
    """Call a function of the hub's client, and say in our words why it fails."""
    from huggingface_hub import constants, errors, utils

    home = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    options |= {"repo_id": page.removeprefix("datasets/"), "local_files_only": not download}
    unreached = _unreached(home) if download else None
    options["local_files_only"] |= unreached is not None  # what was fetched before will do
    quiet = not (progress or utils.are_progress_bars_disabled())
    if quiet:
        utils.disable_progress_bars()
    try:
        return Path(client(**options, endpoint=home, etag_timeout=_WAIT))
    except Exception as error:  # the client raises the types of its HTTP library, too
        if isinstance(error, OSError) and error.filename:  # of our disk: it names its path
            raise
        if not download:
            raise FileNotFoundError(
                f"{what} is not in the hub's cache. Say download=True (on the command line: "
                "--download) to fetch it."
            ) from error
        # The client wraps some errors into one that only says "could not find it in the cache".
        wrapped = isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__
        cause = unreached or (error.__cause__ if wrapped else error)
        status = getattr(getattr(cause, "response", None), "status_code", None)
        # The hub answers 401 for a name that it does not know: it may be a private one.
        unknown = isinstance(cause, errors.RepositoryNotFoundError | errors.HFValidationError)
        kind: type[OSError] = ConnectionError
        advice = "Check the network (or HF_ENDPOINT) and call again, or give a folder of yours."
        if status in (401, 403, 404) or unknown:
            denied = status == 403 or isinstance(cause, errors.GatedRepoError)
            missing = (unknown or status == 404) and not denied
            kind = FileNotFoundError if missing else PermissionError
            advice = (
                f"Check the name at {home}/{page}; where it is private or has "
                "terms to accept, do so there and log in with `hf auth login` or set HF_TOKEN."
            )
        said = " ".join(str(cause).split()) or type(cause).__name__
        raise kind(
            f"{what} could not be fetched from {home}: {said[:300].rstrip('. ')}. {advice}"
        ) from error
    finally:
        if quiet:
            utils.enable_progress_bars()


def _unreached(home: str) -> Exception | None:
    """Knock once, and say what went wrong if there is no way to the hub.

    The client itself tries again for up to 40 seconds before it says that there is no network.
    """
    from huggingface_hub.utils import get_session

    try:
        get_session().head(home, timeout=_REACH)
    except Exception as error:  # of the client's HTTP library, which has changed before
        # Whoever is slow to answer was reached.
        return None if "ReadTimeout" in type(error).__name__ else error
    return None
