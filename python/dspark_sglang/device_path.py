"""A decode step that leaves ranking to the device: draft, lengths and verification without the host in between.

The host decides before the step how many drafts are verified in all and hands lengths that it knows to the attention's
planner. From the anchor to the verdict it reads nothing; what the device chose comes back with the verdict. Captured
graphs run where they fit, the same operations one by one where they do not.

Shape legend: R requests, G = gamma, W = gamma + 1, T flat tokens.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang import compat
from dspark_sglang.attention.cuda import CudaRaggedBackend
from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable, unsupported
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.compat_target import flat_verify_batch, forward_target_flat, forward_target_model
from dspark_sglang.draft_graph import Drafted, DraftGraphs, draft_step
from dspark_sglang.draft_inputs import DraftInputs
from dspark_sglang.graphs import CudaGraph, sent_to
from dspark_sglang.running import Proposal, Running
from dspark_sglang.sampling_bridge import spread
from dspark_sglang.target_graph import Round, TargetGraphs, Verified, verify_eagerly
from sgl_dspark.sampling.counter import ACCEPT, counter_uniforms

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from dspark_sglang.allocation import DevicePlan
    from dspark_sglang.device_window import DeviceWindow, FlatVerify
    from dspark_sglang.graphs import Graph
    from dspark_sglang.verify import VerifyWindow
    from dspark_sglang.worker import DsparkWorker
    from sgl_dspark.sampling.block import DraftBlock

logger = logging.getLogger(__name__)

# Tokens of context that the page table of graphs holds, in multiples of the KV pool: shared prefixes count for each
# request. Beyond, steps run without graphs.
TABLE_FACTOR = 4


def build_device_path(
    worker: DsparkWorker, make_wrapper: Any = None, make_graph: Callable[[object], Graph] = CudaGraph
) -> DevicePath | None:
    """Return the device path of a worker, or None with the reason in the log.

    Parameters
    ----------
    worker : DsparkWorker
        With its pools and attention backend in place.
    make_wrapper, make_graph : callables, optional
        In place of FlashInfer's class and of CUDA graphs; a graph gets the handle of its memory pool.
    """
    backend, config = worker.model_runner.attn_backend, worker.drafter.config
    if not isinstance(backend, CudaRaggedBackend):
        return None
    heads = Heads(
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        worker.model_runner.dtype,
        worker.parts.pool.scale,
        backend.heads.page_size,
    )
    if worker.model_runner.model_config.model_is_mrope:
        logger.warning("graphs: positions of several dimensions are not captured; steps are ranked on the host")
        return None
    reason = backend.obstacle or (None if make_wrapper is not None else unsupported(heads, worker.device))
    if reason is not None:
        logger.warning("lengths are ranked on the device and graphs captured only with FlashInfer: %s", reason)
        return None
    try:
        return DevicePath(worker, backend, heads, make_wrapper, make_graph)
    # Above all too little memory for its buffers: then the server serves without, as it does where a capture fails.
    except Exception:  # noqa: BLE001
        logger.warning("steps are ranked on the host and nothing is captured: buffers failed", exc_info=True)
        worker.count_fallback("device_path_failed")
        return None


class DevicePath:
    """Buffers, plans and graphs of one worker; see `build_device_path`."""

    def __init__(
        self,
        worker: DsparkWorker,
        backend: CudaRaggedBackend,
        heads: Heads,
        make_wrapper: Any,
        make_graph: Callable[[object], Graph],
    ) -> None:
        self._worker, self._parts, self._heads = worker, worker.parts, heads
        self._most, self._width, device = worker.max_requests, worker.stride, worker.device
        self._table = worker.model_runner.req_to_token_pool.req_to_token
        runner, page_size = worker.model_runner, heads.page_size
        self.inputs = DraftInputs.make(worker.drafter.config, self._most, runner.dtype, device, worker.seed)
        pages = min(self._most * self._table.shape[1], TABLE_FACTOR * worker.num_slots)
        table = PageTable(-(-pages // page_size) + self._most, device)
        self._counting = torch.arange(self._most * self._width, device=device)
        count = worker.count_fallback
        pools = [torch.cuda.graph_pool_handle() if device.type == "cuda" else None for _ in range(2)]

        def attention(own: Heads) -> Callable[[Capacity | None], PagedAttention]:
            return lambda capacity: PagedAttention(own, device, backend.workspace, capacity, make_wrapper)

        # Invariant: two pools. What a draft came to is read after the verification has been replayed.
        self.draft = DraftGraphs(
            worker.drafter,
            self._parts.pool,
            self.inputs,
            table,
            make_attention=attention(heads),
            make_graph=lambda: make_graph(pools[0]),
            count=count,
            shortlist=self._parts.shortlist,
            page_size=page_size,
        )
        self._draft_eagerly = attention(heads)(None)
        self.target = TargetGraphs(
            forward=self._layers,
            prepare=backend.prepare,
            requests=self._most,
            width=self._width,
            table=table,
            device=device,
            make_attention=attention(backend.heads),
            make_graph=lambda: make_graph(pools[1]),
            count=count,
            page_size=page_size,
        )

    def capture(self) -> None:
        """Capture all graphs; what cannot be captured runs without, and is counted."""
        drafts, targets = self.draft.capture(self._table), self.target.capture(self._table)
        logger.info("captured %d draft graphs and %d verification graphs", drafts, targets)

    @property
    def tiers(self) -> list[int] | None:
        """Verify tokens for which there are graphs, if there is one for each."""
        return self.target.tiers if self.target.complete else None

    def flush(self) -> None:
        """Write what was committed but not yet written; before anything but `propose` runs."""
        self.draft.flush()

    def propose(self, running: Running, plan: DevicePlan) -> Proposal:
        """Draft, and rank for the budget of ``plan``."""
        layout, rows, drafted = running.layout, running.rows, running.drafted
        anchors, seq_lens, request_rows = running.anchors, running.seq_lens, running.request_rows
        prefix_lens, slots, kinds, room, least = layout.prefix_lens, layout.slots, running.kinds, plan.room, plan.least
        temperatures = rows.draft_temperatures
        if drafted is not None:
            places, own = drafted.numpy(), sent_to(drafted, anchors.device)
            anchors, seq_lens, request_rows = anchors[own], seq_lens[own], request_rows[own]
            slots, temperatures = slots[own], temperatures[own]
            prefix_lens, kinds = [prefix_lens[r] for r in places], kinds[places]
            room, least = room[places], least[places]
        calibration = self._worker.knowledge.calibration
        self.inputs.calibrate(calibration.inverse_temperatures, calibration.biases)
        self.inputs.load(
            anchors=anchors,
            prefix_lens=seq_lens,
            slots=slots[:, : self._width - 1],
            temperatures=temperatures,
            kinds=torch.from_numpy(kinds),
            room=torch.from_numpy(room),
            least=torch.from_numpy(least),
            budget=plan.budget,
        )
        greedy = rows.greediness == "all"
        found = self.draft.run(prefix_lens, self._table, request_rows, greedy=greedy)
        if found is None:
            found = self._without_graph(prefix_lens, request_rows, greedy=greedy)
        if drafted is None:
            return Proposal(found.block, found.lens + 1, found.lens, found.survival)
        verify_lens = torch.ones_like(running.seq_lens).index_add_(0, own, found.lens)
        return Proposal(spread(found.block, own, len(verify_lens)), verify_lens, found.lens, found.survival)

    def _without_graph(self, prefix_lens: list[int], request_rows: Tensor, *, greedy: bool) -> Drafted:
        count, gamma, parts = len(prefix_lens), self._width - 1, self._parts
        if self.inputs.committed_rows > count * self._width:
            self.flush()
        kv_lens = [length + gamma for length in prefix_lens]
        plan = build_paged([gamma] * count, kv_lens, page_size=self._heads.page_size, causal=False)
        self._draft_eagerly.plan(plan, self._table, request_rows)
        attention, inputs = self._draft_eagerly, self.inputs.tier(count)
        found = draft_step(parts.drafter, parts.pool, attention, inputs, greedy=greedy, shortlist=parts.shortlist)
        self.inputs.committed_rows = 0
        return found

    def verify(self, running: Running, plan: DevicePlan, proposal: Proposal) -> tuple[Any, Tensor, DeviceWindow]:
        """Verify a proposal.

        Returns
        -------
        logits_output : LogitsProcessorOutput
            Of T rows, the tail of which fills the tier.
        features : float [T, F]
        window : DeviceWindow
        """
        layout = running.layout
        bounds = plan.bounds
        step = Round(
            running.anchors,
            proposal.verify_lens,
            proposal.block.tokens,
            layout.positions,
            layout.slots,
            running.request_rows,
            layout.prefix_lens,
            bounds,
            len(bounds) + plan.most,
        )
        found = self._verified(step, running.seq_lens)
        return compat.logits_output(found.logits), found.features, found.window

    def verify_from_host(self, running: Running, window: VerifyWindow, block: DraftBlock | None) -> tuple[Any, Tensor]:
        """Verify lengths that the host chose: as `verify`, but of exactly the rows of ``window``."""
        layout, lens = running.layout, window.verify_lens_list
        drafts = layout.slots.new_zeros((len(lens), self._width - 1)) if block is None else block.tokens
        step = Round(
            running.anchors,
            window.verify_lens,
            drafts,
            layout.positions,
            layout.slots,
            running.request_rows,
            layout.prefix_lens,
            lens,
            sum(lens),
        )
        found = self._verified(step, running.seq_lens)
        return compat.logits_output(found.logits[: step.most]), found.features[: step.most]

    def _verified(self, step: Round, seq_lens: Tensor) -> Verified:
        found = self.target.run(step, self._table)
        if found is None:
            found = verify_eagerly(step, self._planned_layers(step, seq_lens), self._counting)
        return found

    def accept_uniforms(self, requests: int) -> Tensor:
        """Give the numbers that this step's acceptance draws with, fp64 [R, W]; independent of the draft's."""
        return counter_uniforms(self.inputs.seed, self.inputs.step, requests, self._width, ACCEPT)

    def commit(self, features: Tensor, window: DeviceWindow) -> None:
        """Keep the verified rows for the next draft to write; rejected ones are written over by later rounds."""
        # Rows that only fill the verification's tier come last, and may be more than the draft's tier has room for.
        rows = min(len(features), window.positions.numel())
        self.inputs.commit(features[:rows], window.pack(window.positions)[:rows], window.pack(window.slots)[:rows])

    def _layers(self, flat: FlatVerify) -> tuple[Tensor, Tensor]:
        """Run the target over rows whose attention has been planned: what a graph captures."""
        lens = flat.tokens.firsts
        nothing = torch.zeros(len(lens), dtype=torch.int64)
        verify_input = flat.verify_input(self._width, [], [])
        batch = flat_verify_batch(
            self._worker.target_worker, verify_input, lens, nothing, torch.zeros_like(lens), flat.slots
        )
        return _taken(forward_target_model(self._worker.target_worker, batch))

    def _planned_layers(self, step: Round, seq_lens: Tensor) -> Callable[[FlatVerify], tuple[Tensor, Tensor]]:
        def run(flat: FlatVerify) -> tuple[Tensor, Tensor]:
            verify_input = flat.verify_input(self._width, step.bounds, step.prefix_lens)
            on_host = torch.tensor(step.prefix_lens)
            batch = flat_verify_batch(
                self._worker.target_worker, verify_input, seq_lens, on_host, step.request_rows, flat.slots
            )
            return _taken(forward_target_flat(self._worker.target_worker, batch))

        return run


def _taken(output: Any) -> tuple[Tensor, Tensor]:
    features = compat.take_features(output)
    return output.next_token_logits, features
