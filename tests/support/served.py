"""The laws behind served texts: the target's own at every token, and what the pair's draft would propose there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sgl_dspark.model.checkpoint import load_drafter
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.sampling.block import DraftBlock, sample_block
from sgl_dspark.sampling.rejection import verify
from sgl_dspark.training.forward import blocks_hidden
from tests.support.exact_law import ROWS_AT_ONCE, target_model, warped
from tests.support.pair import DRAFT


@dataclass(frozen=True)
class Positions:
    """Tokens of several texts, flat.

    Attributes
    ----------
    tokens : int64 [N]
        What was served.
    laws : fp64 [N, V]
        The target's law there, under the texts' own settings.
    plain_laws : fp64 [N, V]
        The same without what adjusted the logits.
    block : DraftBlock
        One draft for each position, drawn at temperature 1 after the served prefix.
    """

    tokens: Tensor
    laws: Tensor
    plain_laws: Tensor
    block: DraftBlock

    @property
    def draft_laws(self) -> Tensor:
        """What the draft was drawn from, fp32 [N, V]."""
        assert self.block.probs is not None
        return self.block.probs[:, 0]

    def emitted_instead(self, generator: torch.Generator) -> Tensor:
        """Verify every draft with the shipped verifier; return the token each position would have emitted."""
        rows = len(self.tokens)
        # The row of the bonus is never looked at; the same law fills it.
        flat = self.laws.float().repeat_interleave(2, 0)
        verdict = verify(self.block, torch.full((rows,), 2), target_probs=flat, generator=generator)
        return verdict.out_tokens[:, 0]


@cache
def drafter() -> Drafter:
    """Load the pair's draft in fp32."""
    return load_drafter(
        DRAFT,
        dtype=torch.float32,
        device=torch.device("cpu"),
        target_embed=target_model().get_input_embeddings().weight,
        target_lm_head=target_model().get_output_embeddings().weight,
    )


@torch.no_grad()
def served_positions(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    generator: torch.Generator,
    top_k: int = 0,
    top_p: float = 1.0,
    adjusted: Callable[[Tensor, Sequence[int]], Tensor] | None = None,
) -> Iterator[Positions]:
    """Yield the positions of answers served at temperature 1, some texts at a time; texts of like length together.

    ``adjusted`` gives the logits [N, V] that the N tokens of an answer were drawn by, from the target's own.
    """
    texts = sorted(zip(prompts, answers, strict=True), key=lambda pair: len(pair[0]) + len(pair[1]))
    for start in range(0, len(texts), ROWS_AT_ONCE):
        part = texts[start : start + ROWS_AT_ONCE]
        width = max(len(p) + len(a) for p, a in part)
        ids = torch.tensor([[*p, *a, *[0] * (width - len(p) - len(a))] for p, a in part])
        # Padding on the right is never seen by what is read here, since attention is causal.
        out = target_model()(ids, output_hidden_states=True)
        features = torch.cat([out.hidden_states[layer + 1] for layer in drafter().config.target_layer_ids], -1)
        # The anchor of a block is the token before the one that its first slot proposes.
        columns = torch.arange(max(len(a) for _, a in part))
        anchors = torch.tensor([len(p) - 1 for p, _ in part])[:, None] + columns
        keep = columns < torch.tensor([len(a) for _, a in part])[:, None]
        anchors = torch.where(keep, anchors, 0)
        hidden = blocks_hidden(drafter(), features, ids, anchors, keep)[keep][:, :1]
        block = sample_block(
            drafter(), hidden, ids.gather(1, anchors)[keep], torch.ones(len(hidden)), generator=generator
        )
        logits = out.logits[torch.arange(len(part))[:, None], anchors][keep]
        plain = laws = warped(logits, 1.0, top_k, top_p)
        if adjusted is not None:
            owns = logits.split([len(a) for _, a in part])
            logits = torch.cat([adjusted(own, a) for own, (_, a) in zip(owns, part, strict=True)])
            laws = warped(logits, 1.0, top_k, top_p)
        tokens = torch.tensor([token for _, answer in part for token in answer])
        yield Positions(tokens, laws, plain, block)
