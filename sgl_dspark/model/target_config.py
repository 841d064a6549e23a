"""What of a target's configuration training and offline evaluation read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_dspark.errors import DsparkError

_FAMILIES = {"llama": False, "qwen3": True}

# What the decoder computes, where a configuration could ask for something else.
_COMPUTED: dict[str, object] = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}


class TargetError(DsparkError):
    """A target folder that this decoder cannot run; the message names the field or the file."""


@dataclass(frozen=True)
class TargetConfig:
    """What of a target's ``config.json`` the decoder uses."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    raw: dict[str, Any]

    @classmethod
    def from_dir(cls, folder: Path) -> TargetConfig:
        """Read ``config.json`` and, for the end-of-turn ids, ``generation_config.json``.

        Raises
        ------
        TargetError
            If the folder has no config or the architecture is not Llama or Qwen3 with plain rotary embeddings.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise TargetError(f"{folder.resolve()} holds no config.json; give the folder of a Hugging Face model.")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TargetError(f"cannot read {path}: {error}; fetch the target again.") from error
        family = raw.get("model_type")
        if family not in _FAMILIES:
            raise TargetError(f"model_type {family!r} in {path} is not supported for training; use llama or qwen3.")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        # Earlier releases of transformers wrote ``type``.
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise TargetError(f"rope_type {rope_type!r} in {path} is not supported for training.")
        for name, computed in _COMPUTED.items():
            if raw.get(name) not in (None, computed):
                raise TargetError(f"{name} is {raw[name]!r} in {path}; training computes {computed!r} only.")
        heads = raw["num_attention_heads"]
        generation = folder / "generation_config.json"
        settings = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
        eos = settings.get("eos_token_id", raw.get("eos_token_id"))
        return cls(
            hidden_size=raw["hidden_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads", heads),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocab_size=raw["vocab_size"],
            rms_norm_eps=raw["rms_norm_eps"],
            rope_theta=raw.get("rope_theta") or rope["rope_theta"],
            max_position_embeddings=raw["max_position_embeddings"],
            qk_norm=_FAMILIES[family],
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            raw=raw,
        )
