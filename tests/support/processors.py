"""Custom logit processors that tests send to a server; they travel as code, so each stands on its own."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class BanTokens(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, parameters in enumerate(custom_param_list or []):
            logits[row, parameters["tokens"]] = -float("inf")
        return logits


class NoThreeInARow(CustomLogitProcessor):
    """Bans the last token of an answer where it already stands twice."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, parameters in enumerate(custom_param_list or []):
            answer = parameters["__req__"].output_ids
            if len(answer) >= 2 and answer[-1] == answer[-2]:
                logits[row, answer[-1]] = -float("inf")
            logits[row, len(answer) % 7] += 2.0
        return logits


class TieTwo(CustomLogitProcessor):
    """Gives logits 1, 1 and 0 to three tokens, and less to all others."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, parameters in enumerate(custom_param_list or []):
            logits[row] = -5.0
            logits[row, parameters["tokens"]] = torch.tensor([1.0, 1.0, 0.0], dtype=logits.dtype)
        return logits


class Misbehaves(CustomLogitProcessor):
    """Leaves the logits alone until an answer has ``after`` tokens, then does what ``how`` says."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, parameters in enumerate(custom_param_list or []):
            how = parameters["how"]
            if how == "behaves" or len(parameters["__req__"].output_ids) < parameters["after"]:
                continue
            if how == "raises":
                raise RuntimeError("on purpose")
            if how == "shape":
                return logits[:, :7]
            logits[row] = {"nan": float("nan"), "infinite": float("inf"), "bans all": -float("inf")}[how]
        return logits
