"""Our calibration inside SGLang's confidence head, where it ranks the drafts and feeds the relay."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dspark_sglang.graphs import staged

# fp32's sigmoid is exactly 0 or 1 beyond these.
_LEAST, _MOST = np.float32(1e-30), np.float32(1.0 - 2.0**-24)


class HeadCalibration:
    """Scales and shifts the head's logits per slot, in buffers that captured graphs read.

    Parameters
    ----------
    head : SGLang's DSparkConfidenceHead
        Its ``apply_sts`` is replaced.
    gamma : int
    device : torch.device or str

    Attributes
    ----------
    in_force : tuple of float32 [gamma]
        Inverse temperatures and biases of the step that is launched next.
    """

    def __init__(self, head: Any, gamma: int, device: Any) -> None:
        self.in_force = np.ones(gamma, np.float32), np.zeros(gamma, np.float32)
        self._inverse = torch.ones(gamma, dtype=torch.float32, device=device)
        self._biases = torch.zeros(gamma, dtype=torch.float32, device=device)
        # Upstream: 0.5.23 reads temperatures from a file and has no biases. Remove when a head takes both live.
        head.apply_sts = self.confidence

    def confidence(self, confidence_raw: torch.Tensor) -> torch.Tensor:
        """Turn the head's logits into confidences, fp32 of the same shape; its last dimension is slots."""
        return torch.sigmoid(confidence_raw.float() * self._inverse + self._biases)

    def follow(self, inverse_temperatures: np.ndarray, biases: np.ndarray) -> None:
        """Use another calibration from the next launch on; float32 [gamma] each.

        Call on the stream that the draft runs on, so that no step sees half of it.
        """
        if np.array_equal(inverse_temperatures, self.in_force[0]) and np.array_equal(biases, self.in_force[1]):
            return
        self.in_force = inverse_temperatures.copy(), biases.copy()
        # Invariant: in place; captured graphs hold the addresses.
        for buffer, values in zip((self._inverse, self._biases), self.in_force, strict=True):
            buffer.copy_(staged(torch.from_numpy(values), buffer.device), non_blocking=True)


def logits_of(confidence: np.ndarray, in_force: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Undo `HeadCalibration.confidence`: float32 [R, gamma] of the head, NaN where the confidence is no probability."""
    inverse, biases = in_force
    with np.errstate(invalid="ignore"):
        sound = np.where((confidence >= 0) & (confidence <= 1), confidence, np.float32(np.nan)).astype(np.float32)
        bounded = np.clip(sound, _LEAST, _MOST)
        return ((np.log(bounded) - np.log1p(-bounded)) - biases) / inverse
