"""The layout that ModelOpt exports: a Qwen3 configuration with a ``dflash_config`` section, heads under flat names.

Its training recipes name the same things ``dflash_block_size``, ``dflash_mask_token_id`` and
``dflash_architecture_config``; both spellings are read. SpecForge stores its drafts with the same section and the
released tensor names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from sgl_dspark.config import ARCHITECTURE, MODEL_TYPE, DrafterConfig
from sgl_dspark.config_file import read_config_file
from sgl_dspark.errors import ConfigError
from sgl_dspark.interop.portable import PortableDraft, field, geometry, read_tensors

NAME = "modelopt"
_SECTIONS = ("dflash_config", "dflash_architecture_config")
_RENAMED = {
    "markov_w1.": "markov_head.markov_w1.",
    "markov_w2.": "markov_head.markov_w2.",
    "gate_proj.": "markov_head.gate_proj.",
    "joint_proj.": "markov_head.joint_proj.",
    "confidence_proj.": "confidence_head.proj.",
}


def is_modelopt(raw: dict[str, Any]) -> bool:
    """Whether a configuration is of this layout."""
    return any(section in raw for section in _SECTIONS)


def read_modelopt(folder: Path, num_target_layers: int | None) -> PortableDraft:
    """Read a draft.

    Parameters
    ----------
    folder : Path
    num_target_layers : int, optional
        Depth of the target, where the file does not say it.

    Raises
    ------
    ConfigError, CheckpointError
        If it is no DSpark draft, or cannot be represented; names the field or the tensor.
    """
    raw = read_config_file(folder)
    where = f"{folder / 'config.json'}: "
    name = next(section for section in _SECTIONS if section in raw)
    section = {**field(raw, name, where)}
    for spelling in ("block_size", "mask_token_id", "target_layer_ids", "markov_rank", "markov_head_type"):
        # Flat fields count where the section does not say it.
        value = raw.get(f"dflash_{spelling}", raw.get(spelling))
        if section.get(spelling) is None and value is not None:
            section[spelling] = value
    kind = section.get("projector_type", "dflash")
    if kind != "dspark":
        raise ConfigError(f"{where}{name}.projector_type is {kind!r}; only 'dspark' drafts are read.")
    if section.get("shift_label", True) is not True:
        raise ConfigError(
            f"{where}{name}.shift_label is {section['shift_label']!r}: its blocks predict at the masks, not from the "
            "anchor on, which this format cannot say."
        )
    if section.get("causal"):
        raise ConfigError(f"{where}{name}.causal is true; block slots of this format see each other both ways.")
    layers = field(section, "target_layer_ids", f"{where}{name}.")
    rank = int(section.get("markov_rank") or 0)
    confidence = section.get("use_confidence_head", section.get("enable_confidence_head", False))
    tensors = {_name(key): value for key, value in read_tensors(folder).items()}
    config = DrafterConfig.from_dict(
        {
            **geometry(raw, where),
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "block_size": field(section, "block_size", f"{where}{name}."),
            "mask_token_id": field(section, "mask_token_id", f"{where}{name}."),
            "target_layer_ids": layers,
            "num_target_layers": raw.get("num_target_layers") or num_target_layers or max(layers) + 2,
            "markov_rank": rank,
            "markov_head_type": section.get("markov_head_type", "vanilla") if rank else None,
            "enable_confidence_head": bool(confidence),
            "confidence_head_with_markov": bool(confidence)
            and bool(section.get("confidence_head_with_markov", rank > 0)),
        }
    )
    _expect_same(tensors, rank, where)
    return PortableDraft(config, tensors).check(folder)


def _name(name: str) -> str:
    for flat, released in _RENAMED.items():
        if name.startswith(flat):
            return released + name[len(flat) :]
    return name


def _expect_same(tensors: dict[str, Tensor], rank: int, where: str) -> None:
    """Refuse a file whose heads are there but not declared: dropping one silently only costs acceptance."""
    if rank == 0 and any(name.startswith("markov_head.") for name in tensors):
        raise ConfigError(f"{where}markov_rank is missing, but the weights hold a Markov head.")
