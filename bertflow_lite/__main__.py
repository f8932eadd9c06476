"""Entry point of ``python -m bertflow_lite``."""

from bertflow_lite.cli import app

if __name__ == "__main__":
    app(prog_name="bertflow_lite")
