"""Entry point of ``python -m bertflow_lite`` and of the program ``bertflow-lite``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C is code 130 also while its modules are being imported."""
    try:
        from bertflow_lite.cli.common import app

        as_module = sys.argv[0].endswith("__main__.py")
        app(prog_name="bertflow_lite" if as_module else None)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
