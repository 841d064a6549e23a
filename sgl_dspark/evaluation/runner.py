"""Offline speculative decoding of many prompts, a few rows at a time (Sec. 2.1, 3; reference protocol).

Every prompt draws from a generator of its own, so that its answer's law and its random numbers do not depend on which
prompts it is decoded with. Shape letters: R requests, G = gamma.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sgl_dspark.evaluation.report import Round, round_of
from sgl_dspark.evaluation.sides import DraftSide
from sgl_dspark.model.target import TargetModel
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.draw import draw
from sgl_dspark.sampling.rejection import verify


@dataclass(frozen=True)
class Decoding:
    """How prompts are answered.

    Attributes
    ----------
    temperature : float
        0 is greedy.
    max_new_tokens : int
    seed : int
        Plus a prompt's index seeds its random numbers.
    threshold : float
        A block is verified up to the first slot whose confidence is below; 0 or less verifies all of it.
    """

    temperature: float = 1.0
    max_new_tokens: int = 2048
    seed: int = 980406
    threshold: float = 0.0


@dataclass
class Sample:
    """One answered prompt.

    Attributes
    ----------
    tokens : list of int
        Response, at most ``max_new_tokens``, an end-of-turn token included.
    rounds : list of Round
        The token sampled at prefill is in no round; rounds that overrun the cap count whole.
    logits : list of list of float
        Confidence logits [rounds][G].
    """

    tokens: list[int]
    rounds: list[Round] = field(default_factory=list)
    logits: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class StepTime:
    """One step of decoding.

    Attributes
    ----------
    drafting, verifying : float
        Seconds; verifying includes everything behind the draft.
    requests : int
        Requests that took part.
    """

    drafting: float
    verifying: float
    requests: int


@dataclass
class _Request:
    """A request in a place: its prompt's index, its room for tokens, its random numbers, its answer."""

    index: int
    room: int
    random: torch.Generator
    sample: Sample


class SpeculativeRunner:
    """Decodes prompts with a target and its draft.

    Parameters
    ----------
    target : TargetModel
    side : DraftSide
        Its draft.
    rows : int
        Requests decoded together; 1 is the paper's protocol, more are faster.
    max_positions : int
        Longest prompt plus response.
    """

    def __init__(self, target: TargetModel, side: DraftSide, rows: int = 1, max_positions: int = 1024) -> None:
        self.target, self.side, self.rows, self.max_positions = target, side, rows, max_positions
        self._cache = target.empty_cache(rows, max_positions + side.gamma + 1)
        side.reserve(rows, max_positions + side.gamma + 1)

    def run(self, prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Sample]:
        """Answer prompts of chat-formatted token ids; samples come in their order.

        Prompts that leave no room below ``max_positions`` get an empty sample.
        """
        found: dict[int, Sample] = {}
        for _ in self.steps(prompts, decoding, found):
            pass
        return [found[index] for index in range(len(prompts))]

    @torch.no_grad()
    def steps(
        self, prompts: Iterable[Sequence[int]], decoding: Decoding, found: dict[int, Sample]
    ) -> Iterator[StepTime]:
        """Decode step by step; ``found`` receives each prompt's sample, by its index, as it ends."""
        waiting = iter(enumerate(prompts))
        places: dict[int, _Request] = {}
        while True:
            for place in [p for p in range(self.rows) if p not in places]:
                request = self._admit(place, waiting, decoding, found)
                if request is not None:
                    places[place] = request
            if not places:
                return
            yield self._step(places, decoding)
            for place in [p for p, request in places.items() if self._ended(request)]:
                request = places.pop(place)
                request.sample.tokens = request.sample.tokens[: request.room]
                found[request.index] = request.sample

    def _admit(
        self, place: int, waiting: Iterator[tuple[int, Sequence[int]]], decoding: Decoding, found: dict[int, Sample]
    ) -> _Request | None:
        """Prefill the next prompt that takes rounds into a place; None when there are no more."""
        for index, prompt in waiting:
            room = min(decoding.max_new_tokens, self.max_positions - len(prompt))
            if room < 1:
                found[index] = Sample([])
                continue
            random = torch.Generator().manual_seed(decoding.seed + index)
            where = self._index([place])
            self._cache.lengths[place] = 0
            ids = torch.tensor([list(prompt)], device=self.target.device)
            hidden, features = self.target.forward(ids, self._cache, self.side.feature_layers, where)
            assert features is not None
            first = int(self._final(hidden[0, -1:], decoding, torch.rand(1, dtype=torch.float64, generator=random)))
            positions = torch.arange(len(prompt), device=self.target.device)
            behind = torch.cat((ids[0, 1:], self._index([first])))
            self.side.commit(where.expand(len(prompt)), positions, features[0], behind)
            self._cache.lengths[place] = len(prompt)
            request = _Request(index, room, random, Sample([first]))
            if not self._ended(request):
                return request
            found[index] = request.sample
        return None

    def _step(self, places: dict[int, _Request], decoding: Decoding) -> StepTime:
        """Draft, verify and commit one round of every request."""
        requests, gamma = list(places.values()), self.side.gamma
        where = self._index(list(places))
        started = self._now()
        lengths = self._cache.lengths[where]
        anchors = self._index([r.sample.tokens[-1] for r in requests])
        numbers = torch.stack([torch.rand(2 * gamma + 1, dtype=torch.float64, generator=r.random) for r in requests])
        numbers = numbers.to(self.target.device)
        block = self.side.draft(where, lengths, anchors, decoding.temperature, numbers[:, :gamma])
        lens = _verify_lens(block, decoding.threshold)
        drafted = self._now()
        ids = torch.cat((anchors[:, None], block.tokens), 1)[:, : int(lens.max())]
        hidden, features = self.target.forward(ids, self._cache, self.side.feature_layers, where)
        assert features is not None
        verified = torch.arange(ids.shape[1], device=ids.device) < lens[:, None]
        logits = self.target.logits(hidden[verified])
        if decoding.temperature > 0:
            law = (logits.float() / decoding.temperature).softmax(-1)
            verdict = verify(block, lens, target_probs=law, uniforms=numbers[:, gamma:])
        else:
            verdict = verify(block, lens, target_argmax=logits.argmax(-1))
        self._commit(requests, where, lengths, block, lens, verdict.accept_lens, verdict.out_tokens, features)
        return StepTime(drafted - started, self._now() - drafted, len(requests))

    def _commit(
        self,
        requests: Sequence[_Request],
        where: Tensor,
        lengths: Tensor,
        block: DraftBlock,
        lens: Tensor,
        accept_lens: Tensor,
        out_tokens: Tensor,
        features: Tensor,
    ) -> None:
        """Keep what was accepted: the old anchor and correct drafts in both caches, the tokens in the answers."""
        columns = torch.arange(features.shape[1], device=features.device)
        kept = columns < accept_lens[:, None]
        rows, offsets = kept.nonzero(as_tuple=True)
        self.side.commit(where[rows], lengths[rows] + offsets, features[kept], out_tokens[:, : features.shape[1]][kept])
        self._cache.lengths[where] = lengths + accept_lens
        eos = self.target.config.eos_token_ids
        drafts, confidences = block.tokens.tolist(), block.confidence_logits.tolist()
        outcome = zip(requests, lens.tolist(), accept_lens.tolist(), out_tokens.tolist(), strict=True)
        for row, (request, length, accepted, tokens) in enumerate(outcome):
            counted = round_of(drafts[row][: length - 1], accepted - 1, eos)
            request.sample.rounds.append(counted)
            request.sample.logits.append(confidences[row])
            request.sample.tokens += tokens[: counted.emitted]

    def _now(self) -> float:
        """Return the time at which everything that was asked for is done."""
        if self.target.device.type == "cuda":
            # Sync: launches return before the work is done, which would be booked on what waits for it.
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _ended(self, request: _Request) -> bool:
        tokens = request.sample.tokens
        return tokens[-1] in self.target.config.eos_token_ids or len(tokens) >= request.room

    def _final(self, hidden: Tensor, decoding: Decoding, uniform: Tensor) -> Tensor:
        logits = self.target.logits(hidden).float()
        if decoding.temperature == 0:
            return logits.argmax(-1)
        return draw((logits / decoding.temperature).softmax(-1), uniform.to(logits.device))

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), device=self.target.device)


def _verify_lens(block: DraftBlock, threshold: float) -> Tensor:
    """Anchor and leading slots whose confidence reaches ``threshold`` (the released code's evaluation option)."""
    if threshold <= 0:
        return torch.full((len(block.tokens),), block.tokens.shape[1] + 1, device=block.tokens.device)
    confident = block.confidence_logits.sigmoid() >= threshold
    return 1 + confident.cumprod(1).sum(1)
