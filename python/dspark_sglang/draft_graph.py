"""Drafting in a captured graph: from the last step's features to this step's verify lengths, without the host.

One graph for each tier of requests, greedy and sampled apart: it writes the context KV of what the step before has
committed, runs the block, samples it left to right, and ranks its confidences for the budget that the host chose
before. The host only copies a step's inputs into buffers, plans the attention from lengths that it knows, and replays.

Shape legend: S request slots of a tier, G = gamma, W = gamma + 1, F = target features of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang.attention.flashinfer import Capacity
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.draft_kv import PagedBlockAttention
from dspark_sglang.graphs import Captured, request_tiers, tier_above
from dspark_sglang.kernels.admission import admit, survival_of
from dspark_sglang.kernels.draft_block import sample_block
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.counter import DRAFT, counter_uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dspark_sglang.attention.flashinfer import PagedAttention, PageTable
    from dspark_sglang.draft_inputs import DraftInputs
    from dspark_sglang.draft_kv import DraftKvPool
    from dspark_sglang.graphs import Graph
    from sgl_dspark.model.drafter import Drafter


@dataclass(frozen=True)
class Drafted:
    """What a draft came to, in memory that the next replay overwrites.

    Attributes
    ----------
    block : DraftBlock
        Of the tier's request slots.
    survival : fp32 [S, G]
        Calibrated chance that a draft and all before it are accepted; 0 where nothing may be verified.
    lens : int64 [S]
        Drafts to verify.
    """

    block: DraftBlock
    survival: Tensor
    lens: Tensor

    def first(self, requests: int) -> Drafted:
        """Cut the padding off."""
        block = DraftBlock(
            *(
                None if part is None else part[:requests]
                for part in (
                    self.block.tokens,
                    self.block.confidence_logits,
                    self.block.candidates,
                    self.block.probs,
                    self.block.token_probs,
                )
            )  # type: ignore[arg-type]
        )
        return Drafted(block, self.survival[:requests], self.lens[:requests])


def draft_step(
    drafter: Drafter, pool: DraftKvPool, attention: Any, inputs: DraftInputs, *, greedy: bool, shortlist: int | None
) -> Drafted:
    """Draft one step from buffers; what a graph captures, and what runs where there is none.

    Parameters
    ----------
    drafter : Drafter
    pool : DraftKvPool
    attention : PagedAttention
        Planned for these requests, not causal.
    inputs : DraftInputs
        Of one tier.
    greedy : bool
        Whether every request is greedy. Otherwise any mix is, told by temperatures of 0.
    shortlist : int or None
        See `sgl_dspark.sampling.block.sample_block`.
    """
    committed = inputs.committed
    pool.write_context(drafter, committed.features, committed.positions, committed.slots)
    # Written once: a replay that is not preceded by a commit must not write these slots again.
    committed.slots.zero_()
    inputs.step.add_(1)
    attend = PagedBlockAttention(pool, attention, inputs.slots.view(-1))
    hidden = drafter.block_hidden(inputs.anchors, inputs.prefix_lens, attend)
    block = sample_block(
        drafter,
        hidden,
        inputs.anchors,
        inputs.temperatures,
        shortlist=shortlist,
        uniforms=None
        if greedy
        else counter_uniforms(inputs.seed, inputs.step, hidden.shape[0], hidden.shape[1], DRAFT),
        greedy="all" if greedy else "some",
    )
    scales, biases = inputs.inverse_temperatures[inputs.kinds], inputs.biases[inputs.kinds]
    survival = survival_of(block.confidence_logits, scales, biases)
    survival = torch.where(inputs.places < inputs.room.unsqueeze(1), survival, 0.0)
    admitted = admit(survival, inputs.budget)
    lens = torch.minimum(torch.maximum(admitted, inputs.least), inputs.room)
    return Drafted(block, survival, lens)


class DraftGraphs:
    """The draft of a whole server, one graph for each tier of requests.

    Parameters
    ----------
    drafter : Drafter
    pool : DraftKvPool
    inputs : DraftInputs
        Buffers of the largest tier.
    table : PageTable
        Shared by all plans.
    make_attention : callable
        Gives a `PagedAttention` of the draft's heads for a `Capacity`.
    make_graph : callable
        Gives a `Graph`.
    count : callable
        Counts a fallback by its name.
    shortlist : int or None
    page_size : int
    """

    def __init__(
        self,
        drafter: Drafter,
        pool: DraftKvPool,
        inputs: DraftInputs,
        table: PageTable,
        *,
        make_attention: Callable[[Capacity], PagedAttention],
        make_graph: Callable[[], Graph],
        count: Callable[[str], None],
        shortlist: int | None,
        page_size: int = 1,
    ) -> None:
        self._drafter, self._pool, self.inputs, self._table = drafter, pool, inputs, table
        self._make_attention, self._count = make_attention, count
        self._shortlist, self._page_size = shortlist, page_size
        self.gamma = drafter.config.gamma
        self.tiers = request_tiers(inputs.requests)
        self._attention: dict[int, PagedAttention] = {}
        self._results: dict[tuple[int, bool], Drafted] = {}
        self._captured = Captured("draft", make_graph, inputs.device)

    @torch.no_grad()
    def capture(self, req_to_token: Tensor) -> int:
        """Capture every tier, largest first, so that smaller ones find memory to share; returns how many graphs."""
        for tier in reversed(self.tiers):
            for greedy in (True, False):
                prepare = partial(self._prepare, tier, req_to_token, greedy=greedy)
                if not self._captured.capture((tier, greedy), prepare):
                    self._results.pop((tier, greedy), None)
                    return len(self._captured)
        return len(self._captured)

    def _prepare(self, tier: int, req_to_token: Tensor, *, greedy: bool) -> Callable[[], None]:
        if tier not in self._attention:
            self._attention[tier] = self._make_attention(Capacity(tier, tier * self.gamma, self._table))
            self._plan(tier, [], req_to_token, self.inputs.anchors[:0])
        attention, inputs, shortlist = self._attention[tier], self.inputs.tier(tier), self._shortlist

        def run() -> None:
            self._results[tier, greedy] = draft_step(
                self._drafter, self._pool, attention, inputs, greedy=greedy, shortlist=shortlist
            )

        return run

    def _plan(self, tier: int, prefix_lens: Sequence[int], req_to_token: Tensor, request_rows: Tensor) -> None:
        plan = build_paged(
            [self.gamma] * len(prefix_lens),
            [length + self.gamma for length in prefix_lens],
            page_size=self._page_size,
            causal=False,
            slots=tier,
            padding_rows=self.gamma,
        )
        self._attention[tier].plan(plan, req_to_token, request_rows)

    def obstacle(self, prefix_lens: Sequence[int], *, greedy: bool) -> str | None:
        """Name what keeps a step from running in a graph; None if nothing does."""
        tier = tier_above(self.tiers, len(prefix_lens))
        if tier is None:
            return "draft_graph_size"
        if (tier, greedy) not in self._captured:
            return self._captured.missing or "draft_graph_failed"
        pages = sum(-(-(length + self.gamma) // self._page_size) for length in prefix_lens) + tier
        return "draft_graph_pages" if pages > self._table.pages else None

    def run(
        self, prefix_lens: Sequence[int], req_to_token: Tensor, request_rows: Tensor, *, greedy: bool
    ) -> Drafted | None:
        """Replay the graph of the requests that ``inputs`` was loaded with.

        Parameters
        ----------
        prefix_lens : sequence of int, length R
            Committed tokens of each request.
        req_to_token, request_rows
            See `fill_page_table`.
        greedy : bool
            Whether all are.

        Returns
        -------
        Drafted or None
            Of R requests, valid until the next replay; None, with the reason counted, if no graph fits.
        """
        reason = self.obstacle(prefix_lens, greedy=greedy)
        tier = tier_above(self.tiers, len(prefix_lens))
        if reason is not None or tier is None:
            self._count(reason or "draft_graph_size")
            return None
        if self.inputs.committed_rows > tier * (self.gamma + 1):
            # More was committed than this tier's buffers hold: requests have ended since.
            self.flush()
        self.inputs.pad(len(prefix_lens), tier)
        self._plan(tier, prefix_lens, req_to_token, request_rows)
        self._captured.replay((tier, greedy))
        self.inputs.committed_rows = 0
        return self._results[tier, greedy].first(len(prefix_lens))

    def flush(self) -> None:
        """Write what waits to be committed, where the next forward is not a replay of a draft.

        Whoever is about to run anything else calls this first: slots may have changed hands, and what their new
        owner writes must come after.
        """
        rows = self.inputs.committed_rows
        if rows:
            committed = self.inputs.committed
            parts = (committed.features[:rows], committed.positions[:rows], committed.slots[:rows])
            self._pool.write_context(self._drafter, *parts)
            committed.slots[:rows].zero_()
            self.inputs.committed_rows = 0
