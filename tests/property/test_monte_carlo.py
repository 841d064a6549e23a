"""The shipped fp32 sampler and verifier against the target's exact law, by chi-square with stated power.

Fixed seeds: a failure is a defect, not bad luck. 120,000 rounds over the 64 sequences of gamma + 1 = 3 tokens see an
effect of w = 0.03 with a power above 0.99 at the level used; the biased control is w = 0.08 away.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl_dspark.sampling import rejection
from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.rejection import acceptance_probability, verify
from sgl_dspark.sampling.statistics import ChiSquare, chi_square, chi_square_power
from tests.support.tiny_draft import HEADS, TinyDrafter

V, GAMMA, D = 4, 2, 6
ROUNDS = 120_000
ALPHA = 1e-3


def target_tables(generator: torch.Generator, impossible_after: int) -> list[Tensor]:
    """Make the target's law after i tokens, [V**i, V]; after some number of them one token is impossible."""
    tables = []
    for i in range(GAMMA + 1):
        law = (1.5 * torch.randn(V**i, V, generator=generator)).softmax(1)
        law[:, 1] *= i != impossible_after
        tables.append(law / law.sum(1, keepdim=True))
    return tables


def joint(tables: list[Tensor]) -> Tensor:
    law = torch.ones(1, dtype=torch.float64)
    for table in tables:
        law = (law[:, None] * table.double()).flatten()
    return law


def prefix_ids(tokens: Tensor, length: int) -> Tensor:
    """Read the first ``length`` tokens of every row as a number in base V."""
    ids = torch.zeros(len(tokens), dtype=torch.int64)
    for j in range(length):
        ids = ids * V + tokens[:, j]
    return ids


def lengths(policy: str, block: DraftBlock) -> Tensor:
    if policy == "mixed":
        return 1 + torch.arange(ROUNDS) % (GAMMA + 1)
    if policy == "threshold":
        # The whole batch shares h and anchor, so the median is a constant that leaves both outcomes at slot 1.
        return 1 + (block.confidence_logits >= block.confidence_logits.median(0).values).cumprod(1).sum(1)
    if policy == "anticipating":
        return torch.where(block.tokens[:, 0] == 3, 1, GAMMA + 1)
    return torch.full((ROUNDS,), GAMMA + 1)


def simulate(kind: str, shortlist: int | None, policy: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run ROUNDS independent rounds; return counts of the first gamma+1 tokens, their exact law, accept lengths."""
    generator = torch.Generator().manual_seed(seed)
    drafter = TinyDrafter(kind, vocab_size=V, seed=seed, scale=0.5)
    # With few candidates an impossible token would leave blocks that are never accepted.
    tables = target_tables(generator, 1 if shortlist is None else GAMMA)
    h = torch.randn(1, GAMMA, D, generator=generator).expand(ROUNDS, -1, -1)
    anchors, temperatures = torch.full((ROUNDS,), 2), torch.ones(ROUNDS)
    temperatures[::2] = 0.7
    block = sample_block(drafter, h, anchors, temperatures, shortlist=shortlist, generator=generator)
    verify_lens = lengths(policy, block)
    rows = torch.stack([tables[i][prefix_ids(block.tokens, i)] for i in range(GAMMA + 1)], 1)
    flat = rows[torch.arange(GAMMA + 1) < verify_lens[:, None]]
    got = verify(block, verify_lens, target_probs=flat, generator=generator)
    assert (got.accept_lens >= 1).all()
    assert (got.accept_lens <= verify_lens).all()
    assert got.residual_fallbacks.item() < ROUNDS * 1e-4
    tokens = got.out_tokens.clone()
    for i in range(1, GAMMA + 1):
        uniforms = torch.rand(ROUNDS, dtype=torch.float64, generator=generator)
        following = draw(tables[i][prefix_ids(tokens, i)], uniforms)
        tokens[:, i] = torch.where(got.accept_lens > i, tokens[:, i], following)
    return prefix_ids(tokens, GAMMA + 1).bincount(minlength=V ** (GAMMA + 1)), joint(tables), got.accept_lens


def check(counts: Tensor, law: Tensor) -> ChiSquare:
    return chi_square(counts.numpy(), law.numpy(), effect_size=0.03, alpha=ALPHA)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("shortlist", "policy"), [(None, "full"), (2, "mixed"), (3, "threshold"), (1, "full")])
def test_rounds_have_the_target_law(kind: str, shortlist: int | None, policy: str) -> None:
    counts, law, accept_lens = simulate(kind, shortlist, policy, seed=40 + HEADS.index(kind))
    result = check(counts, law)
    assert result.power > 0.99
    assert result.p_value > ALPHA
    # All kinds of outcome must have been exercised for the law to mean something.
    assert (accept_lens.bincount(minlength=GAMMA + 2)[1:] > ROUNDS // 1000).all()


def test_biased_acceptance_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rejection, "acceptance_probability", lambda target_p, draft_p: acceptance_probability(1.1 * target_p, draft_p)
    )
    counts, law, _ = simulate("vanilla", None, "full", seed=41)
    assert check(counts, law).p_value < 1e-6


def test_replacement_from_the_target_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rejection, "residual_law", lambda target, draft, _: (target, torch.zeros(len(target), dtype=torch.bool))
    )
    counts, law, _ = simulate("vanilla", None, "full", seed=41)
    assert check(counts, law).p_value < 1e-6


def test_anticipating_lengths_fail_the_same_test() -> None:
    counts, law, _ = simulate("vanilla", None, "anticipating", seed=41)
    assert check(counts, law).p_value < 1e-6


def test_power_is_what_the_docstring_says() -> None:
    assert chi_square_power(V ** (GAMMA + 1) - 1, ROUNDS, 0.03, ALPHA) > 0.99
