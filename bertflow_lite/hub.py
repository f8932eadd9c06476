"""Files of the Hugging Face hub: found in its cache, fetched only when asked, checked.

The hub's own client does the transfer, and goes on where a connection broke.  What is added here:
one short question beforehand, since the client may try for a minute before it says that there is
no network; a check of every file against the checksum that the hub gives it; and errors that say
what to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Literal

__all__ = ["cached_file", "cached_model", "fetch_file", "fetch_model", "hub_endpoint"]

RepoType = Literal["model", "dataset"]
# What a model is made of. A repository may also hold the same weights for other frameworks, which
# are left where they are.
CONFIG = "config.json"
WEIGHTS = (
    "model.safetensors",
    "pytorch_model.bin",
)  # the first there is; ".index.json" if in parts
TOKENIZER = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
BESIDE_IT = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
)  # fmt: skip
_TRIES = 2  # of the question beforehand, when the network or the hub fails
_PAUSE = 1.0  # seconds between them


def hub_endpoint() -> str:
    """Return the hub's address: ``HF_ENDPOINT`` where that is set, else the public one."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def cached_file(
    repo: str, file: str, *, repo_type: RepoType = "dataset", revision: str | None = None
) -> Path | None:
    """Return the path of a file that was fetched before, or None. Opens no connection."""
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(
            repo, file, cache_dir=constants.HF_HUB_CACHE, repo_type=repo_type, revision=revision
        )
    except ValueError:  # raised for what cannot be the name of a repository
        return None
    return Path(found) if isinstance(found, str) else None


def fetch_file(
    repo: str, file: str, *, repo_type: RepoType = "dataset", revision: str | None = None
) -> Path:
    """Fetch one file into the hub's cache, or find it there.

    Parameters
    ----------
    repo : str
        Such as ``"nyu-mll/glue"``.
    file : str
        Path inside the repository.
    repo_type : {"dataset", "model"}, default "dataset"
        What kind of repository it is.
    revision : str, optional
        A commit, tag or branch. Default: the main branch, as it is now.

    Returns
    -------
    Path
        The complete file, as the hub's checksum says.

    Raises
    ------
    FileNotFoundError
        If the hub has no such repository, revision or file.
    PermissionError
        If the hub asks for a login or for consent to terms.
    ConnectionError
        If there is no way to the hub, or it does not answer as it should.
    ValueError
        If the file arrives damaged. It is removed.
    """
    from huggingface_hub import constants, hf_hub_download

    _ask(repo, file, repo_type, revision)
    try:
        path = hf_hub_download(
            repo,
            file,
            repo_type=repo_type,
            revision=revision,
            endpoint=hub_endpoint(),
            cache_dir=constants.HF_HUB_CACHE,
        )
    except Exception as error:  # the client raises the types of its HTTP library, too
        raise _in_our_words(error, repo, file, repo_type) from error
    _verify(Path(path), repo)
    return Path(path)


def cached_model(repo: str, revision: str | None = None) -> Path | None:
    """Return the folder of a complete model that was fetched before. Opens no connection."""
    config = cached_file(repo, CONFIG, repo_type="model", revision=revision)
    if config is None or not any((config.parent / name).is_file() for name in TOKENIZER):
        return None
    return config.parent if _has_weights(config.parent) else None


def fetch_model(repo: str, revision: str | None = None) -> Path:
    """Fetch a transformer into the hub's cache: configuration, tokenizer, weights.

    Parameters
    ----------
    repo : str
        Such as ``"bert-base-uncased"``.
    revision : str, optional
        A commit, tag or branch. Default: the main branch, as it is now.

    Returns
    -------
    Path
        The folder that holds the files. Weights are taken as safetensors, where there are any.

    Raises
    ------
    FileNotFoundError, PermissionError, ConnectionError, ValueError
        As `fetch_file`; FileNotFoundError also for a repository without weights or tokenizer.
    """

    def fetch(file: str) -> bool:
        try:
            fetch_file(repo, file, repo_type="model", revision=commit)
        except FileNotFoundError:
            return False
        return True

    # The first file settles the commit, so that all the others belong to the same one.
    folder = fetch_file(repo, CONFIG, repo_type="model", revision=revision).parent
    commit = folder.name
    tokenizer_files = [name for name in (*TOKENIZER, *BESIDE_IT) if fetch(name)]
    for name in WEIGHTS:
        if fetch(name):
            break
        if fetch(f"{name}.index.json"):
            for part in _parts(folder / f"{name}.index.json"):
                fetch_file(repo, part, repo_type="model", revision=commit)
            break
    if not set(tokenizer_files).intersection(TOKENIZER) or not _has_weights(folder):
        raise FileNotFoundError(
            f"{repo!r} on the hub is no transformer that can be loaded here: it needs weights "
            f"({' or '.join(WEIGHTS)}) and a tokenizer ({', '.join(TOKENIZER)})."
        )
    return folder


def _has_weights(folder: Path) -> bool:
    for name in WEIGHTS:
        if (folder / name).is_file():
            return True
        if (folder / f"{name}.index.json").is_file():
            return all((folder / part).is_file() for part in _parts(folder / f"{name}.index.json"))
    return False


def _parts(index: Path) -> list[str]:
    """List the files that large weights are cut into."""
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{index.name} is no list of weight files ({error}).") from error


def _ask(repo: str, file: str, repo_type: RepoType, revision: str | None) -> None:
    """Ask for the headers of a file, to learn soon and plainly what is wrong."""
    from huggingface_hub import constants, get_session, get_token, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    # Not the client's own function for it, which in some versions tries for half a minute.
    for left in reversed(range(_TRIES)):
        try:
            url = hf_hub_url(
                repo, file, repo_type=repo_type, revision=revision, endpoint=hub_endpoint()
            )
            session = get_session()
            older = type(session).__module__.startswith("requests")
            # A redirection to where a large file is stored is answer enough.
            stay: dict[str, Any] = {"allow_redirects" if older else "follow_redirects": False}
            headers, timeout = build_hf_headers(token=get_token()), constants.HF_HUB_ETAG_TIMEOUT
            answer = session.head(url, headers=headers, timeout=timeout, **stay)
            if answer.status_code >= 400:
                hf_raise_for_status(answer)
            return
        except Exception as error:  # the client raises the types of its HTTP library, too
            told = _in_our_words(error, repo, file, repo_type)
            if not left or not isinstance(told, ConnectionError):
                raise told from error
            time.sleep(_PAUSE)


def _in_our_words(error: Exception, repo: str, file: str, repo_type: RepoType) -> Exception:
    """Turn what the hub's client raised into an error that says what to do."""
    from huggingface_hub import errors

    what = "model" if repo_type == "model" else "data set"
    home = hub_endpoint()
    page = f"{home}/{'' if repo_type == 'model' else 'datasets/'}{repo}"
    # The client wraps some errors into one that only says "could not find it in the cache".
    cause = error.__cause__ or error
    response = getattr(error, "response", None) or getattr(cause, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, OSError) and error.filename:  # of our disk: it names its path
        return error
    if isinstance(error, errors.HFValidationError):
        return FileNotFoundError(f"{repo!r} cannot be the name of a {what} on the hub: {error}")
    if isinstance(error, errors.GatedRepoError):
        return PermissionError(
            f"The {what} {repo!r} asks for consent to its terms: give it at {page}, log in with "
            "`hf auth login` (or set HF_TOKEN), and try again."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"The {what} {repo!r} has no such revision; see {page}.")
    if isinstance(error, errors.RepositoryNotFoundError):  # also for 401, which hides private ones
        return FileNotFoundError(
            f"The hub ({home}) shows no {what} {repo!r} (it answered {status}). Check the name; "
            "for a private one, log in with `hf auth login` or set HF_TOKEN."
        )
    if status == 404:
        return FileNotFoundError(f"The {what} {repo!r} on the hub has no {file}; see {page}.")
    if status in (401, 403):
        return PermissionError(
            f"The hub ({home}) refused {file} of the {what} {repo!r} (it answered {status}). Log "
            "in with `hf auth login` or set HF_TOKEN, to an account that may read it."
        )
    if status is not None:
        return ConnectionError(
            f"The hub ({home}) answered {status} when asked for {file} of the {what} {repo!r}. "
            "Try again later."
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return ConnectionError(
            f"The {what} {repo!r} is not in the hub's cache, and HF_HUB_OFFLINE forbids to fetch "
            "it. Unset that, or give a folder on this machine."
        )
    said = str(cause).splitlines()
    return ConnectionError(
        f"{file} of the {what} {repo!r} could not be fetched from {home} "
        f"({said[0] if said else type(cause).__name__}). Check the network (or HF_ENDPOINT) "
        "and call again, or give a folder on this machine."
    )


def _verify(path: Path, repo: str) -> None:
    """Compare a file with the checksum that the hub's cache names it by; remove a wrong one."""
    # A file of the cache is a link to a blob whose name is the hub's checksum: SHA-256 for a large
    # file, git's SHA-1 for a small one. Where links are not to be had, there is no such name.
    expected = Path(os.readlink(path)).name if path.is_symlink() else ""
    digest = {64: _sha256, 40: _git_sha1}.get(len(expected))
    if digest is not None and (met := digest(path)) != expected:
        path.resolve().unlink()
        path.unlink()
        raise ValueError(
            f"{path.name} of {repo!r} arrived damaged: its checksum is {met}, where the hub says "
            f"{expected}. It has been removed; try again."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
