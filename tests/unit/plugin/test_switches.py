"""Switches in the environment, and that step times measured with one setting are not used with another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")

from dspark_sglang.attention.cpu import CpuRaggedBackend
from dspark_sglang.fingerprint import worker_fingerprint
from dspark_sglang.switches import ATTENTION_KERNEL, PACKED_WEIGHTS, switched_on
from sgl_dspark.errors import ConfigError

SWITCHES = [ATTENTION_KERNEL, PACKED_WEIGHTS]


@pytest.mark.parametrize("variable", SWITCHES)
@pytest.mark.parametrize(("text", "on"), [(None, True), ("", True), (" ", True), ("1", True), ("0", False)])
def test_a_switch_is_on_unless_it_says_0(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str | None, on: bool
) -> None:
    monkeypatch.delenv(variable, raising=False)
    if text is not None:
        monkeypatch.setenv(variable, text)
    assert switched_on(variable) is on


@pytest.mark.parametrize("text", ["yes", "2", "true", "01"])
def test_anything_else_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ATTENTION_KERNEL, text)
    with pytest.raises(ConfigError, match=f"{ATTENTION_KERNEL} must be 0 or 1, not '{text}'"):
        switched_on(ATTENTION_KERNEL)


@pytest.mark.parametrize("variable", SWITCHES)
def test_step_times_are_of_one_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    runner = SimpleNamespace(dtype=torch.float32, attn_backend=object(), model_config=SimpleNamespace(context_len=64))
    config = SimpleNamespace(draft_path=str(tmp_path), shortlist=None)
    worker: Any = SimpleNamespace(
        model_runner=runner, config=config, gamma=3, device=torch.device("cpu"), max_requests=2, num_slots=64,
        knowledge=SimpleNamespace(graph_tiers=None),
    )  # fmt: skip
    found = []
    for text in ("", "1", "0"):
        monkeypatch.setenv(variable, text)
        found.append(worker_fingerprint(worker, str(tmp_path), 1))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("method", ["forward_extend", "forward_decode"])
def test_an_attention_input_that_would_be_left_out_is_refused(method: str) -> None:
    pool: Any = SimpleNamespace(req_to_token_pool=None, token_to_kv_pool=None)
    attend = getattr(CpuRaggedBackend(pool), method)
    with pytest.raises(NotImplementedError, match="attention input sinks"):
        attend(None, None, None, None, None, sinks=torch.ones(2))
