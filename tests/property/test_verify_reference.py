"""The vectorised verifier against one written as a loop over requests, and greedy decoding over many rounds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.rejection import verify
from tests.support.tiny_draft import HEADS, TinyDrafter

V, D = 6, 6


def reference(block: DraftBlock, r: int, best: Tensor, probs: Tensor, greedy: bool, uniforms: Tensor) -> list[int]:
    """Emit one request's tokens; ``best`` and ``probs`` are its own verify_len rows."""
    emitted: list[int] = []
    for i in range(len(best)):
        if i == len(best) - 1:
            return [*emitted, int(best[i]) if greedy else int(draw(probs[i], uniforms[-1]))]
        token = int(block.tokens[r, i])
        if greedy:
            if token != int(best[i]):
                return [*emitted, int(best[i])]
        else:
            law = torch.zeros(V)
            ids = torch.arange(V) if block.candidates is None else block.candidates[r, i]
            law[ids] = block.probs[r, i]
            if float(uniforms[i]) >= float(probs[i, token] / law[token]):
                return [*emitted, int(draw((probs[i] - law).clamp(min=0), uniforms[-1]))]
        emitted.append(token)
    raise AssertionError("unreachable")


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(HEADS),
    seed=st.integers(0, 10**6),
    shortlist=st.sampled_from([None, 1, 2, 4, V]),
    temperatures=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6),
    gamma=st.integers(1, 4),
    data=st.data(),
)
def test_same_tokens_as_a_loop_over_requests(
    kind: str, seed: int, shortlist: int | None, temperatures: list[float], gamma: int, data: st.DataObject
) -> None:
    requests, generator = len(temperatures), torch.Generator().manual_seed(seed)
    lens = [data.draw(st.integers(1, gamma + 1)) for _ in range(requests)]
    h = torch.randn(requests, gamma, D, generator=generator)
    heat = torch.tensor(temperatures)
    drafter = TinyDrafter(kind, vocab_size=V, seed=seed)
    block = sample_block(drafter, h, torch.arange(requests) % V, heat, shortlist=shortlist, generator=generator)
    logits = torch.randn(sum(lens), V, generator=generator)
    # Targets near the draft's own taste, so that long prefixes are accepted often enough.
    starts = [sum(lens[:r]) for r in range(requests)]
    for r, start in enumerate(starts):
        for i in range(lens[r] - 1):
            logits[start + i, block.tokens[r, i]] += 2
    best, probs = logits.argmax(1), logits.softmax(1)
    uniforms = torch.rand(requests, gamma + 1, dtype=torch.float64, generator=generator)
    got = verify(
        block, torch.tensor(lens), target_argmax=best, target_probs=probs, greedy_rows=heat == 0, uniforms=uniforms
    )
    for r, start in enumerate(starts):
        own = slice(start, start + lens[r])
        wanted = reference(block, r, best[own], probs[own], temperatures[r] == 0, uniforms[r])
        count = int(got.accept_lens[r])
        assert 1 <= count <= lens[r]
        assert got.out_tokens[r].tolist() == wanted + [0] * (gamma + 1 - count)
        assert count == len(wanted)
    assert got.accept_lens.dtype == got.out_tokens.dtype == torch.int64


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(HEADS), seed=st.integers(0, 10**6), shortlist=st.sampled_from([None, 2]))
def test_many_greedy_rounds_give_the_greedy_text(kind: str, seed: int, shortlist: int | None) -> None:
    generator, gamma, requests = torch.Generator().manual_seed(seed), 3, 2
    successor = torch.randint(V, (V, V), generator=generator)
    drafter = TinyDrafter(kind, vocab_size=V, seed=seed)
    texts = [[0, r] for r in range(requests)]
    contributions = [0] * requests
    for _ in range(12):
        anchors = torch.tensor([text[-1] for text in texts])
        h = torch.randn(requests, gamma, D, generator=generator)
        block = sample_block(drafter, h, anchors, torch.zeros(requests), shortlist=shortlist)
        lens = torch.randint(1, gamma + 2, (requests,), generator=generator)
        best = []
        for r, text in enumerate(texts):
            seen = [*text[-2:], *block.tokens[r].tolist()]
            best += [int(successor[seen[i], seen[i + 1]]) for i in range(int(lens[r]))]
        got = verify(block, lens, target_argmax=torch.tensor(best))
        for r, text in enumerate(texts):
            text += got.out_tokens[r, : got.accept_lens[r]].tolist()
            contributions[r] += int(got.accept_lens[r])
    for r, text in enumerate(texts):
        wanted = [0, r]
        while len(wanted) < len(text):
            wanted.append(int(successor[wanted[-2], wanted[-1]]))
        assert text == wanted
        assert len(text) == 2 + contributions[r]
