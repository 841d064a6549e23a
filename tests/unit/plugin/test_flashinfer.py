"""How FlashInfer is called, and that it is asked for only where it can run."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

from dspark_sglang.attention.flashinfer import (
    Capacity,
    Heads,
    PagedAttention,
    PageTable,
    unsupported,
    workspace_bytes,
    wrapper_class,
)
from dspark_sglang.attention.paged import build_paged
from sgl_dspark.errors import ConfigError
from tests.support.paged_reference import ReferencePagedPrefill

HEADS = Heads(8, 2, 128, torch.bfloat16, 0.1)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Recorder:
    """Takes the place of FlashInfer's class and keeps the arguments of every call."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Recorder:
        self.calls["__init__"] = (args, kwargs)
        return self

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self.calls["plan"] = (args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls["run"] = (args, kwargs)
        return args[0]


def recorded(capacity: Capacity | None) -> Recorder:
    recorder = Recorder()
    attention = PagedAttention(HEADS, CPU, torch.empty(8, dtype=torch.uint8), capacity, recorder)
    plan = build_paged([2], [5], page_size=1, causal=True)
    attention.plan(plan, torch.arange(8).view(1, 8), torch.zeros(1, dtype=torch.int64))
    attention.run(torch.zeros(2, 8, 128), torch.zeros(8, 2, 128), torch.zeros(8, 2, 128))
    return recorder


@pytest.mark.parametrize("capacity", [None, Capacity(1, 4, PageTable(8, CPU))])
def test_calls_fit_the_signatures_of_the_installed_flashinfer(capacity: Capacity | None) -> None:
    flashinfer = pytest.importorskip("flashinfer")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
    calls = recorded(capacity).calls
    for name in ("__init__", "plan", "run"):
        args, kwargs = calls[name]
        # Raises TypeError for an argument that is unknown or missing.
        inspect.signature(getattr(wrapper, name)).bind(None, *args, **kwargs)
    # The stand-in that the CPU tests run takes nothing that FlashInfer does not.
    for name in ("__init__", "plan", "run"):
        own = set(inspect.signature(getattr(ReferencePagedPrefill, name)).parameters)
        assert own <= set(inspect.signature(getattr(wrapper, name)).parameters)


def test_a_plan_is_made_from_host_arrays_and_a_table_on_the_device() -> None:
    kwargs = recorded(None).calls["plan"][1]
    for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len"):
        assert kwargs[name].device.type == "cpu"
    assert kwargs["paged_kv_indices"].tolist() == [0, 1, 2, 3, 4]
    assert kwargs["causal"] is True
    assert kwargs["sm_scale"] == 0.1


@pytest.mark.parametrize("rows", [1, 3])
def test_other_rows_than_planned_are_refused(rows: int) -> None:
    """By ours before FlashInfer does, and by what stands in for it here."""
    attention = PagedAttention(HEADS, CPU, torch.empty(8, dtype=torch.uint8), None, ReferencePagedPrefill)
    plan = build_paged([2], [5], page_size=1, causal=True)
    attention.plan(plan, torch.arange(8).view(1, 8), torch.zeros(1, dtype=torch.int64))
    queries, pool = torch.zeros(rows, 8, 128), torch.zeros(8, 2, 128)
    with pytest.raises(ValueError, match=f"{rows} query rows for a plan of 2"):
        attention.run(queries, pool, pool)
    with pytest.raises(ValueError, match="does not match qo_indptr"):
        attention._wrapper.run(queries, (pool, pool))


def test_buffers_of_a_capacity_stay_where_they_are() -> None:
    attention = PagedAttention(
        HEADS, CPU, torch.empty(8, dtype=torch.uint8), Capacity(3, 9, PageTable(20, CPU)), ReferencePagedPrefill
    )
    wrapper = attention._wrapper
    places = [buffer.data_ptr() for buffer in wrapper.buffers]
    table, rows = torch.arange(40).view(2, 20), torch.tensor([1, 0])
    for lens in ([3, 3, 3], [1, 2], [2]):
        plan = build_paged(lens, [n + 3 for n in lens], page_size=1, causal=True, slots=3)
        attention.plan(plan, table, torch.tensor([0, 1, 0]) if len(lens) == 3 else rows)
        assert [buffer.data_ptr() for buffer in wrapper.buffers] == places
    assert wrapper.buffers[0].tolist() == [0, 2, 2, 2]
    assert wrapper.buffers[2][:5].tolist() == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("lens", [[1] * 2, [10, 1, 1], [1, 1, 1, 1]])
def test_a_plan_larger_than_its_buffers_is_refused(lens: list[int]) -> None:
    attention = PagedAttention(
        HEADS, CPU, torch.empty(8, dtype=torch.uint8), Capacity(3, 9, PageTable(20, CPU)), ReferencePagedPrefill
    )
    plan = build_paged(lens, [n + 1 for n in lens], page_size=1, causal=True)
    with pytest.raises(ValueError, match="does not fit buffers"):
        attention.plan(plan, torch.zeros(4, 20), torch.zeros(4, dtype=torch.int64))


def test_a_plan_of_another_page_size_is_refused() -> None:
    attention = PagedAttention(HEADS, CPU, torch.empty(8, dtype=torch.uint8), None, ReferencePagedPrefill)
    with pytest.raises(ValueError, match="pages of 4 tokens, the pool of 1"):
        attention.plan(build_paged([1], [1], page_size=4, causal=True), torch.zeros(1, 4), torch.zeros(1).long())


@pytest.mark.parametrize(
    ("changes", "device", "reason"),
    [
        ({}, CPU, "needs a CUDA device, not cpu"),
        ({"dtype": torch.float32}, CUDA, "float16 and bfloat16, not float32"),
        ({"dim": 96}, CUDA, "a head dim of 96"),
        ({"queries": 7}, CUDA, "7 query heads are no multiple of 2"),
    ],
)
def test_it_is_refused_by_reason_where_it_cannot_run(changes: Any, device: torch.device, reason: str) -> None:
    heads = replace(HEADS, **changes)
    found = unsupported(heads, device)
    assert found is not None
    assert reason in found
    with pytest.raises(ConfigError, match=r"leave FlashInfer out"):
        wrapper_class(heads, device)


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert unsupported(HEADS, CUDA) == "the package flashinfer-python is not installed"


def test_an_old_device_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert unsupported(HEADS, CUDA) == "the device is older than compute capability 8.0"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert unsupported(HEADS, CUDA) is None


def test_the_workspace_holds_the_partial_rows_of_split_kv() -> None:
    # 256 requests of 8 rows, 32 heads of 128 over 8 KV heads: each request up to one tile of 128 / 4 rows.
    heads = Heads(32, 8, 128, torch.bfloat16, 0.1)
    assert workspace_bytes(heads, 256, 2048) >= 32 * (256 * 32) * 129 * 4
    assert workspace_bytes(heads, 1, 8) >= 128 << 20
