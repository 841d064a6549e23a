"""What is checked before anything is loaded: one sentence for each cause, naming the flag to change."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark_sglang import preflight
from sgl_dspark.errors import ConfigError, LaunchError, TargetMismatchError

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
