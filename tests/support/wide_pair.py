"""The fixture pair with heads of 64 instead of 32, for kernels that ask for it: it computes the same.

Zeros fill the heads. Rotary embeddings turn dimension i with i + half of the head, by a frequency that falls with i
over half the head; so old dimension i becomes 2 i, where the frequency is the same. The norms of queries and keys
divide by the mean over twice as many dimensions, and scores by the root of twice as many: the key norm makes up for it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from sgl_dspark.model.checkpoint import CONFIG_FILE, WEIGHTS_FILE, save_weights
from tests.support.pair import DRAFT, TARGET

NARROW, DIM = 32, 64


def _spread(rows: Tensor) -> Tensor:
    """Put the rows of heads, [heads * NARROW, ...], where rotary embeddings turn them alike: [heads * DIM, ...]."""
    half = torch.arange(NARROW // 2)
    places = torch.cat([2 * half, 2 * half + DIM // 2])
    heads = rows.view(-1, NARROW, *rows.shape[1:])
    found = heads.new_zeros(heads.shape[0], DIM, *rows.shape[1:])
    found[:, places] = heads
    return found.flatten(0, 1)


def widened_heads(name: str, tensor: Tensor) -> Tensor:
    """Give a tensor of a Qwen3 checkpoint for heads of `DIM`."""
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight")):
        return _spread(tensor)
    if name.endswith("k_norm.weight"):
        return _spread(tensor.float() * 0.5**0.5).to(tensor.dtype)
    return _spread(tensor.T).T if name.endswith("o_proj.weight") else tensor


def make_wide_pair(folder: Path, dtype: torch.dtype = torch.bfloat16) -> tuple[Path, Path]:
    """Write target and draft in ``dtype``; returns their folders."""
    for source, out in ((TARGET, folder / "target"), (DRAFT, folder / "draft")):
        out.mkdir(parents=True)
        for file in source.iterdir():
            if file.is_file() and file.suffix != ".safetensors":
                shutil.copy(file, out)
        config = json.loads((source / CONFIG_FILE).read_text())
        (out / CONFIG_FILE).write_text(json.dumps(config | {"head_dim": DIM}))
        tensors = load_file(source / WEIGHTS_FILE)
        wide = {name: widened_heads(name, t.to(dtype)).contiguous() for name, t in tensors.items()}
        save_weights(wide, out / WEIGHTS_FILE)
    return folder / "target", folder / "draft"
