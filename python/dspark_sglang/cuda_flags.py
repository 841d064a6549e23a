"""Flags that `dspark serve` adds on a CUDA machine, unless the operator chose an attention backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dspark_sglang import selection
from dspark_sglang.attention import CUDA_BACKEND_NAME

if TYPE_CHECKING:
    from dspark_sglang.launch import LaunchPlan

_BACKEND_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
# SGLang's graphs verify equal lengths only; ours are captured by the worker.
_GRAPH_FLAGS = ("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill")
_GRAPH_SETTINGS = (*_GRAPH_FLAGS, "--disable-cuda-graph", "--cuda-graph-config")


def for_cuda(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with our attention backend chosen, and SGLang's own graphs off.

    As it was, where another backend, another worker or no speculation is asked for: with SGLang's own backends whole
    blocks are verified.
    """
    given = {argument.partition("=")[0] for argument in plan.arguments}
    if not plan.speculative or selection.worker_choice() != selection.OURS or given & set(_BACKEND_FLAGS):
        return plan
    added = ["--attention-backend", CUDA_BACKEND_NAME]
    if not given & set(_GRAPH_SETTINGS):
        added += [part for flag in _GRAPH_FLAGS for part in (flag, "disabled")]
    return replace(plan, arguments=[*plan.arguments, *added])
