from __future__ import annotations

import json
from typing import Any

import pytest

from sgl_dspark.config import DrafterConfig
from sgl_dspark.errors import ConfigError
from tests.support.drafts import KINDS, tiny_config

RELEASED_4B: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 7,
    "bos_token_id": 151643,
    "confidence_head_with_markov": True,
    "dtype": "bfloat16",
    "enable_confidence_head": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 9728,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 151669,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_anchors": 512,
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "sliding_window": None,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def changed(**changes: Any) -> dict[str, Any]:
    raw = {**RELEASED_4B, **changes}
    return {name: value for name, value in raw.items() if value is not ...}


def test_released_format_is_parsed() -> None:
    config = DrafterConfig.from_dict(RELEASED_4B)
    assert config.gamma == 7
    assert config.rope_theta == 1e6
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.markov_head_type == "vanilla"
    assert config.num_features == 5 * 2560


def test_rope_theta_at_top_level() -> None:
    config = DrafterConfig.from_dict(changed(rope_parameters=..., rope_theta=5e5))
    assert config.rope_theta == 5e5


def test_dflash_has_no_heads() -> None:
    raw = changed(markov_rank=0, enable_confidence_head=False, markov_head_type=..., confidence_head_with_markov=...)
    config = DrafterConfig.from_dict(raw)
    assert config.markov_head_type is None
    assert not config.enable_confidence_head
    assert not config.confidence_head_with_markov


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_through_the_released_format(kind: str) -> None:
    config = tiny_config(kind)
    assert DrafterConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "name",
    [
        *(
            name
            for name in tiny_config().to_dict()
            if name
            not in {
                "attention_bias",
                "attention_dropout",
                "hidden_act",
                "layer_types",
                "rope_parameters",
                "sliding_window",
                "tie_word_embeddings",
                "use_sliding_window",
            }
        ),
        "rope_theta",
    ],
)
def test_missing_field_is_named(name: str) -> None:
    raw = changed(**{"rope_parameters" if name == "rope_theta" else name: ...})
    with pytest.raises(ConfigError, match=rf"\b{name}\b"):
        DrafterConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["Gemma4DSparkModel"]),
        ("model_type", "gemma4"),
        ("attention_bias", True),
        ("hidden_act", "gelu"),
        ("layer_types", ["full_attention"] * 4 + ["sliding_attention"]),
        ("layer_types", ["full_attention"] * 4),
        ("sliding_window", 4096),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e6}),
        ("rope_parameters", "default"),
        ("rope_theta", 5.0),
        ("tie_word_embeddings", True),
        ("hidden_size", "2560"),
        ("hidden_size", True),
        ("head_dim", 127),
        ("num_key_value_heads", 5),
        ("block_size", 0),
        ("mask_token_id", 151936),
        ("mask_token_id", -1),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "small"),
        ("target_layer_ids", []),
        ("target_layer_ids", [9, 1]),
        ("target_layer_ids", [1, 1]),
        ("target_layer_ids", [-2, 1]),
        ("target_layer_ids", [1, 35]),
        ("target_layer_ids", "1,9"),
        ("markov_rank", -1),
        ("markov_rank", 0),
        ("markov_head_type", "transformer"),
        ("markov_head_type", 3),
        ("enable_confidence_head", "yes"),
    ],
)
def test_unsupported_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name.replace("markov_rank", "markov_")):
        DrafterConfig.from_dict(changed(**{name: value}))


def test_confidence_needs_the_markov_head_that_it_reads() -> None:
    with pytest.raises(ConfigError, match="confidence_head_with_markov"):
        DrafterConfig.from_dict(changed(markov_rank=0, markov_head_type=...))


def test_folder_errors_name_the_file(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="cannot read .*config.json"):
        DrafterConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        DrafterConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        DrafterConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(changed(vocab_size=...)))
    with pytest.raises(ConfigError, match="config.json: vocab_size is missing"):
        DrafterConfig.from_dir(tmp_path)
