"""Target verification in captured graphs, one for each tier of verify tokens.

The lengths come from the device, so that a graph lays the flat rows out itself; the host plans the attention for the
most rows that each request can have. Graphs of this module and of `draft_graph` must not share memory: what a draft
came to is read after the verification.

Shape legend: S request slots of a tier (R of them taken), W = gamma + 1 columns, N = S * W planned rows, T flat tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.attention.flashinfer import Capacity
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.device_window import DeviceWindow, FlatVerify, VerifyInputs, planned_row_index
from dspark_sglang.graphs import Captured, tier_above, token_tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dspark_sglang.attention.cuda import RowMap
    from dspark_sglang.attention.flashinfer import PagedAttention, PageTable
    from dspark_sglang.graphs import Graph


@dataclass(frozen=True)
class Round:
    """Requests of one verification, as the step has them.

    Attributes
    ----------
    anchors, verify_lens : int64 [R]
    drafts : int64 [R, W - 1]
    positions, slots : int64 [R, W]
    request_rows : int64 [R]
        Rows of the slot table.
    prefix_lens, bounds : list of int, length R
        On the host: committed tokens, and the most that ``verify_lens`` can be.
    most : int
        The most that the sum of ``verify_lens`` can be.
    """

    anchors: Tensor
    verify_lens: Tensor
    drafts: Tensor
    positions: Tensor
    slots: Tensor
    request_rows: Tensor
    prefix_lens: list[int]
    bounds: list[int]
    most: int

    def to(self, device: torch.device) -> Round:
        """Return the same on another device."""
        moved: dict[str, Any] = {
            name: part.to(device) for name, part in vars(self).items() if isinstance(part, torch.Tensor)
        }
        return replace(self, **moved)

    def inputs(self) -> VerifyInputs:
        """Give what a forward outside graphs starts from."""
        owners, depths, firsts = planned_row_index(self.bounds, self.anchors.device)
        rows = torch.full((), len(owners), dtype=torch.int64, device=self.anchors.device)
        return VerifyInputs(
            self.anchors, self.drafts, self.verify_lens, self.positions, self.slots, owners, depths, firsts, rows
        )


@dataclass(frozen=True)
class Verified:
    """Logits ``[T, V]`` and features ``[T, F]`` of flat rows, and which rows these are."""

    logits: Tensor
    features: Tensor
    window: DeviceWindow


class TargetGraphs:
    """Verifications of a whole server.

    Parameters
    ----------
    forward : callable
        ``forward(flat) -> (logits [T, V], features [T, F])``: the target's layers over flat rows.
    prepare : callable
        ``prepare(attend, row_map)``: what its layers attend with.
    requests, width : int
        Most requests that run at once, and W.
    table : PageTable
        Shared by all plans.
    device : torch.device
    make_attention, make_graph, count : callable
        As of `draft_graph.DraftGraphs`; heads are the target's.
    page_size : int
    tiers : sequence of int, optional
        Verify tokens, ascending.
    """

    def __init__(
        self,
        *,
        forward: Callable[[FlatVerify], tuple[Tensor, Tensor]],
        prepare: Callable[[Callable[[Tensor, Tensor, Tensor], Tensor], RowMap], None],
        requests: int,
        width: int,
        table: PageTable,
        device: torch.device,
        make_attention: Callable[[Capacity], PagedAttention],
        make_graph: Callable[[], Graph],
        count: Callable[[str], None],
        page_size: int = 1,
        tiers: Sequence[int] | None = None,
    ) -> None:
        self._forward, self._prepare, self._count = forward, prepare, count
        self._requests, self._width, self._table, self._page_size = requests, width, table, page_size
        self._make_attention = make_attention
        self.tiers = token_tiers(requests, width) if tiers is None else list(tiers)
        self._counting = torch.arange(max(self.tiers[-1], requests * width), device=device)
        self._buffers = _buffers(requests, width, device)
        self._attention: dict[int, PagedAttention] = {}
        self._flat: dict[int, FlatVerify] = {}
        self._outputs: tuple[Tensor, Tensor] | None = None
        self._captured = Captured("target", make_graph, device)

    @property
    def complete(self) -> bool:
        """Whether there is a graph for every tier."""
        return len(self._captured) == len(self.tiers)

    def slots_of(self, tier: int) -> int:
        """Return the request slots of a tier: a request has at least one token."""
        return min(tier, self._requests)

    def buffers(self) -> list[Tensor]:
        """List what a replay may read besides weights, pools and the attention's plan."""
        return [*vars(self._buffers).values(), self._counting, *(self._outputs or ())]

    @torch.no_grad()
    def capture(self, req_to_token: Tensor) -> int:
        """Capture every tier, largest first; returns how many there are."""
        for tier in reversed(self.tiers):
            if not self._captured.capture(tier, partial(self._prepare_tier, tier, req_to_token)):
                self._flat.pop(tier, None)
                if not self._flat:
                    self._outputs = None
                break
        return len(self._captured)

    def _prepare_tier(self, tier: int, req_to_token: Tensor) -> Callable[[], None]:
        slots = self.slots_of(tier)
        attention = self._make_attention(Capacity(slots, slots * self._width, self._table))
        self._attention[tier] = attention
        # The most rows there can be, which FlashInfer keeps as the bound; row 0 of the slot table is nobody's.
        plan = build_paged([self._width] * slots, [self._width] * slots, page_size=self._page_size, causal=True)
        attention.plan(plan, req_to_token, torch.zeros(slots, dtype=torch.int64, device=req_to_token.device))

        def run() -> None:
            flat = FlatVerify.of(self._views(tier), self._counting, tier)
            self._prepare(attention.run, flat.row_map)
            self._flat[tier] = flat
            self._keep(*self._forward(flat))

        return run

    def _keep(self, logits: Tensor, features: Tensor) -> None:
        """Copy results to where every tier's are, so that graphs share the memory that they were computed in."""
        if self._outputs is None:
            # By a warm-up of the largest tier, which comes first: outside of the graphs' memory.
            self._outputs = torch.empty_like(logits), torch.empty_like(features)
        for kept, found in zip(self._outputs, (logits, features), strict=True):
            kept[: len(found)].copy_(found)

    def _views(self, tier: int) -> VerifyInputs:
        slots, own = self.slots_of(tier), self._buffers
        rows = slots * self._width
        return VerifyInputs(
            own.anchors[:slots],
            own.drafts[:slots],
            own.verify_lens[:slots],
            own.positions[:slots],
            own.slots[:slots],
            own.row_owners[:rows],
            own.row_depths[:rows],
            own.row_firsts[:slots],
            own.rows,
        )

    def obstacle(self, step: Round) -> str | None:
        """Name what keeps a verification from running in a graph; None if nothing does."""
        tier = tier_above(self.tiers, step.most)
        if tier is None or len(step.bounds) > self._requests:
            return "target_graph_size"
        if tier not in self._captured:
            return self._captured.missing or "target_graph_failed"
        sizes = (p + b for p, b in zip(step.prefix_lens, step.bounds, strict=True))
        pages = sum(-(-size // self._page_size) for size in sizes)
        return "target_graph_pages" if pages > self._table.pages else None

    def run(self, step: Round, req_to_token: Tensor) -> Verified | None:
        """Replay the graph of the tier that holds ``step``.

        Returns
        -------
        Verified or None
            In memory that the next replay of any tier overwrites; None, with the reason counted, if no graph fits.
        """
        reason, tier = self.obstacle(step), tier_above(self.tiers, step.most)
        if reason is not None or tier is None:
            self._count(reason or "target_graph_size")
            return None
        requests, slots = len(step.bounds), self.slots_of(tier)
        kv_lens = [p + b for p, b in zip(step.prefix_lens, step.bounds, strict=True)]
        plan = build_paged(step.bounds, kv_lens, page_size=self._page_size, causal=True, slots=slots)
        self._attention[tier].plan(plan, req_to_token, step.request_rows)
        self._load(step, slots)
        self._captured.replay(tier)
        assert self._outputs is not None
        logits, features = (kept[:tier] for kept in self._outputs)
        return Verified(logits, features, self._views(tier).window(self._flat[tier].tokens, requests))

    def _load(self, step: Round, slots: int) -> None:
        given, own = step.inputs(), self._buffers
        for name in ("anchors", "drafts", "verify_lens", "positions", "slots", "row_firsts"):
            values, buffer = getattr(given, name), getattr(own, name)
            buffer[: len(values)].copy_(values, non_blocking=True)
            # Padding request slots verify nothing and hold token 0 at position 0.
            buffer[len(values) : slots].zero_()
        for name in ("row_owners", "row_depths"):
            values, buffer = getattr(given, name), getattr(own, name)
            buffer[: len(values)].copy_(values, non_blocking=True)
            buffer[len(values) : slots * self._width].zero_()
        own.rows.copy_(given.rows, non_blocking=True)


def _buffers(requests: int, width: int, device: torch.device) -> VerifyInputs:
    def ints(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    rows = requests * width
    return VerifyInputs(
        ints(requests),
        ints(requests, width - 1),
        ints(requests),
        ints(requests, width),
        ints(requests, width),
        ints(rows),
        ints(rows),
        ints(requests),
        ints(),
    )


@torch.no_grad()
def verify_eagerly(step: Round, forward: Callable[[FlatVerify], tuple[Tensor, Tensor]], counting: Tensor) -> Verified:
    """Do the same without a graph, over ``step.most`` flat rows.

    Parameters
    ----------
    step : Round
    forward : callable
        As of `TargetGraphs`; it plans the attention itself.
    counting : int64 [at least N and T]
    """
    inputs = step.inputs()
    flat = FlatVerify.of(inputs, counting, step.most)
    logits, features = forward(flat)
    return Verified(logits, features, inputs.window(flat.tokens, len(step.bounds)))
