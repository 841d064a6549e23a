"""What the metrics read of SGLang 0.5.23: its requests, and whether and under which name it exports."""

from __future__ import annotations

from typing import Any


def delivered_tokens(request: Any) -> int:
    """Return how many tokens of a request's answer its client gets: none past the stop or the limit."""
    cut = request.finished_len
    return len(request.output_ids) if cut is None else int(cut)


def request_slot(request: Any) -> int | None:
    """Return a request's row of the request pool; None while it has none."""
    slot = request.kv.req_pool_idx
    return None if slot is None else int(slot)


def finish_kind(reason: Any) -> str:
    """Return what kind a request's finish reason is: stop, length or abort."""
    return str(reason.to_json()["type"])


def model_name() -> str | None:
    """Return the model's name in SGLang's metrics; None where this process is not to export any."""
    from sglang.srt.runtime_context import get_observability, get_parallel, get_serving

    if not get_observability().enable_metrics or get_parallel().tp_rank:
        return None
    return str(get_serving().served_model_name)
