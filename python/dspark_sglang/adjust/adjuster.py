"""The worker's side of adjusted requests: what is kept between steps, and the adjustments of the next one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark_sglang import compat
from dspark_sglang.adjust import traits as t
from dspark_sglang.adjust.answers import Answers
from dspark_sglang.adjust.grammars import GrammarWalk
from dspark_sglang.adjust.prefill import SettledSampler, continue_penalties
from dspark_sglang.adjust.processors import ProcessedRequests
from dspark_sglang.adjust.seeds import SeededRequests
from dspark_sglang.adjust.settings import Biases, PenalisedRequests
from dspark_sglang.adjust.step import StepAdjustments
from sgl_dspark.sampling.penalties import Penalties

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from torch import Tensor

logger = logging.getLogger(__name__)


class Adjuster:
    """Makes the `StepAdjustments` of each step; one per worker.

    Parameters
    ----------
    runner : ModelRunner
        Of the target.
    width : int
        W = gamma + 1.
    device : torch.device
    lost_answer : callable
        Told when an answer had to be read back from the host since no prefill of its was seen.
    """

    def __init__(self, runner: ModelRunner, width: int, device: torch.device, lost_answer: Callable[[], None]) -> None:
        slots, self._vocab_size = compat.num_request_rows(runner), runner.model_config.vocab_size
        self._runner, self._width, self._device = runner, width, device
        self._traits = t.RequestTraits(slots)
        self._answers = Answers(slots, self._vocab_size, device)
        # Of requests with a custom processor: slot to (generation, answer).
        self._host_answers: dict[int, tuple[int, list[int]]] = {}
        self._bias_of_slot: dict[int, tuple[int, Tensor, Tensor]] = {}
        self._sampler = runner.sampler = SettledSampler(runner.sampler)
        self._lost_answer = lost_answer

    def before_prefill(self, batch: ScheduleBatch) -> None:
        """Prepare how SGLang's sampler draws the first tokens."""
        # A prefill without an answer is not sampled: what was prepared for one is not another's.
        self._sampler.seeded = self._sampler.ends = self._sampler.processed = None
        slots, _, flags = self._look(batch)
        if not flags.any():
            return
        if (flags & (t.SHORTEST | t.CONSTRAINED | t.PROCESSED)).any():
            self._sampler.ends = torch.tensor([t.end_token(request) for request in batch.reqs])
        if (flags & t.PROCESSED).any() and batch.sampling_info.has_custom_logit_processor:
            info, requests = batch.sampling_info, dict(enumerate(batch.reqs))
            answers = {i: list(request.output_ids) for i, request in requests.items()}
            self._sampler.processed = ProcessedRequests(
                info.custom_logit_processor, info.custom_params, answers, requests
            )
        seeded = np.flatnonzero(flags & t.SEEDED).tolist()
        if seeded:
            self._sampler.seeded = self._seeded(seeded, batch, slots, ahead=0)
        for i in np.flatnonzero(flags & (t.PENALISED | t.SHORTEST)).tolist():
            request = batch.reqs[i]
            earlier = list(request.output_ids)
            if earlier:
                barred = t.stop_tokens(request) if len(earlier) < self._traits.min_new_tokens[slots[i]] else []
                coefficients = self._traits.coefficients[slots[i]].tolist()
                continue_penalties(batch.sampling_info, i, earlier, coefficients, barred)

    def after_prefill(self, batch: ScheduleBatch, next_tokens: Tensor) -> None:
        """Note the first tokens of answers; a chunk that is not a prompt's last is noted too and overwritten later."""
        slots, generations, flags = self._look(batch)
        for i in np.flatnonzero(flags & (t.PENALISED | t.PROCESSED)).tolist():
            slot, generation, request = int(slots[i]), int(generations[i]), batch.reqs[i]
            earlier = list(request.output_ids)
            if flags[i] & t.PENALISED:
                self._answers.begin(slot, generation, earlier, next_tokens[i])
            if flags[i] & t.PROCESSED:
                # Sync: custom processors read the answer on the host.
                self._host_answers[slot] = (generation, [*earlier, int(next_tokens[i])])

    def begin(self, batch: ScheduleBatch, barrier: Callable[[], None] | None) -> StepAdjustments | None:
        """Give the adjustments of a decode step; None if no request asks for any.

        Parameters
        ----------
        barrier : callable or None
            SGLang's: advances the matchers over what the last step emitted.
        """
        slots, generations, flags = self._look(batch)
        if not flags.any():
            return None
        lengths = batch.seq_lens_cpu.numpy() + 1 - self._traits.prompt_lens[slots]

        def places(flag: int) -> list[int]:
            found: list[int] = np.flatnonzero(flags & flag).tolist()
            return found

        seeded, constrained = places(t.SEEDED), places(t.CONSTRAINED)
        grammar = None
        if constrained:
            if barrier is not None:
                barrier()
            grammars = {i: batch.reqs[i].grammar for i in constrained}
            grammar = GrammarWalk(grammars, self._width, self._vocab_size)
        return StepAdjustments(
            adjusted=flags != 0,
            penalised=self._penalised(batch, places(t.PENALISED), slots, generations, lengths),
            biases=self._biases(batch, places(t.BIASED), places(t.SHORTEST), slots, generations, lengths),
            grammar=grammar,
            processors=self._processors(batch, places(t.PROCESSED), slots, generations, lengths),
            seeded=self._seeded(seeded, batch, slots) if seeded else None,
        )

    def _look(self, batch: ScheduleBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, generations = compat.request_identities(batch, self._runner)
        slots, numbers = rows.numpy(), generations.numpy()
        return slots, numbers, self._traits.look(batch.reqs, slots, numbers)

    def _seeded(self, places: list[int], batch: ScheduleBatch, slots: np.ndarray, *, ahead: int = 1) -> SeededRequests:
        seeds = torch.from_numpy(self._traits.seeds[slots[places]]).to(self._device)
        at = torch.tensor(places)
        return SeededRequests(at, seeds, batch.seq_lens[at.to(self._device)] + ahead)

    def _penalised(
        self, batch: ScheduleBatch, places: list[int], slots: np.ndarray, generations: np.ndarray, lengths: np.ndarray
    ) -> PenalisedRequests | None:
        if not places:
            return None
        own = slots[places]
        known = self._answers.knows(own, generations[places])
        for i in np.flatnonzero(~known).tolist():
            self._recover(batch, places[i], slots, generations, lengths)
        coefficients = torch.from_numpy(self._traits.coefficients[own]).to(self._device)
        penalties = Penalties(coefficients[:, 0], coefficients[:, 1], coefficients[:, 2])
        return PenalisedRequests(places, self._answers.rows(own), lengths[places].tolist(), penalties, self._answers)

    def _recover(
        self, batch: ScheduleBatch, place: int, slots: np.ndarray, generations: np.ndarray, lengths: np.ndarray
    ) -> None:
        """Begin an answer from what the host knows of it, which under overlap may lack the last tokens."""
        self._lost_answer()
        logger.error("penalties: the answer of request %s was not followed from its start", batch.reqs[place].rid)
        earlier = list(batch.reqs[place].output_ids)[: int(lengths[place]) - 1]
        anchor = batch.spec_info.bonus_tokens[place]
        self._answers.begin(int(slots[place]), int(generations[place]), earlier, anchor)

    def _biases(
        self,
        batch: ScheduleBatch,
        biased: list[int],
        shortest: list[int],
        slots: np.ndarray,
        generations: np.ndarray,
        lengths: np.ndarray,
    ) -> Biases:
        added, barred = {}, {}
        for i in biased:
            kept = self._bias_of_slot.get(int(slots[i]))
            if kept is None or kept[0] != generations[i]:
                # Keys are text, of which "1" and "01" are one token; SGLang lets the last win.
                given = {int(token): value for token, value in batch.reqs[i].sampling_params.logit_bias.items()}
                tokens = torch.tensor(list(given), dtype=torch.int64, device=self._device)
                values = torch.tensor(list(given.values()), dtype=torch.float32, device=self._device)
                kept = self._bias_of_slot[int(slots[i])] = (int(generations[i]), tokens, values)
            added[i] = kept[1:]
        for i in shortest:
            missing = int(self._traits.min_new_tokens[slots[i]] - lengths[i])
            if missing > 0:
                barred[i] = (torch.tensor(t.stop_tokens(batch.reqs[i]), device=self._device), missing)
        return Biases(added, barred)

    def _processors(
        self, batch: ScheduleBatch, places: list[int], slots: np.ndarray, generations: np.ndarray, lengths: np.ndarray
    ) -> ProcessedRequests | None:
        info = batch.sampling_info
        if not places or not info.has_custom_logit_processor:
            return None
        answers = {}
        for i in places:
            generation, answer = self._host_answers.get(int(slots[i]), (-1, []))
            if generation != generations[i]:
                self._lost_answer()
                answer = list(batch.reqs[i].output_ids)
                self._host_answers[int(slots[i])] = (int(generations[i]), answer)
            answers[i] = answer
        requests = {i: batch.reqs[i] for i in places}
        return ProcessedRequests(info.custom_logit_processor, info.custom_params, answers, requests)
