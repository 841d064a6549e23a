"""What SGLang asks a DSPARK worker for that ours answers with nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang import compat

if TYPE_CHECKING:
    from collections.abc import Callable


class ContractWorker(compat.BaseSpecWorker):
    """Answers of the speculative V2 contract that do not depend on how the worker works."""

    device: torch.device
    stride: int

    @property
    def needs_cpu_seq_lens(self) -> bool:
        """Whether committed lengths are needed on the host: the draft's plan is built there."""
        return True

    def get_confidence_budget_prepare(self) -> None:
        """Return None: our own relay feeds the planner, at the start of each decode step."""
        return

    def set_dspark_forced_budget_frac(self, frac: float | None) -> None:
        """Refuse SGLang's debugging override of the verify budget; ours is a policy."""
        if frac is not None:
            raise ValueError("dspark_force_budget_frac has no effect here; choose a policy with POST /dspark/policy")

    def block_accept_estimate_log_suffix(self) -> str | None:
        """Return None: the log line of SGLang needs no estimate."""
        return None

    def idle(self, publish: Callable[..., None]) -> Any:
        """Answer a step without requests."""
        empty = torch.empty(0, dtype=torch.int64, device=self.device)
        publish(empty)
        return compat.decode_result(
            logits_output=None, out_tokens=empty, accept_lens=empty, new_seq_lens=empty, bonus=empty, stride=self.stride
        )
