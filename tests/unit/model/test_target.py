"""The plain decoder agrees with transformers, cached or not, in every tap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sgl_dspark.model.target import KeyValueCache, TargetConfig, TargetError, TargetModel
from tests.support.tiny_target import EOS, LAYERS, VOCAB, write_tiny_target


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_hidden_features_and_logits_match_transformers(tmp_path: Path, family: str) -> None:
    reference = write_tiny_target(tmp_path, family)
    model = TargetModel.from_dir(tmp_path, torch.float32)
    ids = torch.randint(0, VOCAB, (3, 11), generator=torch.Generator().manual_seed(1))
    cache = KeyValueCache.empty(model.config, 3, 16, torch.float32)
    layers = (-1, 0, 2)
    first_hidden, first_features = model.forward(ids[:, :6], cache, layers)
    cache.lengths += 6
    last_hidden, last_features = model.forward(ids[:, 6:], cache, layers)
    with torch.no_grad():
        wanted = reference.model(ids, output_hidden_states=True)
        logits = reference(ids).logits
    hidden = torch.cat((first_hidden, last_hidden), 1)
    assert first_features is not None
    assert last_features is not None
    features = torch.cat((first_features, last_features), 1)
    torch.testing.assert_close(hidden, wanted.last_hidden_state, atol=1e-4, rtol=1e-4)
    taps = torch.cat([wanted.hidden_states[layer + 1] for layer in layers], -1)
    torch.testing.assert_close(features, taps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.logits(hidden), logits, atol=1e-4, rtol=1e-4)


def test_rows_of_different_lengths_do_not_disturb_each_other(tmp_path: Path) -> None:
    write_tiny_target(tmp_path)
    model = TargetModel.from_dir(tmp_path, torch.float32)
    ids = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(2))
    cache = KeyValueCache.empty(model.config, 2, 16, torch.float32)
    model.forward(ids[:, :5], cache)
    cache.lengths[:] = torch.tensor([5, 3])
    newest = torch.stack([ids[0, 5], ids[1, 3]])[:, None]
    together, _ = model.forward(newest, cache)
    for row, length in ((0, 5), (1, 3)):
        alone = KeyValueCache.empty(model.config, 1, 16, torch.float32)
        hidden, _ = model.forward(ids[row : row + 1, : length + 1], alone)
        torch.testing.assert_close(together[row, 0], hidden[0, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type"),
        ({"model_type": "mixtral"}, "model_type"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(tmp_path: Path, change: dict[str, object], name: str) -> None:
    write_tiny_target(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TargetError, match=name):
        TargetConfig.from_dir(tmp_path)


def test_config_takes_the_end_of_turn_ids_of_the_generation_config(tmp_path: Path) -> None:
    write_tiny_target(tmp_path)
    assert TargetConfig.from_dir(tmp_path).eos_token_ids == (EOS,)
    assert TargetConfig.from_dir(tmp_path).num_hidden_layers == LAYERS
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert TargetConfig.from_dir(tmp_path).eos_token_ids == (5, 7)


def test_unusable_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"config\.json"):
        TargetConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(TargetError, match="mamba"):
        TargetConfig.from_dir(tmp_path)
