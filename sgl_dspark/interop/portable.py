"""What every layout is read into and written from: a configuration and tensors under the released names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import CheckpointError, ConfigError
from sgl_dspark.model.checkpoint import SHARED_TENSORS, VOCABULARY_TENSOR, tensor_shapes


@dataclass(frozen=True)
class PortableDraft:
    """A draft between two layouts.

    Attributes
    ----------
    config : DrafterConfig
    tensors : dict of str to Tensor
        Names and shapes of the released format, in the file's dtype; embedding and head may be absent.
    notes : tuple of str
        What reading left out, one sentence each.
    """

    config: DrafterConfig
    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()

    def check(self, origin: Path) -> PortableDraft:
        """Return itself; raise `CheckpointError` for a tensor that is missing, unknown or of the wrong shape."""
        expected = tensor_shapes(self.config)
        for name, tensor in self.tensors.items():
            if name not in expected:
                raise CheckpointError(f"{origin} holds {name}, which its configuration does not describe.")
            if tuple(tensor.shape) != expected[name]:
                raise CheckpointError(
                    f"{name} in {origin} has shape {list(tensor.shape)}; its configuration asks for "
                    f"{list(expected[name])}."
                )
        missing = sorted(expected.keys() - self.tensors.keys() - set(SHARED_TENSORS))
        if missing:
            raise CheckpointError(f"{origin} lacks {missing[0]}; fetch the draft again.")
        return self

    @property
    def vocabulary(self) -> Tensor | None:
        """Ids that the draft proposes, int64 ascending; None for all."""
        return self.tensors.get(VOCABULARY_TENSOR)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all safetensors files of a folder; raises `CheckpointError` if there are none or one is damaged."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors weights.")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                found.update({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {file}: {error}; fetch the draft again.") from error
    return found


def field(raw: Mapping[str, Any], name: str, where: str) -> Any:
    """Return a field that must be there; raises `ConfigError` naming it."""
    if raw.get(name) is None:
        raise ConfigError(f"{where}{name} is missing; this layout needs it.")
    return raw[name]


def geometry(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Take the transformer's sizes of a Qwen3-like configuration, as the released format names them."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings",
    )  # fmt: skip
    found = {name: field(raw, name, where) for name in names}
    for name in ("rope_theta", "rope_parameters", "rope_scaling", "attention_bias", "hidden_act", "layer_types",
                 "sliding_window", "use_sliding_window"):  # fmt: skip
        if raw.get(name) is not None:
            found[name] = raw[name]
    # transformers 5 keeps the base frequency in what earlier releases called the scaling.
    scaling = found.pop("rope_scaling", None)
    if isinstance(scaling, Mapping) and scaling.get("rope_type", "default") == "default":
        found.setdefault("rope_parameters", dict(scaling))
    elif scaling is not None:
        found["rope_scaling"] = scaling
    return found
