"""What is checked before anything is loaded: one sentence for each cause, naming the flag to change."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_sglang import preflight
from sgl_dspark.errors import CheckpointError, ConfigError, LaunchError, TargetMismatchError

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_vanilla"
SERVED_FLAGS: dict[str, Any] = {
    "device": "cpu",
    "tp_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "enable_lora": False,
    "lora_paths": None,
    "enable_hierarchical_cache": False,
    "disaggregation_mode": "null",
    "enable_mixed_chunk": False,
    "page_size": 1,
    "enable_deterministic_inference": False,
    "tokenizer_worker_num": 1,
    "smg_grpc_mode": False,
    "grpc_mode": False,
    "attention_backend": "dspark_cpu",
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
    "kv_cache_dtype": "auto",
    "enable_pdmux": False,
    "sampling_backend": "pytorch",
}


def one_sentence(message: str) -> bool:
    return "\n" not in message and not message.endswith(".") and len(message) < 240


@pytest.mark.parametrize(
    ("flag", "change"),
    [
        ("--tp-size", {"tp_size": 2}),
        ("--pp-size", {"pp_size": 2}),
        ("--enable-dp-attention", {"enable_dp_attention": True}),
        ("--enable-lora", {"enable_lora": True}),
        ("--enable-lora", {"lora_paths": ["a"]}),
        ("--enable-hierarchical-cache", {"enable_hierarchical_cache": True}),
        ("--disaggregation-mode", {"disaggregation_mode": "prefill"}),
        ("--enable-mixed-chunk", {"enable_mixed_chunk": True}),
        ("--page-size", {"page_size": 16}),
        ("--enable-deterministic-inference", {"enable_deterministic_inference": True}),
        ("--tokenizer-worker-num", {"tokenizer_worker_num": 2}),
        ("--smg-grpc-mode", {"smg_grpc_mode": True}),
        ("--smg-grpc-mode", {"grpc_mode": True}),
        ("--attention-backend", {"attention_backend": "torch_native"}),
        ("--attention-backend", {"decode_attention_backend": "torch_native"}),
        ("--kv-cache-dtype", {"kv_cache_dtype": "fp8_e4m3"}),
        ("--enable-pdmux", {"enable_pdmux": True}),
        ("--sampling-backend", {"device": "cuda", "sampling_backend": "flashinfer"}),
        ("--sampling-backend", {"device": "cuda", "sampling_backend": "token_oracle"}),
    ],
)
def test_flags_that_are_not_served_are_named(flag: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is not supported with DSpark: .*--plain") as caught:
        preflight.refuse_flags(SimpleNamespace(**{**SERVED_FLAGS, **change}))
    assert one_sentence(str(caught.value))


@pytest.mark.parametrize("change", [{}, {"page_size": None}, {"device": "cuda", "page_size": 16}])
def test_other_flags_are_served(change: dict[str, Any]) -> None:
    preflight.refuse_flags(SimpleNamespace(**{**SERVED_FLAGS, **change}))


def test_every_refused_flag_is_tested() -> None:
    assert {flag for flag, _, _ in preflight._REFUSED_FLAGS} == {
        "--tp-size",
        "--pp-size",
        "--enable-dp-attention",
        "--enable-lora",
        "--enable-hierarchical-cache",
        "--disaggregation-mode",
        "--enable-mixed-chunk",
        "--page-size",
        "--tokenizer-worker-num",
        "--smg-grpc-mode",
        "SGLANG_RUST_SERVER",
        "--attention-backend",
        "--kv-cache-dtype",
        "--enable-pdmux",
        "--sampling-backend",
        "--enable-deterministic-inference",
    }


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def test_a_busy_port_is_named(taken_port: int) -> None:
    with pytest.raises(LaunchError, match=f"^port {taken_port} on 127.0.0.1 is in use; .*--port") as caught:
        preflight.check_port("127.0.0.1", taken_port)
    assert one_sentence(str(caught.value))


def test_a_free_port_passes_and_stays_free(taken_port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    for _ in range(2):
        preflight.check_port("127.0.0.1", free)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match="^cannot listen on 192.0.2.1 port 5: "):
        preflight.check_port("192.0.2.1", 5)


@pytest.mark.parametrize("path", ["/no/such/model", "./none", "~/none-such", "none", "a/b/c"])
def test_a_wrong_target_path_is_named(path: str) -> None:
    with pytest.raises(LaunchError, match=f"^there is no model at {path}; check --model-path"):
        preflight.check_target(path)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="holds no config.json, so it is not a model folder"):
        preflight.check_target(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LaunchError, match="^cannot read .*config.json: "):
        preflight.check_target(str(tmp_path))


def test_a_hub_name_is_left_to_sglang() -> None:
    assert preflight.check_target("owner/model") is None
    assert preflight.check_target("s3://bucket/folder/model") is None
    preflight.check_pair({}, "owner/draft")


def test_the_pair_of_one_target_passes() -> None:
    target = preflight.check_target(str(GOLDEN / "target"))
    assert target is not None
    preflight.check_pair(target, str(GOLDEN / "draft"))
    preflight.check_pair({"text_config": target, "hidden_size": 1}, str(GOLDEN / "draft"))


@pytest.mark.parametrize(
    ("key", "word"), [("hidden_size", "hidden size"), ("vocab_size", "vocabulary"), ("num_hidden_layers", "layers")]
)
def test_a_draft_of_another_target_is_refused(key: str, word: str) -> None:
    target = json.loads((GOLDEN / "target" / "config.json").read_text())
    wanted = target[key]
    target[key] = wanted + 64
    with pytest.raises(TargetMismatchError, match=rf"\({word} {wanted}, but this target has {wanted + 64}\)"):
        preflight.check_pair(target, str(GOLDEN / "draft"))


@pytest.mark.parametrize("path", ["/no/such/draft", "none"])
def test_a_wrong_draft_path_is_named(path: str) -> None:
    with pytest.raises(LaunchError, match=f"^there is no draft at {path}; check --speculative-draft-model-path"):
        preflight.check_pair({}, path)


def test_a_target_given_as_a_draft_is_refused() -> None:
    target = json.loads((GOLDEN / "target" / "config.json").read_text())
    with pytest.raises(ConfigError):
        preflight.check_pair(target, str(GOLDEN / "target"))


def test_the_rust_front_end_is_refused_since_it_checks_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(ConfigError, match="^SGLANG_RUST_SERVER is not supported"):
        preflight.refuse_flags(SimpleNamespace(**SERVED_FLAGS))


@pytest.mark.parametrize("port", [0, -1, 70000])
def test_a_port_that_does_not_exist_is_named(port: int) -> None:
    with pytest.raises(LaunchError, match=f"--port must be in 1..65535, not {port}"):
        preflight.check_port("127.0.0.1", port)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_draft_whose_weights_cannot_be_read_is_found_before_loading(tmp_path: Path, damage: str) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(GOLDEN / "draft", draft)
    weights = draft / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:2000])
    target = json.loads((GOLDEN / "target" / "config.json").read_text())
    with pytest.raises(CheckpointError, match="cannot read .*model.safetensors"):
        preflight.check_pair(target, str(draft))
