"""What of SGLang's own DSPARK the bridge calls, overrides or reads, and whether it is still there.

A private function that got another parameter, or stopped calling the one that we replace, would not fail: the server
would go on and verify whole blocks. So each member is compared with what this package was written for, before
anything is loaded.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sgl_dspark.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLANNER = "sglang.srt.speculative.dspark_components.dspark_planner"
_WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2"
_RELAY = "sglang.srt.managers.overlap_utils"
_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor"


@dataclass(frozen=True)
class Member:
    """One thing of SGLang that the bridge relies on.

    Attributes
    ----------
    module, name : str
        Where it is; ``Class.method`` for methods.
    takes : str or None
        Its parameters as `parameters_of` writes them; None if nobody here calls or overrides it.
    names : tuple of str
        Attributes that its code must still name, since the bridge replaces or reads them.
    fields : tuple of str
        Fields that a record must have.
    equals : int or None
        Value of a constant.
    """

    module: str
    name: str
    takes: str | None = None
    names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    equals: int | None = None


RING_LAG = 2
"""Decode steps between a confidence and its first reading where SGLang relays through its ring."""

SEAM: tuple[Member, ...] = (
    # The planner, whose budget object is replaced.
    Member(_PLANNER, "DSparkVerifyPlanner.__init__", None, ("_budget_planner", "_is_verify_all", "_confidence_head")),
    Member(
        _PLANNER,
        "DSparkVerifyPlanner.prepare_verify_budget",
        "self, batch, future_map",
        ("resolve_confidence_cpu", "_budget_from_resolved", "verify_token_budget", "note_non_decode_step"),
    ),
    Member(
        _PLANNER,
        "DSparkVerifyPlanner._budget_from_resolved",
        "self, *, resolved, req_pool_indices_cpu",
        ("_budget_planner", "compute_budget", "confidence", "generation", "req_generation"),
    ),
    Member(
        _PLANNER,
        "DSparkVerifyPlanner.resolve_verify_token_budget",
        "self, *, draft_input, confidence, prefix_lens, req_pool_indices",
        ("compute_budget_sync", "verify_token_budget"),
    ),
    Member(_PLANNER, "DSparkVerifyPlanner.compute_budget_sync", None, ("_budget_from_resolved", "req_generation")),
    Member(_PLANNER, "DSparkVerifyPlanner.schedule_layout", None, ("_is_verify_all", "_schedule_verify_lens")),
    Member(_PLANNER, "DSparkVerifyPlanner._schedule_verify_lens", None, ("ScheduleVerifyLensTopk", "sync")),
    Member(_PLANNER, "DSparkVerifyPlanner.take_budget_decision", None, ("take_last_decision",)),
    Member(_PLANNER, "DSparkVerifyPlanner.set_forced_budget_frac", None, ("forced_budget_frac",)),
    Member(
        _PLANNER,
        "HostConfidenceBudgetPlanner.compute_budget",
        "self, *, confidence, generation, current_generation, req_pool_indices_cpu",
    ),
    Member(_PLANNER, "HostConfidenceBudgetPlanner.take_last_decision", "self"),
    Member(_PLANNER, "HostConfidenceBudgetPlanner.note_non_decode_step", "self"),
    Member(
        _PLANNER,
        "VerifyBudgetDecision",
        None,
        fields=("budget", "predicted_step_seconds", "predicted_theta"),
    ),
    Member(_PLANNER, "ragged_capture_num_tokens", "*, model_runner"),
    # How confidences come to the host.
    Member(_RELAY, "ResolvedConfidence", None, fields=("confidence", "generation")),
    Member(_RELAY, "FutureMap.resolve_confidence_cpu", "self, batch", ("resolve", "fwd_prepare_d2h_stream")),
    Member(
        _RELAY,
        "ConfidenceRelay.resolve",
        None,
        ("spec_info", "future_indices", "req_pool_indices", "req_pool_indices_cpu", "conf_ring", "confidence_buf"),
    ),
    Member(_RELAY, "FutureMap.publish", None, ("scatter", "issue_ring_copy")),
    Member(_RELAY, "CONFIDENCE_RELAY_RING_LAG", equals=RING_LAG),
    # The worker, which is subclassed.
    Member(
        _WORKER,
        "DSparkWorkerV2.__init__",
        "self, server_args, gpu_id, nccl_port, target_worker, draft_worker_cls=",
        ("_verify_planner", "_hosts_draft", "_is_pd_prefill", "model_runner", "draft_model", "gamma", "device"),
    ),
    Member(
        _WORKER,
        "DSparkWorkerV2.forward_batch_generation",
        "self, batch, on_publish=, grammar_barrier=, *, pp_proxy_tensors=",
        ("_verify_planner", "note_non_decode_step", "_forward_prefill", "_forward_decode"),
    ),
    Member(_WORKER, "DSparkWorkerV2._forward_decode", None, ("resolve_verify_token_budget", "schedule_layout")),
    Member(_WORKER, "DSparkWorkerV2.init_attention_backends", "self"),
    Member(_WORKER, "DSparkWorkerV2.init_cuda_graphs", "self"),
    Member(_WORKER, "DSparkWorkerV2.get_confidence_budget_prepare", "self"),
    Member(_WORKER, "DSparkWorkerV2.set_dspark_forced_budget_frac", "self, frac"),
    Member(_WORKER, "DSparkWorkerV2.dump_info_records", "self"),
    Member(_WORKER, "DSparkWorkerV2.clear_info_records", "self"),
    Member(_WORKER, "DSparkWorkerV2.note_request_finished", "self, *, rid, natural_stop"),
    Member(_WORKER, "DSparkWorkerV2.on_verify_complete_cpu", "self, num_correct_drafts_per_req, batch_size="),
    Member(
        _RESULTS,
        "SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        None,
        ("on_verify_complete_cpu", "cap_lens", "next_token_ids"),
    ),
    Member(
        "sglang.srt.managers.utils",
        "GenerationBatchResult",
        None,
        fields=("next_token_ids", "cap_lens", "speculative_num_draft_tokens"),
    ),
    # What ranks the drafts on the device.
    Member("sglang.srt.models.dspark", "DSparkConfidenceHead.apply_sts", "self, confidence_raw"),
    Member("sglang.srt.models.dspark", "DSparkConfidenceHead.predict", None, ("apply_sts",)),
    # Which ranks must agree.
    Member("sglang.srt.layers.dp_attention", "get_dp_tp_group", ""),
)


def parameters_of(function: Callable[..., Any]) -> str:
    """Write a function's parameters by name and kind, ``=`` after those with a default: ``self, a, *, b=``."""
    parts: list[str] = []
    keyword_only = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
            parts.append(f"*{name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        parts.append(star + name + ("" if parameter.default is parameter.empty else "="))
    return ", ".join(parts)


def differences() -> Iterator[str]:
    """Yield one sentence for each member that is not what the bridge was written for."""
    for member in SEAM:
        found = _look(member)
        if found:
            yield f"{member.module}.{member.name} {found}"


def check_seam() -> None:
    """Raise `LaunchError` naming the first member of SGLang's that has moved, and what to do."""
    for difference in differences():
        raise LaunchError(
            f"bridge mode does not fit this SGLang: {difference}; install the release that this package was written "
            "for (dspark doctor names it), or leave SGLang's worker alone with SGL_DSPARK_WORKER=upstream"
        )


def _look(member: Member) -> str:
    """Say how a member differs; empty if it does not."""
    try:
        found: Any = importlib.import_module(member.module)
    except ImportError as error:
        return f"cannot be imported ({error})"
    for part in member.name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return "is not there"
    if member.equals is not None:
        return "" if found == member.equals else f"is {found}, not {member.equals}"
    if member.fields:
        missing = sorted(set(member.fields) - _fields_of(found))
        return f"has no field {missing[0]}" if missing else ""
    if member.takes is not None and parameters_of(found) != member.takes:
        return f"takes ({parameters_of(found)}), not ({member.takes})"
    code = getattr(inspect.unwrap(found), "__code__", None)
    named = set() if code is None else set(code.co_names)
    missing = [name for name in member.names if name not in named]
    return f"no longer names {missing[0]}" if missing else ""


def _fields_of(record: Any) -> set[str]:
    if is_dataclass(record):
        return {field.name for field in fields(record)}
    return set(getattr(record, "__struct_fields__", ()))
