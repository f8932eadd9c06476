"""Sphinx extension: the page `try_it` computes by itself, with scripts that are files of the site.

Its small scripts load with the page. The two data scripts (try_it_files.py) are made at each build
and load when a reader asks for them; the page learns their size, to put it on the button.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import try_it_files
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

PAGE = "book/try_it"
PARTS = ("tokens", "encoder", "calibrators", "compare", "pair", "many", "page")  # in this order
SIZE = 'data-megabytes=""'
# Whatever a script tries, this page connects to nothing.
POLICY = '<meta http-equiv="Content-Security-Policy" content="connect-src \'none\'" />'


def write_data(app: Sphinx) -> None:
    """Make the data scripts in the site's static folder."""
    if app.builder.format != "html":
        return
    try:
        try_it_files.write_scripts(Path(app.outdir) / "_static")
    except (OSError, ValueError) as error:
        raise ExtensionError(f"The data of {PAGE} cannot be made: {error}") from error


def prepare_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add the scripts to the one page that uses them, and tell it how much it would load."""
    if pagename != PAGE:
        return
    for part in PARTS:
        app.add_js_file(f"try_it_{part}.js", loading_method="defer")
    app.add_css_file("try_it.css")
    context["metatags"] = context.get("metatags", "") + POLICY
    static = Path(app.outdir) / "_static"
    size = sum((static / f"try_it_{name}.js").stat().st_size for name in ("model", "fitted"))
    if SIZE not in context["body"]:
        raise ExtensionError(f"{PAGE} has no place {SIZE} for the size of what it loads.")
    context["body"] = context["body"].replace(SIZE, f'data-megabytes="{round(size / 1e6)}"')


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    app.connect("builder-inited", write_data)
    app.connect("html-page-context", prepare_page, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
