"""The wrapped functions of SGLang that are not covered by serving a pair."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sglang")

from sglang.srt import runtime_context

from dspark_sglang import hooks, selection, slots


def spec(algorithm: str | None, width: int) -> SimpleNamespace:
    return SimpleNamespace(speculative_algorithm=algorithm, speculative_num_draft_tokens=width)


@pytest.mark.parametrize("width", [2, 8, 9, 17])
def test_a_row_of_the_slot_table_holds_the_reserve_of_any_block_length(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """SGLang reserves 2 * width past the committed length, which ends 4 short of the context at most."""
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec("DSPARK", width))
    context = 64
    row = context + hooks._widen_slot_table(4 + width)
    table = torch.zeros(2, row, dtype=torch.int32)
    start, end = torch.tensor([context - 4]), torch.tensor([context - 4 + 2 * width])
    slots.assign_req_to_token(torch.tensor([1]), table, start, end, torch.arange(1, 2 * width + 1))
    assert table[1, start[0] : end[0]].tolist() == list(range(1, 2 * width + 1))


@pytest.mark.parametrize(("choice", "wider"), [("ours", True), ("bridge", True), ("upstream", False)])
def test_a_worker_that_is_left_alone_keeps_its_slot_table(
    monkeypatch: pytest.MonkeyPatch, choice: str, wider: bool
) -> None:
    monkeypatch.setenv(selection.WORKER_VARIABLE, choice)
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec("DSPARK", 16))
    assert (hooks._widen_slot_table(20) > 20) is wider


@pytest.mark.parametrize("algorithm", [None, "EAGLE"])
def test_other_servers_keep_their_slot_table(monkeypatch: pytest.MonkeyPatch, algorithm: str | None) -> None:
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec(algorithm, 16))
    assert hooks._widen_slot_table(20) == 20


def test_the_device_answer_changes_one_question() -> None:
    answer = hooks._DeviceAnswer(SimpleNamespace(device="cpu", dtype="auto"), "cuda")
    assert (answer.device, answer.dtype) == ("cuda", "auto")
