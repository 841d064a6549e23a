"""Widen a pair without changing what it computes, so that a small, trained pair takes the time of a larger one.

Every hidden vector becomes ``factor`` copies of itself: rows of a matrix are repeated, and its columns are shared out
over the copies with weights 1/2, 1/4, ..., the last one twice. Powers of two are exact in every float format and these
add up to one, so results differ by rounding only (Net2Net's function-preserving widening, Chen et al. 2016, with every
unit copied equally often). The RMS norm of a repeated vector is the repeated norm; attention heads are repeated whole,
key heads with their query heads. Vocabulary, depth, head size and the rank of the sequential head stay.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sgl_dspark.errors import CheckpointError
from sgl_dspark.model.checkpoint import CONFIG_FILE, WEIGHTS_FILE, save_weights

WIDENED_FIELDS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
NOISY_TENSOR = "fc.weight"
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

Rule = Callable[[Tensor, int, int], Tensor]


def shares(factor: int) -> list[float]:
    """Weights of the copies: 1/2, 1/4, ..., the last one twice; they add up to one exactly."""
    halves = [0.5**i for i in range(1, factor)]
    return [*halves, halves[-1]] if halves else [1.0]


def widen_target(source: Path, out: Path, factor: int) -> int:
    """Write a wider target that gives the same logits.

    Parameters
    ----------
    source : Path
        Hugging Face folder of a Llama- or Qwen3-style model with its ``head_dim`` in the config.
    out : Path
        Folder that receives it, with the tokenizer's files copied. The head is stored apart from the embedding, since a
        shared one cannot be both a repeated and a shared-out matrix.
    factor : int
        Copies of every hidden unit, at least 1.

    Returns
    -------
    int
        Its number of parameters.

    Raises
    ------
    CheckpointError
        If a file cannot be read, the config lacks a field, or a tensor has no rule here (biases, other architectures).
    """
    config, tensors = _read(source, _EMBED)
    if "head_dim" not in config:
        raise CheckpointError(f"{source / CONFIG_FILE} holds no head_dim, which must stay as it is; add it first.")
    tensors.setdefault(_HEAD, tensors[_EMBED])
    wide = _widen(tensors, config["hidden_size"], factor, source)
    _write(out, config | {"tie_word_embeddings": False}, wide, factor)
    for file in source.iterdir():
        if file.is_file() and file.name != CONFIG_FILE and file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
    return sum(tensor.numel() for tensor in wide.values())


def widen_draft(source: Path, out: Path, factor: int, *, noise: float = 0.0, seed: int = 0) -> int:
    """Write the wider target's draft, which gives the same logits and confidence as the narrow one.

    Parameters
    ----------
    source, out : Path
        Folders of the narrow and the wider draft.
    factor : int
        As for `widen_target`.
    noise : float
        Standard deviation, relative to that of the weights, of Gaussian noise on the projection of the target's
        features. It is added before widening, so that it lowers the accept length alike at every factor. Its
        confidence head, if any, then needs calibration.
    seed : int
        Of the noise.

    Returns
    -------
    int
        Its number of stored parameters.

    Raises
    ------
    CheckpointError
        As `widen_target`.
    """
    config, tensors = _read(source, NOISY_TENSOR)
    if noise:
        clean = tensors[NOISY_TENSOR].float()
        drawn = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
        tensors[NOISY_TENSOR] = (clean + noise * clean.std() * drawn).to(tensors[NOISY_TENSOR].dtype)
    wide = _widen(tensors, config["hidden_size"], factor, source)
    _write(out, config, wide, factor)
    return sum(tensor.numel() for tensor in wide.values())


def _widen(tensors: dict[str, Tensor], size: int, factor: int, source: Path) -> dict[str, Tensor]:
    if factor < 1:
        raise CheckpointError(f"cannot widen by {factor}; the factor must be at least 1.")
    wide = {}
    for name, tensor in tensors.items():
        rule = next((rule for ending, rule in _RULES.items() if f".{name}".endswith(ending)), None)
        if rule is None:
            raise CheckpointError(f"{name} in {source} has no rule for widening; only Llama and Qwen3 layers have.")
        wide[name] = rule(tensor, size, factor).contiguous()
    return wide


def _same(tensor: Tensor, _: int, __: int) -> Tensor:
    return tensor.clone()


def _repeat_last(tensor: Tensor, _: int, factor: int) -> Tensor:
    return torch.cat([tensor] * factor, dim=-1)


def _share_columns(tensor: Tensor, _: int, factor: int) -> Tensor:
    return torch.cat([tensor * share for share in shares(factor)], dim=-1)


def _matrix(tensor: Tensor, size: int, factor: int) -> Tensor:
    return torch.cat([_share_columns(tensor, size, factor)] * factor)


def _features(tensor: Tensor, size: int, factor: int) -> Tensor:
    # The input is one hidden vector per tapped layer, each widened by itself.
    return torch.cat([_matrix(part, size, factor) for part in tensor.split(size, dim=-1)], dim=-1)


def _hidden_first(tensor: Tensor, size: int, factor: int) -> Tensor:
    return torch.cat((_share_columns(tensor[:, :size], size, factor), tensor[:, size:]), dim=-1)


def _hidden_last(tensor: Tensor, size: int, factor: int) -> Tensor:
    return torch.cat((tensor[:, :-size], _share_columns(tensor[:, -size:], size, factor)), dim=-1)


# By the end of a tensor's name; the first that fits is taken, so heads come before the layers' like-named tensors.
_RULES: dict[str, Rule] = {
    ".confidence_head.proj.weight": _hidden_first,
    ".markov_head.gate_proj.weight": _hidden_first,
    ".markov_head.joint_proj.weight": _hidden_last,
    ".confidence_head.proj.bias": _same,
    ".markov_head.gate_proj.bias": _same,
    ".markov_head.joint_proj.bias": _same,
    ".markov_w1.weight": _same,
    ".markov_w2.weight": _same,
    ".draft_vocab_ids": _same,
    ".q_norm.weight": _same,
    ".k_norm.weight": _same,
    "norm.weight": _repeat_last,
    ".embed_tokens.weight": _repeat_last,
    ".lm_head.weight": _share_columns,
    ".fc.weight": _features,
    **dict.fromkeys((f".{part}_proj.weight" for part in ("q", "k", "v", "o", "gate", "up", "down")), _matrix),
}


def _read(folder: Path, *needed: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        shards = sorted(folder.glob("*.safetensors"))
        tensors = {name: tensor for shard in shards for name, tensor in load_file(str(shard)).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {folder}: {error}; give the folder of a checkpoint.") from error
    missing = [name for name in WIDENED_FIELDS if name not in config] + [name for name in needed if name not in tensors]
    if missing:
        raise CheckpointError(f"{folder} holds no {missing[0]}; give the folder of a checkpoint.")
    return config, tensors


def _write(out: Path, config: dict[str, Any], tensors: dict[str, Tensor], factor: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    wide = config | {name: config[name] * factor for name in WIDENED_FIELDS}
    save_weights(tensors, out / WEIGHTS_FILE)
    (out / CONFIG_FILE).write_text(json.dumps(dict(sorted(wide.items())), indent=2) + "\n", encoding="utf-8")
