"""Time the CUDA path's parts on this machine and write them to ``docs/results``.

    python tools/gpu_timings.py --out docs/results

Attention exactly as long as what is verified, and planned for whole windows as serving plans it where only the device
knows the lengths; a draft one by one, its plan on the host, its replay, and the shares of the sequential loop and of
ranking in that replay: all by the kernels that serve. Medians of ``--repeats`` with the lowest and highest in brackets.
Refuses to run without a CUDA device and FlashInfer.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dspark_sglang.attention.flashinfer import Capacity, Heads, PagedAttention, PageTable, unsupported, workspace_bytes
from dspark_sglang.attention.paged import build_paged
from dspark_sglang.draft_graph import draft_step
from dspark_sglang.draft_inputs import DraftInputs
from dspark_sglang.draft_kv import DraftKvPool
from dspark_sglang.graphs import CudaGraph
from dspark_sglang.kernels.admission import admit, survival_of
from dspark_sglang.kernels.draft_block import sample_block
from sgl_dspark.config import DrafterConfig
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.sampling.counter import DRAFT as DRAFT_STREAM
from sgl_dspark.sampling.counter import counter_uniforms

GAMMA, WARM_UPS = 7, 5
HEADS = Heads(32, 8, 128, torch.bfloat16, 128**-0.5)
REQUESTS, CONTEXTS, VERIFIED = (1, 8, 32, 64), (1024, 8192), (2, 4)
DRAFT = DrafterConfig(
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=5,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=16384,
    gamma=GAMMA,
    mask_token_id=151669,
    target_layer_ids=(1, 9, 17, 25, 33),
    num_target_layers=36,
    markov_rank=256,
    markov_head_type="vanilla",
    enable_confidence_head=True,
    confidence_head_with_markov=True,
)
SHORTLIST, DRAFT_CONTEXT = 256, 1024


class Clock:
    """Times work that a stream has to finish."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats

    def __call__(self, run: Callable[[], object]) -> str:
        """Return microseconds of ``run``: median (lowest-highest)."""
        for _ in range(WARM_UPS):
            run()
        took = []
        for _ in range(self.repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            last.synchronize()
            took.append(1000 * first.elapsed_time(last))
        return shown(took)

    def host(self, run: Callable[[], object]) -> str:
        """Return microseconds that the host spends in ``run``, with nothing for it to wait for."""
        took = []
        for repeat in range(WARM_UPS + self.repeats):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run()
            if repeat >= WARM_UPS:
                took.append(1e6 * (time.perf_counter() - began))
        return shown(took)


def shown(microseconds: Sequence[float]) -> str:
    """Write median (lowest-highest)."""
    return f"{statistics.median(microseconds):.0f} ({min(microseconds):.0f}-{max(microseconds):.0f})"


def attention_rows(clock: Clock, device: torch.device) -> list[list[str]]:
    """Time one layer's attention: exactly the verified rows, and whole windows with their two gathers."""
    return [
        [str(requests), str(context), *row]
        for requests in REQUESTS
        for context in CONTEXTS
        for row in _attention_of(clock, device, requests, context)
    ]


def _attention_of(clock: Clock, device: torch.device, requests: int, context: int) -> list[list[str]]:
    whole, slots = GAMMA + 1, requests * (context + GAMMA + 1) + 1
    workspace = torch.empty(workspace_bytes(HEADS, requests, requests * whole), dtype=torch.uint8, device=device)
    attention = PagedAttention(HEADS, device, workspace)
    table = torch.arange(1, slots, device=device).view(requests, -1).int()
    keys, values = torch.randn(2, slots, HEADS.keys, HEADS.dim, dtype=HEADS.dtype, device=device)
    rows, found = torch.arange(requests, device=device), []

    def plan(lens: int) -> None:
        made = build_paged([lens] * requests, [context + lens] * requests, page_size=1, causal=True)
        attention.plan(made, table, rows)

    def timed(flat: torch.Tensor, spread: torch.Tensor | None, pack: torch.Tensor) -> str:
        if spread is None:
            return clock(lambda: attention.run(flat, keys, values))
        return clock(lambda: attention.run(flat[spread], keys, values)[pack])

    for lens in VERIFIED:
        flat = torch.randn(requests * lens, HEADS.queries, HEADS.dim, dtype=HEADS.dtype, device=device)
        request, depth = rows.repeat_interleave(whole), torch.arange(whole, device=device).repeat(requests)
        spread = request * lens + depth.clamp(max=lens - 1)
        pack = (rows * whole).unsqueeze(1) + torch.arange(lens, device=device)
        plan(lens)
        exact = timed(flat, None, pack.view(-1))
        plan(whole)
        found.append([str(lens), exact, timed(flat, spread, pack.view(-1))])
    return found


def _drafter(device: torch.device) -> Drafter:
    torch.manual_seed(0)
    with device:
        drafter = Drafter(DRAFT).to(torch.bfloat16)
    drafter.fuse_for_serving()
    return drafter


def draft_rows(
    clock: Any, device: torch.device, make_graph: Callable[[], Any] = CudaGraph, make_wrapper: Any = None
) -> list[list[str]]:
    """Time a draft of the shape of a 4-billion-parameter target's; see `report` for the columns."""
    drafter, most = _drafter(device), max(REQUESTS)
    width = DRAFT_CONTEXT + GAMMA + 1
    table = torch.arange(most * width, device=device).view(most, width).int()
    pool = DraftKvPool(DRAFT, most * width, torch.bfloat16, device)
    inputs = DraftInputs.make(DRAFT, most, torch.bfloat16, device, 0)
    workspace = torch.empty(workspace_bytes(HEADS, most, most * 8), dtype=torch.uint8, device=device)
    pages = PageTable(2 * most * width, device)
    found = []
    for requests in REQUESTS:
        lengths, rows = [DRAFT_CONTEXT] * requests, torch.arange(requests, device=device)
        inputs.load(
            anchors=rows,
            prefix_lens=torch.tensor(lengths),
            slots=table[:requests, DRAFT_CONTEXT : DRAFT_CONTEXT + GAMMA].long(),
            temperatures=torch.ones(requests),
            kinds=torch.zeros(requests, dtype=torch.int64),
            room=torch.full((requests,), GAMMA),
            least=torch.zeros(requests, dtype=torch.int64),
            budget=requests * 3,
        )
        capacity = Capacity(requests, requests * GAMMA, pages)
        attention = PagedAttention(HEADS, device, workspace, capacity, make_wrapper)

        def plan(lengths: list[int] = lengths, rows: torch.Tensor = rows, own: PagedAttention = attention) -> None:
            made = build_paged(
                [GAMMA] * len(lengths), [length + GAMMA for length in lengths], page_size=1, causal=False
            )
            own.plan(made, table, rows)

        plan()
        view = inputs.tier(requests)

        def step(view: DraftInputs = view, own: PagedAttention = attention) -> object:
            return draft_step(drafter, pool, own, view, greedy=False, shortlist=SHORTLIST)

        replays = [_captured(make_graph, run) for run in (step, *_shares(drafter, view, device))]
        found.append([str(requests), clock(step), clock.host(plan), *(clock(graph.replay) for graph in replays)])
    return found


def _captured(make_graph: Callable[[], Any], run: Callable[[], object]) -> Any:
    graph, kept = make_graph(), []
    # What it returns lies in the graph's memory, which must not be handed out again.
    graph.capture(lambda: kept.append(run()))
    graph.kept = kept
    return graph


def _shares(drafter: Drafter, view: DraftInputs, device: torch.device) -> list[Callable[[], object]]:
    """Give the sequential loop of a draft, and its ranking, as `draft_step` runs them."""
    requests = view.requests
    hidden = torch.randn(requests, GAMMA, DRAFT.hidden_size, dtype=torch.bfloat16, device=device)
    logits, ones = torch.randn(requests, GAMMA, device=device), torch.ones(requests, GAMMA, device=device)

    def loop() -> object:
        uniforms = counter_uniforms(view.seed, view.step, requests, GAMMA, DRAFT_STREAM)
        return sample_block(
            drafter, hidden, view.anchors, view.temperatures, shortlist=SHORTLIST, uniforms=uniforms, greedy="some"
        )

    return [loop, lambda: admit(survival_of(logits, ones, torch.zeros_like(ones)), view.budget)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay a table out in Markdown."""
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(clock: Clock, device: torch.device) -> str:
    """Measure everything and return the page."""
    import flashinfer

    name, when = torch.cuda.get_device_name(device), datetime.now(UTC)
    attention, drafts = attention_rows(clock, device), draft_rows(clock, device)
    return f"""# CUDA path, {name}, {when:%B %Y}

`python tools/gpu_timings.py`, torch {torch.__version__}, FlashInfer {flashinfer.__version__}, {clock.repeats} repeats;
microseconds, median (lowest-highest).

One layer's attention, {HEADS.queries} query and {HEADS.keys} KV heads of {HEADS.dim}, bf16, pages of one token. *Exact*
plans the verified rows alone; *window* plans {GAMMA + 1} rows a request and gathers, as serving does:

{table(["requests", "context", "verified", "exact", "window"], attention)}

A draft of {DRAFT.num_hidden_layers} layers of width {DRAFT.hidden_size}, gamma {GAMMA}, shortlist {SHORTLIST}, context
{DRAFT_CONTEXT}, sampled. *Eager* launches its operations one by one; *plan* is the host's time for the attention's plan
before a replay; *replay* the captured draft alone, of which *loop* (base logits and the left-to-right sampling) and
*rank* (survival and admission) are shares, each captured and replayed by itself:

{table(["requests", "eager", "plan", "replay", "loop", "rank"], drafts)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; 1 where there is nothing to measure on."""
    args = parsed(arguments)
    device = torch.device("cuda")
    reason = unsupported(HEADS, device) if torch.cuda.is_available() else "there is no CUDA device"
    if reason is not None:
        print(f"gpu timings: error: {reason}", file=sys.stderr)
        return 1
    with torch.no_grad():
        page = report(Clock(args.repeats), device)
    slug = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name(device).lower())
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"cuda_{slug}_{datetime.now(UTC):%Y%m}.md"
    file.write_text(page)
    print(f"gpu timings: written to {file}")
    return 0


def parsed(arguments: Sequence[str] | None) -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="DIR")
    parser.add_argument("--repeats", type=int, default=20, metavar="N")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
