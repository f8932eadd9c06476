"""Write the page of the command line, `book/api_command_line.md`, out of typer's own description.

The package must be installed for this, which it is not where the book is built, so the page is
committed; a test compares it with what this script would write.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "api_command_line.md"
PROGRAM = "python -m bertflow_lite"
INTRO = """\
# API: the command line

The package also installs the program `bertflow-lite`, which is the same as `python -m
bertflow_lite`. Nothing is fetched unless `--download` is given.
"""


def describe() -> str:
    """Give the page: every command, argument and option, as typer describes them."""
    command = [sys.executable, "-m", "typer", "bertflow_lite.cli", "utils", "docs"]
    done = subprocess.run(
        [*command, "--name", PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    # Without its title, and its list of commands, whose descriptions are cut short.
    body = re.sub(
        r"^# .*\n|^\*\*Commands\*\*:\n\n(?:\* .*\n)+", "", done.stdout, flags=re.MULTILINE
    )
    body = body.replace(f"## `{PROGRAM} ", "## `").replace("$ " + PROGRAM, PROGRAM)
    # Options in running text as code, else two hyphens would become a dash.
    parts = re.split(r"(```.*?```|`[^`]*`)", body, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<!\S)--[a-z][a-z-]*", r"`\g<0>`", part) for part in parts[::2]]
    return INTRO + re.sub(r"\n{3,}", "\n\n", "\n" + "".join(parts).strip()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(describe(), encoding="utf-8")
