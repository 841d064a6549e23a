"""What requests of one step ask for: penalties with the answers that they count in, and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_sglang.adjust.answers import Answers
    from sgl_dspark.sampling.penalties import Penalties


@dataclass(frozen=True)
class PenalisedRequests:
    """Requests with penalties.

    Attributes
    ----------
    places : list of int
        In the batch, ascending.
    rows : int64 [n]
        In ``answers``.
    lengths : list of int
        Tokens of each answer, the anchor included.
    penalties : Penalties
        Of the n requests.
    """

    places: list[int]
    rows: Tensor
    lengths: list[int]
    penalties: Penalties
    answers: Answers


@dataclass(frozen=True)
class Biases:
    """Logits that are changed whatever was said before, by place in the batch.

    Attributes
    ----------
    added : dict of int to (int64 [b], fp32 [b])
        Tokens and what is added to them.
    barred : dict of int to (int64 [b], int)
        Tokens that end an answer, and how many tokens must come before they may.
    """

    added: dict[int, tuple[Tensor, Tensor]]
    barred: dict[int, tuple[Tensor, int]]
