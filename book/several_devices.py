"""Encode a text file with all processes that `accelerate launch` has started, then fit a flow."""

import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState

import bertflow_lite as bf

source = Path(sys.argv[1])
model, layers, max_length = sys.argv[2:] or ("minilm", "4", "64")
state = PartialState(cpu=not torch.cuda.is_available())
sentences = source.read_text(encoding="utf-8").splitlines()
encoder = bf.load_encoder(model, max_length=int(max_length), device=str(state.device))
with state.split_between_processes(list(range(len(sentences)))) as mine:
    vectors = encoder.encode([sentences[i] for i in mine], int(layers))
np.save(source.with_suffix(f".{state.process_index}.npy"), vectors)
state.wait_for_everyone()
if state.is_main_process:
    parts = [source.with_suffix(f".{number}.npy") for number in range(state.num_processes)]
    np.save(source.with_suffix(".npy"), np.concatenate([np.load(part) for part in parts]))
    flow = bf.FlowCalibrator(device=str(state.device)).fit(source.with_suffix(".npy"))
    flow.transform(source.with_suffix(".npy"), out=source.with_suffix(".calibrated.npy"))
    bf.save(flow, source.with_suffix(".safetensors"), data=sentences)
