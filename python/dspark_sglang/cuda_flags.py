"""Flags that `dspark serve` adds on a CUDA machine, unless the operator chose otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dspark_sglang import selection
from dspark_sglang.attention import CUDA_BACKEND_NAME
from dspark_sglang.command_line import flag_value

if TYPE_CHECKING:
    from dspark_sglang.launch import LaunchPlan

_BACKEND_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
# SGLang's graphs verify equal lengths only; ours are captured by the worker.
_GRAPH_FLAGS = ("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill")
_GRAPH_SETTINGS = (*_GRAPH_FLAGS, "--disable-cuda-graph", "--cuda-graph-config")


# The law that our verification follows (`sgl_dspark.sampling.warp`). SGLang draws the first token of an answer itself,
# and on CUDA its default, flashinfer, renormalises between top-k, top-p and min-p: another law.
SAMPLING_BACKEND = "pytorch"
_SAMPLING_FLAG = "--sampling-backend"


def for_cuda(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with SGLang's sampler on our law, our attention backend chosen, and SGLang's own graphs off.

    The sampler is set for the target alone too, so that ``--plain`` answers by the same law. A sampler that was named
    stays: `preflight.refuse_flags` refuses it where we verify. The rest is as it was where another backend, another
    worker or no speculation is asked for: with SGLang's own backends whole blocks are verified.
    """
    given = {argument.partition("=")[0] for argument in plan.arguments}
    ours = plan.speculative and selection.worker_choice() == selection.OURS
    plain = flag_value(plan.arguments, "--speculative-algorithm") is None
    added = []
    if (ours or plain) and _SAMPLING_FLAG not in given:
        added += [_SAMPLING_FLAG, SAMPLING_BACKEND]
    if ours and not given & set(_BACKEND_FLAGS):
        added += ["--attention-backend", CUDA_BACKEND_NAME]
        if not given & set(_GRAPH_SETTINGS):
            added += [part for flag in _GRAPH_FLAGS for part in (flag, "disabled")]
    return replace(plan, arguments=[*plan.arguments, *added]) if added else plan
