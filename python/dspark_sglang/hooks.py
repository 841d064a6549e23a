"""The functions that wrap SGLang's own, and why each is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from dspark_sglang import admission, policy_codec, selection, slots, stops
from dspark_sglang.adjust.seeds import move_on
from dspark_sglang.metrics import endpoint, recording
from sgl_dspark.errors import DsparkError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hook:
    """One wrapped function of SGLang."""

    target: str
    kind: HookType
    function: Callable[..., Any]
    why: str


class _DeviceAnswer:
    """A view of SGLang's configuration that answers one question differently."""

    def __init__(self, view: Any, device: str) -> None:
        self._view = view
        self.device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _resolve_dspark_arguments(original: Callable[..., Any], server_args: Any) -> Any:
    # Upstream: 0.5.23 refuses DSPARK on a CPU by device name, before it asks the
    # platform whether it brings a worker. Remove when the check asks the platform.
    from sglang.srt.arg_groups import speculative_hook

    view = speculative_hook.resolving_view
    if view(server_args).device != "cpu" or selection.worker_choice() != selection.OURS:
        return original(server_args)
    speculative_hook.resolving_view = lambda args: _DeviceAnswer(view(args), "cuda")
    try:
        return original(server_args)
    finally:
        speculative_hook.resolving_view = view


def _create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    return selection.worker_class(algorithm.name) or original(algorithm, server_args)


def _assign_slots(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Upstream: 0.5.23 launches a Triton kernel wherever its in-tree CPU engine is off.
    # Remove when the function asks the tensor's device.
    if args[1].device.type != "cpu":
        return original(*args, **kwargs)
    return slots.assign_req_to_token(*args[:5])


def _widen_slot_table(extra: int, *_: Any, **__: Any) -> int:
    # Upstream: 0.5.23 reserves twice the verify width past the committed length, but
    # gives a row of the slot table room for one. Remove when both come from one place.
    from sglang.srt.runtime_context import get_spec

    if not selection.serves_planned():
        return extra
    return max(extra, 2 * int(get_spec().speculative_num_draft_tokens))


def _refuse_inexact_requests(tokenized: Any, *_: Any, **__: Any) -> Any:
    admission.refuse_unsupported(tokenized)
    return tokenized


async def _vary_seed(original: Callable[..., Any], manager: Any, tokenized: Any) -> None:
    await original(manager, tokenized)
    # Sent means copied to the scheduler: what changes now is what the next of several answers will be sent with.
    if selection.serves_ours():
        move_on(tokenized.sampling_params)


def _renew_packed_weights(result: Any, updater: Any, *_: Any, **__: Any) -> Any:
    from dspark_sglang.packed_weights import renew_weights

    renew_weights(updater.get_model())
    return result


def _configure_worker(original: Callable[..., Any], controller: Any, request: Any) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    numbers = request.server_args
    worker = controller.scheduler.draft_worker
    if not any(policy_codec.is_ours(name) for name in numbers) or not hasattr(worker, "configure"):
        return original(controller, request)
    try:
        worker.configure(numbers)
    except (DsparkError, TypeError, ValueError, IndexError) as error:
        # Checked before it was sent, unless somebody wrote the numbers by hand; the server goes on as it was.
        logger.warning("verify policy refused: %s", error)
        return SetInternalStateReqOutput(updated=False)
    return SetInternalStateReqOutput(updated=True)


def _bound_reasoning(streamer: Any, requests: Any, *_: Any, **__: Any) -> None:
    # Upstream: 0.5.23 counts a whole accepted run as reasoning before it cuts the run at the answer's end. Remove when
    # it counts what is left.
    del streamer
    for request in requests:
        if request.reasoning_tokens and request.finished_len is not None:
            request.reasoning_tokens = min(request.reasoning_tokens, request.finished_len)


_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_UPDATES = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)

HOOKS: tuple[Hook, ...] = (
    Hook(
        "sglang.srt.arg_groups.speculative_hook._handle_dspark",
        HookType.AROUND,
        _resolve_dspark_arguments,
        "lets DSPARK resolve on a CPU",
    ),
    Hook(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
        HookType.AROUND,
        _create_worker,
        "puts our worker under the name DSPARK",
    ),
    Hook(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
        HookType.AROUND,
        _assign_slots,
        "reserves verification slots without Triton",
    ),
    Hook(
        "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        HookType.AFTER,
        _widen_slot_table,
        "gives long blocks room at the context end",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
        HookType.AFTER,
        _refuse_inexact_requests,
        "answers 400 to what would not be exact",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request",
        HookType.AROUND,
        _vary_seed,
        "gives each of the n answers to one prompt its own seed",
    ),
    Hook(
        "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.set_internal_state",
        HookType.AROUND,
        _configure_worker,
        "switches the verify policy while serving",
    ),
    Hook(
        "sglang.srt.managers.schedule_batch.Req.update_finish_state",
        HookType.AROUND,
        stops.end_at_the_first,
        "ends an answer at the first of several ends in one accepted run",
    ),
    Hook(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer.stream_output",
        HookType.BEFORE,
        _bound_reasoning,
        "keeps reasoning_tokens within completion_tokens",
    ),
    Hook(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer.stream_output",
        HookType.AFTER,
        recording.after_stream,
        "counts the tokens that leave, for the metrics",
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.send_abort_output",
        HookType.AFTER,
        recording.after_abort,
        "counts requests that end before they run, for the metrics",
    ),
    Hook(
        "sglang.srt.utils.common.add_prometheus_middleware",
        HookType.AFTER,
        endpoint.keep_names,
        "keeps the names of metrics for whoever scrapes",
    ),
    *(
        Hook(f"{_UPDATER}.{name}", HookType.AFTER, _renew_packed_weights, "renews packed weights after an update")
        for name in _UPDATES
    ),
)
