"""Batch-1 speculative decoding of one prompt after another through the cached incremental path (Sec. 2.1, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sgl_dspark.evaluation.report import Round, round_of
from sgl_dspark.model.drafter import Drafter
from sgl_dspark.model.incremental import IncrementalDrafter
from sgl_dspark.sampling.block import sample_block
from sgl_dspark.sampling.rejection import verify
from sgl_dspark.sampling.warp import target_probs
from sgl_dspark.training.target import KeyValueCache, TargetModel


@dataclass(frozen=True)
class Sample:
    """One answered prompt.

    Attributes
    ----------
    tokens : list of int
        Response, at most ``max_new_tokens``, an end-of-turn token included.
    rounds : list of Round
        The token sampled at prefill is in no round; rounds that overrun the cap count whole.
    """

    tokens: list[int]
    rounds: list[Round]


class SpeculativeRunner:
    """Decodes prompts with a target and its draft.

    Parameters
    ----------
    target : TargetModel
    drafter : Drafter
        Of the target's dtype, sharing its embedding and head.
    max_positions : int
        Longest prompt plus response.
    """

    def __init__(self, target: TargetModel, drafter: Drafter, max_positions: int = 1024) -> None:
        self.target, self.drafter = target, drafter
        gamma = drafter.config.gamma
        self._cache = KeyValueCache.empty(target.config, 1, max_positions + gamma + 1, target.dtype)
        self._layers = drafter.config.target_layer_ids
        self.max_positions = max_positions

    @torch.no_grad()
    def run(self, prompt: Sequence[int], *, temperature: float, max_new_tokens: int, seed: int) -> Sample:
        """Answer one prompt.

        Parameters
        ----------
        prompt : sequence of int
            Chat-formatted token ids.
        temperature : float
            0 is greedy.
        max_new_tokens : int
        seed : int
            Of this sample's random numbers.
        """
        random = torch.Generator().manual_seed(seed)
        temperatures = torch.tensor([temperature], dtype=torch.float32)
        eos = self.target.config.eos_token_ids
        context = IncrementalDrafter(self.drafter)
        self._cache.lengths.zero_()
        hidden, features = self._forward(list(prompt))
        self._commit(context, features, len(prompt))
        first = self._law(hidden[-1:], temperatures)
        tokens = [int(torch.multinomial(first, 1, generator=random) if temperature > 0 else first.argmax())]
        rounds: list[Round] = []
        room = min(max_new_tokens, self.max_positions - len(prompt))
        while tokens[-1] not in eos and len(tokens) < room:
            anchor = torch.tensor([tokens[-1]])
            h = context.block_hidden(tokens[-1])[None]
            block = sample_block(self.drafter, h, anchor, temperatures, generator=random)
            drafts = block.tokens[0].tolist()
            hidden, features = self._forward([tokens[-1], *drafts])
            lens = torch.tensor([len(drafts) + 1])
            if temperature > 0:
                law = self._law(hidden, temperatures.expand(len(hidden)))
                verdict = verify(block, lens, target_probs=law, generator=random)
            else:
                verdict = verify(block, lens, target_argmax=self.target.logits(hidden).argmax(-1))
            accepted = int(verdict.accept_lens[0])
            self._commit(context, features, accepted)
            found = round_of(drafts, accepted - 1, eos)
            rounds.append(found)
            tokens += verdict.out_tokens[0, : found.emitted].tolist()
        return Sample(tokens[:room], rounds)

    def _forward(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        hidden, features = self.target.forward(torch.tensor([ids]), self._cache, self._layers)
        assert features is not None
        return hidden[0], features[0]

    def _commit(self, context: IncrementalDrafter, features: Tensor, count: int) -> None:
        """Keep the first ``count`` positions of the last forward in both caches."""
        context.append(features[:count])
        self._cache.lengths += count

    def _law(self, hidden: Tensor, temperatures: Tensor) -> Tensor:
        """Target law of each row; one-hot for greedy rows."""
        rows = len(hidden)
        off, one, zero = torch.zeros(rows, dtype=torch.long), torch.ones(rows), torch.zeros(rows)
        return target_probs(self.target.logits(hidden), temperatures, off, one, zero)
