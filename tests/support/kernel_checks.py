"""What each operation of ``dspark_sglang.kernels`` must satisfy, on whatever device its kernel runs.

The tests run these under Triton's interpreter with tensors of the CPU, and on a GPU. Expected values come from the
torch references or from fp64 on the CPU. Shapes: R requests, G slots, V vocabulary, S shortlist.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_sglang import allocate
from dspark_sglang.kernels import admission, context_kv, draft_block, rejection
from sgl_dspark.sampling import rejection as rejection_reference
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.block import sample_block as sample_block_reference
from sgl_dspark.sampling.counter import DRAFT, counter_uniforms
from tests.support.drafts import tiny_drafter
from tests.support.tiny_draft import TinyDrafter

Device = torch.device
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def on(device: Device, block: DraftBlock) -> DraftBlock:
    parts = (block.tokens, block.confidence_logits, block.candidates, block.probs, block.token_probs)
    return DraftBlock(*(None if part is None else part.to(device) for part in parts))


def drafter_on(device: Device, kind: str, vocab: int, rank: int, dtype: torch.dtype, seed: int) -> TinyDrafter:
    drafter = TinyDrafter(kind, vocab_size=vocab, rank=rank, seed=seed, dtype=dtype, scale=0.7)
    drafter.lm_head = drafter.lm_head.to(device)
    for module in (drafter.markov_head, drafter.confidence_head):
        if module is not None:
            module.to(device)
    return drafter


def check_draft_block(
    device: Device,
    *,
    seed: int,
    requests: int = 4,
    gamma: int = 3,
    size: int = 9,
    vocab: int = 61,
    rank: int = 20,
    dtype: torch.dtype = torch.float32,
    kind: str = "vanilla",
    by_token: bool = False,
) -> None:
    """Judge laws by fp64 along the drawn tokens, and draws by the laws that are handed out."""
    generator = torch.Generator().manual_seed(seed)
    drafter = drafter_on(device, kind, vocab, rank, dtype, seed)
    h = torch.randn(requests, gamma, 6, generator=generator).to(device, dtype)
    anchors = torch.randint(vocab, (requests,), generator=generator).to(device)
    temperatures = (torch.tensor([0.0, 1.0, 0.6, 1.7])[torch.arange(requests) % 4]).to(device)
    uniforms = torch.rand(requests, gamma, generator=generator, dtype=torch.float64).to(device)
    got = draft_block.sample_block(
        drafter, h, anchors, temperatures, shortlist=size, uniforms=uniforms, greedy="some", by_token=by_token
    )
    assert got.candidates is not None
    assert got.probs is not None
    candidates, base = got.candidates, drafter.base_logits(h)
    logits = base.gather(2, candidates).double()
    assert logits.sort(2).values.equal(base.topk(size, 2).values.double().sort(2).values)
    assert not by_token or (candidates.diff(dim=2) > 0).all()
    previous = torch.cat([anchors.unsqueeze(1), got.tokens[:, :-1]], 1)
    if drafter.markov_head is not None:
        w1, w2 = drafter.markov_head.markov_w1.weight.double(), drafter.markov_head.markov_w2.weight.double()
        logits = logits + (w2[candidates] * w1[previous].unsqueeze(2)).sum(-1)
    choices = (candidates == got.tokens.unsqueeze(2)).int().argmax(2, keepdim=True)
    tolerance = TOLERANCE[dtype]
    scale = 1 + logits.abs().max().item()
    sampled = temperatures > 0
    assert (logits.amax(2) - logits.gather(2, choices).squeeze(2))[~sampled].le(tolerance * scale).all()
    law = (logits[sampled] / temperatures[sampled].view(-1, 1, 1)).softmax(2)
    torch.testing.assert_close(got.probs[sampled].double(), law, rtol=0, atol=tolerance * scale)
    one_hot = torch.zeros_like(got.probs).scatter_(2, choices, 1.0)
    assert got.probs[~sampled].equal(one_hot[~sampled])
    assert got.token_probs is not None
    assert got.token_probs.equal(got.probs.gather(2, choices).squeeze(2))
    through = got.probs.double().cumsum(2)
    at = uniforms * through[..., -1]
    upper = through.gather(2, choices).squeeze(2)
    lower = upper - got.token_probs.double()
    assert (((lower - 1e-12 <= at) & (at <= upper + 1e-12)) | ~sampled.unsqueeze(1)).all()
    torch.testing.assert_close(got.confidence_logits, drafter.confidence_logits(h, previous))


def check_draws_of_the_reference(device: Device, *, seed: int, kind: str = "vanilla") -> None:
    """Compare tokens that come from the same uniforms."""
    generator = torch.Generator().manual_seed(seed)
    requests, gamma = 5, 4
    drafter = drafter_on(device, kind, 53, 20, torch.float32, seed)
    h = torch.randn(requests, gamma, 6, generator=generator).to(device)
    anchors = torch.randint(53, (requests,), generator=generator).to(device)
    temperatures = torch.tensor([0.0, 1.0, 0.6, 1.7, 0.0]).to(device)
    number, step = torch.tensor([seed - 3, 5 * seed], device=device)
    given = {"shortlist": 11, "uniforms": counter_uniforms(number, step, requests, gamma, DRAFT), "by_token": True}
    want = sample_block_reference(drafter, h, anchors, temperatures, **given)
    got = draft_block.sample_block(drafter, h, anchors, temperatures, **given)
    assert got.tokens.equal(want.tokens)
    torch.testing.assert_close(got.probs, want.probs, rtol=0, atol=1e-6)


def check_greedy_ties(device: Device) -> None:
    """Logits and weights are multiples of 1/8 whose sums are exact, so that ties are exact, too."""
    generator = torch.Generator().manual_seed(1)
    drafter = drafter_on(device, "vanilla", 31, 5, torch.float32, 0)
    assert drafter.markov_head is not None
    drafter.lm_head = (torch.randint(-2, 3, (31, 6), generator=generator) / 2).to(device)
    for weight in (drafter.markov_head.markov_w1.weight, drafter.markov_head.markov_w2.weight):
        weight.data.copy_(torch.randint(-2, 3, weight.shape, generator=generator) / 2)
    h = (torch.randint(-2, 3, (12, 3, 6), generator=generator) / 2).to(device)
    anchors, zeros = torch.arange(12, device=device), torch.zeros(12, device=device)
    want = sample_block_reference(drafter, h, anchors, zeros, shortlist=20, greedy="all", by_token=True)
    got = draft_block.sample_block(drafter, h, anchors, zeros, shortlist=20, greedy="all", by_token=True)
    assert got.probs is None
    assert got.tokens.equal(want.tokens)
    base = drafter.proposal_logits(h)[0]
    assert ((base == base.amax(2, keepdim=True)).sum(2) > 1).any()


def check_admission(device: Device, *, seed: int, requests: int, gamma: int, levels: int | None = None) -> None:
    """``levels`` few confidences make ties; some confidences are NaN; the budget is a number or a tensor."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(requests, gamma, generator=generator) * 2
    if levels is not None:
        logits = (logits * levels).round() / levels
    logits[torch.rand(requests, gamma, generator=generator) < 0.1] = torch.nan
    inverse = torch.rand(requests, gamma, generator=generator) + 0.5 if levels is None else torch.ones_like(logits)
    biases = torch.randn(requests, gamma, generator=generator) * (levels is None)
    survival = admission.survival_of(logits.to(device), inverse.to(device), biases.to(device))
    want = allocate.survival_of(logits, inverse, biases)
    torch.testing.assert_close(survival.cpu(), want, rtol=1e-5, atol=1e-30)
    assert (survival[:, 1:] <= survival[:, :-1]).all()
    total = requests * gamma
    for budget in sorted({0, 1, total // 3, total // 2, total - 1, total, total + 5} - {-1}):
        expected = allocate.admit(survival.cpu(), budget)
        assert admission.admit(survival, budget).cpu().equal(expected)
        assert admission.admit(survival, torch.tensor(budget, device=device)).cpu().equal(expected)


def blocks(seed: int, lens: Tensor, gamma: int, vocab: int, size: int | None) -> tuple[DraftBlock, Tensor, Tensor]:
    """Make drafts, their sparse or dense law, and a target that resembles it, so that every outcome occurs."""
    generator = torch.Generator().manual_seed(seed)
    requests = len(lens)
    rows = int(lens.sum()) + 2
    candidates = None
    if size is not None:
        candidates = torch.stack([torch.randperm(vocab, generator=generator)[:size] for _ in range(requests * gamma)])
        candidates = candidates.view(requests, gamma, size)
    logits = torch.randn(requests, gamma, size or vocab, generator=generator)
    probs = logits.softmax(2)
    choices = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(requests, gamma, 1)
    tokens = (choices if candidates is None else candidates.gather(2, choices)).squeeze(2)
    block = DraftBlock(tokens, logits[..., 0], candidates, probs, probs.gather(2, choices).squeeze(2))
    target_logits = torch.randn(rows, vocab, generator=generator) * 0.7
    firsts = lens.cumsum(0) - lens
    for r, owned in enumerate(lens.tolist()):
        for j in range(min(gamma, owned)):
            here = slice(None) if candidates is None else candidates[r, j]
            target_logits[firsts[r] + j, here] += logits[r, j] + 1.5
    return block, target_logits.softmax(1), torch.rand(requests, gamma + 1, generator=generator, dtype=torch.float64)


def check_verification(
    device: Device,
    *,
    seed: int,
    lens: list[int],
    gamma: int,
    vocab: int = 45,
    size: int | None = 9,
    kinds: str = "some",
    strided: bool = False,
) -> int:
    """Compare with the reference over the requests that verify anything; gives how many drafts were accepted."""
    verify_lens = torch.tensor(lens)
    block, probs, uniforms = blocks(seed, verify_lens, gamma, vocab, size)
    best = probs.argmax(1)
    greedy_rows = {"some": torch.arange(len(lens)) % 3 == 1, "none": torch.zeros(len(lens), dtype=torch.bool)}.get(
        kinds, torch.ones(len(lens), dtype=torch.bool)
    )
    # Some drafts of greedy requests must be right.
    for r in range(0, len(lens), 2):
        first = int(verify_lens[:r].sum())
        for j in range(min(gamma, lens[r] - 1)):
            block.tokens[r, j] = best[first + j] if greedy_rows[r] else block.tokens[r, j]
    live = (verify_lens > 0).nonzero().squeeze(1)
    parts = (block.tokens, block.confidence_logits, block.candidates, block.probs, block.token_probs)
    alive = DraftBlock(*(None if part is None else part[live] for part in parts))
    given = {"target_argmax": best, "target_probs": probs, "greedy": kinds}
    want = rejection_reference.verify(
        alive, verify_lens[live], greedy_rows=greedy_rows[live], uniforms=uniforms[live], **given
    )
    if strided:
        given["target_probs"] = torch.stack([probs, probs], 2)[..., 0]
        uniforms = uniforms.T.contiguous().T
    for name in ("target_argmax", "target_probs"):
        given[name] = given[name].to(device)
    got = rejection.verify(
        on(device, block),
        verify_lens.to(device),
        greedy_rows=greedy_rows.to(device),
        uniforms=uniforms.to(device),
        **given,
    )
    accept_lens, out = torch.zeros(len(lens), dtype=torch.int64), torch.zeros(len(lens), gamma + 1, dtype=torch.int64)
    accept_lens[live], out[live] = want.accept_lens, want.out_tokens
    assert got.accept_lens.cpu().equal(accept_lens)
    assert got.out_tokens.cpu().equal(out)
    assert got.residual_fallbacks.item() == want.residual_fallbacks.item()
    return int((want.accept_lens - 1).sum())


def check_context_kv(device: Device, *, dtype: torch.dtype, tokens: int, head_dim: int = 6, pad: bool = False) -> None:
    """Compare with the fp32 reference on the CPU from the same features and weights; untouched slots stay."""
    drafter = tiny_drafter("vanilla", dtype=dtype, head_dim=head_dim, num_key_value_heads=2)
    exact = tiny_drafter("vanilla", dtype=dtype, head_dim=head_dim, num_key_value_heads=2).float()
    config, generator = drafter.config, torch.Generator().manual_seed(3)
    features = (torch.randn(tokens, config.num_features, generator=generator) * 0.5).to(dtype)
    positions = torch.randint(40, (tokens,), generator=generator)
    slots = torch.randperm(2 * tokens + 3, generator=generator)[:tokens]
    drafter.to(device).fuse_for_serving()
    shape = (config.num_hidden_layers, 2, 2 * tokens + 3, config.num_key_value_heads, head_dim)
    buffer = torch.full(shape, 7.0, dtype=dtype, device=device)
    want = torch.full(shape, 7.0)
    keys, values = exact.context_kv(exact.project_context(features.float()), positions)
    kept = torch.arange(tokens) % 3 != 1 if pad else torch.ones(tokens, dtype=torch.bool)
    want[:, 0, slots[kept]], want[:, 1, slots[kept]] = keys[:, kept], values[:, kept]
    written = torch.where(kept, slots, torch.tensor(-1)).to(device)
    context_kv.write_context(drafter, buffer, features.to(device), positions.to(device), written)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(buffer.float().cpu(), want, rtol=bound, atol=bound * want.abs().max().item())
