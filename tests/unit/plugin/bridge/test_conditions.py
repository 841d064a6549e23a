"""Settings and backends of SGLang under which there is nothing to plan are refused by name."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")

from sglang.srt import runtime_context
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from dspark_sglang.bridge.conditions import MODE_VARIABLE, default_mode, refuse_backend, refuse_settings
from sgl_dspark.errors import ConfigError


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(speculative_dspark_sps_table_path=None, speculative_dspark_confidence_sts_path=None)
    monkeypatch.setattr(runtime_context, "get_spec", lambda: found)
    monkeypatch.setenv(MODE_VARIABLE, "compact")
    monkeypatch.delenv("SGLANG_SIMULATE_ACC_LEN", raising=False)
    return found


def test_bridge_mode_verifies_ragged_blocks_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE_VARIABLE, "static")
    default_mode()
    assert os.environ[MODE_VARIABLE] == "static"
    monkeypatch.delenv(MODE_VARIABLE)
    default_mode()
    assert os.environ[MODE_VARIABLE] == "compact"


def test_what_bridge_mode_needs_is_enough(spec: Any) -> None:
    refuse_settings()


@pytest.mark.parametrize("mode", ["static", "cap-accept"])
def test_modes_that_verify_whole_blocks_are_refused(monkeypatch: pytest.MonkeyPatch, spec: Any, mode: str) -> None:
    monkeypatch.setenv(MODE_VARIABLE, mode)
    with pytest.raises(ConfigError, match=f"{MODE_VARIABLE} is {mode}, .*unset it"):
        refuse_settings()


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("speculative_dspark_sps_table_path", "--speculative-dspark-sps-table-path"),
        ("speculative_dspark_confidence_sts_path", "--speculative-dspark-confidence-sts-path"),
    ],
)
def test_tables_that_nobody_would_read_are_refused(spec: Any, field: str, flag: str) -> None:
    setattr(spec, field, "table.json")
    with pytest.raises(ConfigError, match=f"{flag} is not read in bridge mode"):
        refuse_settings()


@pytest.mark.parametrize(("length", "refused"), [("1.0", False), ("-1", False), ("2.5", True)])
def test_simulated_acceptance_may_not_exceed_the_budget(
    monkeypatch: pytest.MonkeyPatch, spec: Any, length: str, refused: bool
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", length)
    if refused:
        with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_LEN"):
            refuse_settings()
    else:
        refuse_settings()


def test_a_backend_that_verifies_equal_lengths_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="SGLang's TorchNativeAttnBackend cannot verify blocks of different lengths"):
        refuse_backend(object.__new__(TorchNativeAttnBackend))
    refuse_backend(SimpleNamespace(supports_ragged_verify_graph=True))
