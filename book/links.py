"""List the book's links to other places, one address a line, with the pages that have it.

    python book/links.py

Nothing is fetched: whether they still work is for a person, or a job with a network, to see. Links
between pages are checked when the book is built, and by tests/book/test_pages.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

BOOK = Path(__file__).resolve().parent
ROOT = BOOK.parent
ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]}]+")
DOI = re.compile(r"^\s*doi\s*=\s*[{\"](10\.[^}\"]+)", re.M)


def pages() -> list[Path]:
    """Return the files in which readers meet links."""
    sources = [*BOOK.glob("*.md"), BOOK / "references.bib", ROOT / "_config.yml"]
    return sorted([*sources, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def addresses(text: str) -> list[str]:
    """Return the addresses that a text names, DOIs as links, without a sentence's own marks."""
    found = [match.rstrip(".,;:!?") for match in ADDRESS.findall(text)]
    return found + [f"https://doi.org/{doi}" for doi in DOI.findall(text)]


def external(paths: Iterable[Path] | None = None) -> dict[str, list[str]]:
    """Return each address with the names of the files that have it."""
    found: dict[str, list[str]] = {}
    for path in paths if paths is not None else pages():
        for address in addresses(path.read_text(encoding="utf-8")):
            names = found.setdefault(address, [])
            if path.name not in names:
                names.append(path.name)
    return dict(sorted(found.items()))


def own() -> str:
    """Return the repository's own address, which a fork changes in one place."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return str(config["repository"]["url"])


if __name__ == "__main__":
    for url, names in external().items():
        sys.stdout.write(f"{url}\t{', '.join(names)}\n")
