"""Draft model configuration: the released ``config.json``, parsed once into a frozen object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sgl_dspark.config_file import read_config_file
from sgl_dspark.errors import ConfigError

MarkovHeadType = Literal["vanilla", "gated", "rnn"]
MARKOV_HEAD_TYPES: tuple[MarkovHeadType, ...] = ("vanilla", "gated", "rnn")
ARCHITECTURE = "Qwen3DSparkModel"
MODEL_TYPE = "qwen3"


@dataclass(frozen=True)
class DrafterConfig:
    """Shape of a DSpark draft model (``reference`` format: config.json of the released checkpoints).

    Attributes
    ----------
    hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim, vocab_size : int
        Those of the target: the draft shares its embedding, head and attention geometry.
    num_hidden_layers : int
        Draft layers, at least 1.
    rms_norm_eps, rope_theta : float
        Positive.
    max_position_embeddings : int
        Positions that the target can reach; sizes the rotary table.
    gamma : int
        Drafts per block, at least 1 (``block_size`` in the file).
    mask_token_id : int
        Vocabulary row that fills slots 1..gamma-1 of a block.
    target_layer_ids : tuple of int
        Strictly increasing ids of the target layers whose outputs are the context features; -1 is the embedding
        output. The last layer is not allowed: its output is captured before the final norm by some hosts and
        after it by others.
    num_target_layers : int
        Depth of the target.
    markov_rank : int
        Rank of the sequential head; 0 for none (DFlash), and exactly then ``markov_head_type`` is None.
    markov_head_type : {"vanilla", "gated", "rnn"} or None
    enable_confidence_head, confidence_head_with_markov : bool
        Whether there is a confidence head, and whether it also reads the previous token's Markov embedding.
    draft_vocab_size : int or None
        Tokens that the draft proposes, listed in its ``draft_vocab_ids``; None (as in the released drafts) for all.

    Raises
    ------
    ConfigError
        From every constructor, naming the field.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    gamma: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    markov_rank: int
    markov_head_type: MarkovHeadType | None
    enable_confidence_head: bool
    confidence_head_with_markov: bool
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse combinations that no draft model can have."""
        for name in _POSITIVE_INTS:
            count = getattr(self, _FIELD_OF.get(name, name))
            if count < 1:
                raise ConfigError(f"{name} is {count}; it must be at least 1.")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value}; it must be a positive number.")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise ConfigError(f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads}).")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; rotary embeddings need an even number.")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigError(f"mask_token_id is {self.mask_token_id}; it must lie in [0, {self.vocab_size}).")
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ConfigError(f"draft_vocab_size is {self.draft_vocab_size}; it must lie in [1, {self.vocab_size}].")
        self._check_layer_ids()
        self._check_heads()

    def _check_layer_ids(self) -> None:
        ids = self.target_layer_ids
        if not ids or any(b <= a for a, b in zip(ids, ids[1:], strict=False)):
            raise ConfigError(f"target_layer_ids is {list(ids)}; it must be a non-empty, strictly increasing list.")
        if ids[0] < -1 or ids[-1] > self.num_target_layers - 2:
            raise ConfigError(
                f"target_layer_ids is {list(ids)}; ids must lie in [-1, {self.num_target_layers - 2}] "
                f"for a target of {self.num_target_layers} layers (num_target_layers)."
            )

    def _check_heads(self) -> None:
        if self.markov_rank < 0:
            raise ConfigError(f"markov_rank is {self.markov_rank}; it must be 0 (no sequential head) or more.")
        if self.markov_rank == 0 and self.markov_head_type is not None:
            raise ConfigError(
                f"markov_head_type is {self.markov_head_type!r} but markov_rank is 0; drop the type, or set a rank."
            )
        if self.markov_rank > 0 and self.markov_head_type not in MARKOV_HEAD_TYPES:
            kinds = ", ".join(MARKOV_HEAD_TYPES)
            raise ConfigError(f"markov_head_type is {self.markov_head_type!r}; the supported types are {kinds}.")
        if self.enable_confidence_head and self.confidence_head_with_markov and self.markov_rank == 0:
            raise ConfigError("confidence_head_with_markov is true but markov_rank is 0; use false, or set a rank.")

    @property
    def num_features(self) -> int:
        """Width of one context feature row: m * d."""
        return len(self.target_layer_ids) * self.hidden_size

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DrafterConfig:
        """Parse the released format; keys that do not change the computation are ignored.

        Parameters
        ----------
        raw : mapping
            ``config.json`` as a dictionary. ``rope_theta`` may stand at top level or in ``rope_parameters``.

        Raises
        ------
        ConfigError
            Naming the field, when one is missing, malformed or asks for something that is not supported.
        """
        _refuse_unsupported(raw)
        rank = _int(raw, "markov_rank")
        confidence = _bool(raw, "enable_confidence_head")
        with_markov = _bool(raw, "confidence_head_with_markov", default=None if confidence else False)
        values: dict[str, Any] = {_FIELD_OF.get(name, name): _int(raw, name) for name in _POSITIVE_INTS}
        return cls(
            **values,
            rms_norm_eps=_float(raw, "rms_norm_eps"),
            rope_theta=_rope_theta(raw),
            mask_token_id=_int(raw, "mask_token_id"),
            target_layer_ids=_int_list(raw, "target_layer_ids"),
            markov_rank=rank,
            markov_head_type=raw.get("markov_head_type") if rank == 0 else _present(raw, "markov_head_type"),
            enable_confidence_head=confidence,
            confidence_head_with_markov=with_markov,
            draft_vocab_size=None if raw.get("draft_vocab_size") is None else _int(raw, "draft_vocab_size"),
        )

    @classmethod
    def from_dir(cls, path: str | Path) -> DrafterConfig:
        """Read ``config.json`` of a checkpoint folder.

        Raises
        ------
        ConfigError
            When the file is missing or is not a JSON object, or for any reason of :meth:`from_dict`.
        """
        raw = read_config_file(Path(path))
        try:
            return cls.from_dict(raw)
        except ConfigError as error:
            raise ConfigError(f"{Path(path) / 'config.json'}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the released ``config.json`` as a dictionary; ``from_dict`` of it gives an equal object."""
        raw: dict[str, Any] = {name: getattr(self, _FIELD_OF.get(name, name)) for name in _POSITIVE_INTS}
        raw |= {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "markov_rank": self.markov_rank,
            "enable_confidence_head": self.enable_confidence_head,
        }
        if self.markov_head_type is not None:
            raw["markov_head_type"] = self.markov_head_type
        if self.enable_confidence_head:
            raw["confidence_head_with_markov"] = self.confidence_head_with_markov
        if self.draft_vocab_size is not None:
            raw["draft_vocab_size"] = self.draft_vocab_size
        return dict(sorted(raw.items()))


_FIELD_OF = {"block_size": "gamma"}
_POSITIVE_INTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "block_size",
    "num_target_layers",
)
# Keys whose other values would change what the model computes, each with the values that this code implements.
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "model_type": (MODEL_TYPE,),
    "attention_bias": (None, False),
    "hidden_act": (None, "silu"),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "tie_word_embeddings": (None, False),
}


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if (found := raw.get("architectures")) != [ARCHITECTURE]:
        raise ConfigError(f'architectures is {found!r}, not ["{ARCHITECTURE}"]; `dspark convert` reads other layouts.')
    for name, allowed in _SUPPORTED.items():
        if not any(raw.get(name) is value or raw.get(name) == value for value in allowed):
            raise ConfigError(f"{name} is {raw.get(name)!r}; only {allowed[-1]!r} is supported.")
    layer_types = raw.get("layer_types")
    if layer_types is None:
        return
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise ConfigError(f"layer_types is {layer_types!r}; only full_attention layers are supported.")
    if len(layer_types) != raw.get("num_hidden_layers"):
        raise ConfigError(f"layer_types names {len(layer_types)} layers but num_hidden_layers says otherwise.")


def _present(raw: Mapping[str, Any], name: str) -> Any:
    if raw.get(name) is None:
        raise ConfigError(f"{name} is missing; a draft checkpoint's config.json must give it.")
    return raw[name]


def _int(raw: Mapping[str, Any], name: str) -> int:
    value = _present(raw, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; it must be an integer.")
    return value


def _float(raw: Mapping[str, Any], name: str) -> float:
    value = _present(raw, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} is {value!r}; it must be a number.")
    return float(value)


def _bool(raw: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    if default is not None and raw.get(name) is None:
        return default
    value = _present(raw, name)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be true or false.")
    return value


def _int_list(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = _present(raw, name)
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ConfigError(f"{name} is {value!r}; it must be a list of integers.")
    return tuple(value)


def _rope_theta(raw: Mapping[str, Any]) -> float:
    parameters = raw.get("rope_parameters")
    if parameters is None:
        return _float(raw, "rope_theta")
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"rope_parameters is {parameters!r}; it must be an object.")
    if parameters.get("rope_type", "default") != "default":
        raise ConfigError(f"rope_parameters.rope_type is {parameters['rope_type']!r}; only 'default' is supported.")
    theta = _float(parameters, "rope_theta") if raw.get("rope_theta") is None else _float(raw, "rope_theta")
    if parameters.get("rope_theta", theta) != theta:
        inner = parameters["rope_theta"]
        raise ConfigError(f"rope_theta is {theta} at top level but {inner} in rope_parameters; keep one of them.")
    return theta
