"""Custom logit processors: what each is shown, and what becomes of one that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")
from dspark_sglang.adjust.processors import ProcessedRequests, process
from tests.unit.plugin.test_sampling_bridge import window_of


def test_processors_see_the_answer_at_their_row() -> None:
    seen: list[list[int]] = []

    def processor(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        seen.extend(list(p["__req__"].output_ids) for p in params)
        assert all(p["__req__"].rid == "a" and p["k"] == 1 for p in params)
        return logits + 1

    window, logits = window_of([2, 3]), torch.zeros(5, 4)
    entry = SimpleNamespace(processor=processor, rows=[1])
    request = SimpleNamespace(rid="a", output_ids=[])
    processed = ProcessedRequests({0: entry}, [None, {"__req__": request, "k": 1}], {1: [7, 8]}, {1: request})
    process(logits, window.verify_lens_list, processed, [[1, 2, 3], [4, 5, 6]])
    assert seen == [[7, 8], [7, 8, 4], [7, 8, 4, 5]]
    assert logits[:, 0].tolist() == [0, 0, 1, 1, 1]


def _raise(logits: torch.Tensor) -> torch.Tensor:
    raise KeyError("tokens")


BROKEN = {
    "raises": _raise,
    "too few rows": lambda logits: logits[:1],
    "too few tokens": lambda logits: logits[:, :2],
    "nothing": lambda _: None,
    "not a number": lambda logits: logits * float("nan"),
    "infinite": lambda logits: logits + float("inf"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_processor_that_fails_ends_its_request_and_no_other(way: str) -> None:
    """Also one that fails for one of several requests that share it, after it has changed what it was given."""

    def processor(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        logits += 1
        return BROKEN[way](logits) if any(p["fails"] for p in params) else logits

    requests = {i: SimpleNamespace(rid=str(i), output_ids=[], to_finish=None) for i in (0, 2, 3)}
    params = [{"fails": i == 2} for i in range(4)]
    entry = SimpleNamespace(processor=processor, rows=[0, 2, 3])
    logits = torch.zeros(8, 4)
    processed = ProcessedRequests({0: entry}, params, dict.fromkeys(requests, [5]), requests)
    process(logits, [2, 1, 3, 2], processed, [[1, 2, 3]] * 4)
    assert logits[:, 0].tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert [request.to_finish is not None for request in requests.values()] == [False, True, False]
    told = requests[2].to_finish.to_json()
    assert (told["type"], told["status_code"]) == ("abort", 400)
    assert "custom_logit_processor" in told["message"]


def test_a_processor_may_ban_every_token() -> None:
    """Where a grammar left one token and the processor bans it; such a row ends the answer."""
    request = SimpleNamespace(rid="a", output_ids=[], to_finish=None)
    entry = SimpleNamespace(processor=lambda logits, _: logits.fill_(float("-inf")), rows=[0])
    logits = torch.zeros(1, 4)
    process(logits, [1], ProcessedRequests({0: entry}, [{}], {0: [5]}, {0: request}), None)
    assert request.to_finish is None
    assert logits.amax() == float("-inf")
