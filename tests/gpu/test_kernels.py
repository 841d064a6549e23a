"""Triton kernels on a device: what the interpreter shows of them, at the sizes that serve, and replay from a graph."""

from __future__ import annotations

import pytest
import torch

from dspark_sglang.kernels import admission, draft_block, rejection
from dspark_sglang.kernels.choice import interpreted
from sgl_dspark.sampling.counter import ACCEPT, DRAFT, counter_uniforms
from tests.support import kernel_checks as checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or interpreted(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
V = 151_936
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"requests": 1, "gamma": 1, "size": 1},
        {"requests": 64, "gamma": 7, "size": 64, "vocab": 5000, "rank": 256},
        {"requests": 9, "gamma": 5, "size": 1000, "vocab": 5000, "rank": 130, "by_token": True},
        {"kind": "none", "size": 33},
    ],
)
@torch.no_grad()
def test_laws_and_draws_of_blocks(dtype: torch.dtype, shape: dict) -> None:
    checks.check_draft_block(CUDA, seed=1, dtype=dtype, **shape)


@torch.no_grad()
def test_draws_are_those_of_the_reference() -> None:
    for seed in range(20):
        checks.check_draws_of_the_reference(CUDA, seed=seed)


@torch.no_grad()
def test_greedy_rows_take_the_first_of_equal_candidates() -> None:
    checks.check_greedy_ties(CUDA)


@pytest.mark.parametrize(("requests", "gamma"), [(1, 1), (5, 3), (130, 1), (256, 7), (300, 5)])
@pytest.mark.parametrize("levels", [None, 1])
def test_admission(requests: int, gamma: int, levels: int | None) -> None:
    checks.check_admission(CUDA, seed=requests, requests=requests, gamma=gamma, levels=levels)


@pytest.mark.parametrize("kinds", ["some", "none", "all"])
@pytest.mark.parametrize(("vocab", "size"), [(45, 9), (V, 64), (3001, 300), (5000, None)])
def test_verification(kinds: str, vocab: int, size: int | None) -> None:
    for seed, lens in enumerate(([8, 1, 0, 3, 5, 8, 2, 0], [1], [0], [4] * 33)):
        checks.check_verification(CUDA, seed=seed, lens=lens, gamma=7, vocab=vocab, size=size, kinds=kinds)
    checks.check_verification(CUDA, seed=7, lens=[2, 1, 0], gamma=1, vocab=vocab, size=size, kinds=kinds, strided=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 64), (300, 128), (0, 128)])
@torch.no_grad()
def test_context_kv(dtype: torch.dtype, tokens: int, head_dim: int) -> None:
    checks.check_context_kv(CUDA, dtype=dtype, tokens=tokens, head_dim=head_dim, pad=tokens > 1)


def a_step(inputs: dict[str, torch.Tensor], drafter: checks.TinyDrafter) -> tuple[torch.Tensor, ...]:
    """Draft, admit and verify without reading anything back."""
    seed, number = inputs["counter"]
    rows, gamma = inputs["h"].shape[:2]
    block = draft_block.sample_block(
        drafter,
        inputs["h"],
        inputs["anchors"],
        inputs["temperatures"],
        shortlist=20,
        uniforms=counter_uniforms(seed, number, rows, gamma, DRAFT),
        greedy="some",
    )
    ones = torch.ones_like(block.confidence_logits)
    survival = admission.survival_of(block.confidence_logits, ones, torch.zeros_like(ones))
    lens = admission.admit(survival, inputs["budget"]) + 1
    verdict = rejection.verify(
        block,
        lens,
        target_argmax=inputs["target"].argmax(1),
        target_probs=inputs["target"],
        greedy_rows=inputs["temperatures"] == 0,
        greedy="some",
        uniforms=counter_uniforms(seed, number, rows, gamma + 1, ACCEPT),
    )
    return block.tokens, lens, verdict.accept_lens, verdict.out_tokens


@torch.no_grad()
def test_replay_equals_eager_and_draws_anew() -> None:
    """One captured step, replayed with another counter, budget and hidden states each time."""
    requests, gamma, vocab = 16, 5, 200
    drafter = checks.drafter_on(CUDA, "vanilla", vocab, 32, torch.bfloat16, 0)
    generator = torch.Generator(CUDA).manual_seed(0)
    inputs = {
        "h": torch.randn(requests, gamma, 6, device=CUDA, generator=generator).bfloat16(),
        "anchors": torch.arange(requests, device=CUDA),
        "temperatures": torch.arange(requests, device=CUDA).remainder(3) * 0.5,
        "target": torch.randn(requests * (gamma + 1), vocab, device=CUDA, generator=generator).softmax(1),
        "budget": torch.tensor(requests * gamma, device=CUDA),
        "counter": torch.tensor([77, 0], device=CUDA),
    }
    a_step(inputs, drafter)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = a_step(inputs, drafter)
    blocks = []
    for budget in (requests * gamma, 11, 0, 40):
        inputs["counter"][1] += 1
        inputs["budget"].fill_(budget)
        graph.replay()
        for got, want in zip(replayed, a_step(inputs, drafter), strict=True):
            assert got.equal(want)
        assert int(replayed[1].sum()) == requests + budget
        blocks.append(replayed[0].clone())
    assert not blocks[0].equal(blocks[1])
