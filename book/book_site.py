"""Sphinx extension of this book: the site carries everything its pages load.

- A page that has both `NAME.md` and `NAME.ipynb` is built from the notebook.
- Plotly and MathJax are copied out of the installed packages into the site, only the files that a
  page can load, and of Plotly only what the book's figures need (plotly_parts.py); a page loads
  Plotly only where it has a figure, and draws a figure when it comes near the view.
- Chapter 5 gets the scripts of its playground, and a strip of its film for who has no JavaScript.
- Works are cited as Li et al. (2020), with round brackets.
- What would ask another server is taken out: the loader of sphinx-thebe, and the address from which
  a figure fetches Plotly when it is shown outside the book.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import film
import plotly_parts
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinxcontrib.bibtex.plugin import register_plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

# Of the 24 MB that sphinx-mathjax-offline brings: the build that _config.yml names, the TeX
# extensions that it may load later, and the fonts.
MATHJAX_FILES = ("tex-chtml.js", "input/tex/extensions/*.js", "output/chtml/fonts/woff-v2/*.woff")
# The scripts of chapter 5's playground, in the order in which they build on each other.
PLAYGROUND = (
    *("random", "layers", "network", "model", "train", "points"),
    *("state", "drawing", "pictures", "playground"),
)
# The theme's menus, and its icons: 1.5 MB.
THEME = re.compile(
    r'<script (?:defer )?src="'
    r'([^"]*/(?:bootstrap|pydata-sphinx-theme|fontawesome)\.js[^"]*)"></script>'
)
LATER = '<script data-later="'
PLOTLY_ADDRESS = re.compile(r"https://cdn\.plot\.ly/[\w.-]*")


def _round() -> BracketStyle:
    return BracketStyle(left="(", right=")")


@dataclass
class RoundAuthorYear(AuthorYearReferenceStyle):
    """Author and year, the year in round brackets."""

    bracket_parenthetical: BracketStyle = field(default_factory=_round)
    bracket_textual: BracketStyle = field(default_factory=_round)
    bracket_author: BracketStyle = field(default_factory=_round)
    bracket_label: BracketStyle = field(default_factory=_round)
    bracket_year: BracketStyle = field(default_factory=_round)


def _package_folder(module: str, package: str) -> Path:
    """Return the folder of an installed module, without importing it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ExtensionError(f"The book needs the package {package}: run `make book`.")
    return Path(spec.origin).parent


def leave_out_sources(app: Sphinx, config: Any) -> None:
    """Exclude each `.md` that has a notebook of the same name beside it."""
    root = Path(app.srcdir)
    for notebook in (root / "book").rglob("*.ipynb"):
        source = notebook.with_suffix(".md")
        if source.exists():
            config.exclude_patterns.append(source.relative_to(root).as_posix())


def copy_libraries(app: Sphinx) -> None:
    """Copy Plotly and MathJax into the site's static folder."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    plotly = _package_folder("plotly", "plotly") / "package_data" / "plotly.min.js"
    kinds = plotly_parts.kinds_in(Path(app.srcdir, "book").glob("*.ipynb"))
    library = plotly_parts.without_unused(plotly.read_text(encoding="utf-8"), kinds)
    (static / plotly.name).write_text(library, encoding="utf-8")

    strip = film.strip(Path(app.srcdir, "book", "05_flows.ipynb"))
    (static / "flow_film.svg").write_text(strip, encoding="utf-8")

    mathjax = _package_folder("sphinx-mathjax-offline", "sphinx-mathjax-offline")
    mathjax = mathjax / "static" / "mathjax"
    shutil.rmtree(static / "mathjax", ignore_errors=True)
    for pattern in MATHJAX_FILES:
        found = list(mathjax.glob(pattern))
        if not found:
            raise ExtensionError(f"sphinx-mathjax-offline no longer carries {pattern}")
        for file in found:
            target = static / "mathjax" / file.relative_to(mathjax)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def prepare_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Add Plotly to a page with figures; drop what would ask another server."""
    body = context.get("body", "")
    if "plotly-graph-div" in body:
        # Figures wait for this tag to have loaded: see bertflow_lite/figures/plots.py.
        app.add_js_file("plotly.min.js", loading_method="defer", id="plotly-library")
        context["body"] = PLOTLY_ADDRESS.sub("", body)
    if 'id="flow-playground"' in body:
        app.add_css_file("play.css")
        for part in PLAYGROUND:
            app.add_js_file(f"flow_{part}.js", loading_method="defer")
    scripts = context["script_files"]
    scripts[:] = [file for file in scripts if not _is_thebe(file)]  # in place: others add to it
    # "Edit this page" leads to the text source; launch buttons look for the notebook beside it.
    source = Path(app.srcdir) / f"{pagename}.md"
    if context.get("page_source_suffix") == ".ipynb" and source.exists():
        context["page_source_suffix"] = ".md"


def draw_when_near(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Hand the figures of a page to the script that draws them when they come near the view.

    It also brings MathJax, which would otherwise run before the first figure can be seen.
    """
    scripts = context["script_files"]
    if not any(_name(file).endswith("plotly.min.js") for file in scripts):
        return
    later = [file for file in scripts if "mathjax/" in _name(file)]
    scripts[:] = [file for file in scripts if file not in later]
    attributes: dict[str, Any] = {
        "data-later": " ".join(context["pathto"](_name(file), 1) for file in later)
    }
    app.add_js_file("figures_near.js", priority=400, **attributes)


def bring_theme_later(app: Sphinx, error: Exception | None) -> None:
    """Let menus and icons wait as well, for which the theme's own template asks, not a page."""
    if error is not None or app.builder.format != "html":
        return
    for page in (Path(app.outdir) / "book").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        found = sorted(THEME.findall(text), key=lambda address: "fontawesome" in address)
        if found and LATER in text:
            text = THEME.sub("", text).replace(LATER, f"{LATER}{' '.join(found)} ", 1)
            page.write_text(text, encoding="utf-8")


def _name(script: Any) -> str:
    return str(getattr(script, "filename", script) or "")


def _is_thebe(script: Any) -> bool:
    return "thebe" in f"{getattr(script, 'filename', script)}{getattr(script, 'attributes', '')}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    group = "sphinxcontrib.bibtex.style.referencing"
    register_plugin(group, "author_year_round", RoundAuthorYear)
    app.connect("config-inited", leave_out_sources)
    app.connect("builder-inited", copy_libraries)
    app.connect("html-page-context", prepare_page, priority=400)
    app.connect("html-page-context", draw_when_near, priority=900)  # after MathJax was added
    app.connect("build-finished", bring_theme_later)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
