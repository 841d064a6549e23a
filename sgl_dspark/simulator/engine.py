"""One serving engine, step by step: a waiting queue, prefill steps, decode steps of the running requests.

The order is SGLang's: prefill goes first while requests wait and slots are free; otherwise every running request takes
one decode step. Read ``run`` top to bottom. Letters: R running requests, G = gamma slots, N requests, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sgl_dspark.errors import ConfigError
from sgl_dspark.simulator.acceptance import Acceptance, Drafts, num_correct
from sgl_dspark.simulator.arrivals import Floats, Ints, Workload, at_least
from sgl_dspark.simulator.log import Log, StepRow
from sgl_dspark.simulator.machines import Machine

EMPTY = -1


@dataclass(frozen=True)
class EngineConfig:
    """Limits of the engine.

    Attributes
    ----------
    max_running : int
        S: requests that decode together.
    prefill_chunk_tok : int
        Prompt tokens of one prefill step, at most; longer prompts take several.
    """

    max_running: int = 64
    prefill_chunk_tok: int = 8192

    def __post_init__(self) -> None:
        at_least("max_running", self.max_running, 1)
        at_least("prefill_chunk_tok", self.prefill_chunk_tok, 1)


@dataclass(frozen=True)
class Batch:
    """The running requests of one decode step.

    Attributes
    ----------
    slots, generations : int64 [R]
        Ascending slot ids, and how often each slot had been given away before.
    context_tokens : int
        Tokens of context of all of them together.
    """

    slots: Ints
    generations: Ints
    context_tokens: int


@dataclass(frozen=True)
class Plan:
    """What one decode step verifies.

    Attributes
    ----------
    lens : int64 [R]
        Drafts verified per request, 0..G, anchors excluded.
    drafted : int
        Requests that drafted; 0 makes it a plain step.
    predicted_tokens, predicted_s : float
        The planner's own expectation, NaN where it has none.
    fallback : str
        Name of the fallback it took, or "".
    """

    lens: Ints
    drafted: int
    predicted_tokens: float = float("nan")
    predicted_s: float = float("nan")
    fallback: str = ""


class Controller(Protocol):
    """A verification policy; one object serves one run."""

    def plan(self, batch: Batch, drafts: Drafts) -> Plan:
        """Decide a decode step. Which part of ``drafts`` may be read is the policy's business to get right."""
        ...


class Engine:
    """Serve one workload with one policy.

    Parameters
    ----------
    config : EngineConfig
        Limits.
    workload : Workload
        N requests.
    acceptance : Acceptance
        Drafts and outcomes of the same N requests.
    machine : Machine
        What steps really take.
    controller : Controller
        The policy; None never drafts.
    """

    def __init__(
        self,
        config: EngineConfig,
        workload: Workload,
        acceptance: Acceptance,
        machine: Machine,
        controller: Controller | None,
    ) -> None:
        self.config, self.workload, self.acceptance = config, workload, acceptance
        self.machine, self.controller = machine, controller
        count = len(workload)
        self.now_s = 0.0
        self.arrival_s: Floats = workload.arrival_s.copy()
        self.log = Log(count)
        self._request: Ints = np.full(config.max_running, EMPTY, dtype=np.int64)
        self._generation: Ints = np.zeros(config.max_running, dtype=np.int64)
        self._decoding = np.zeros(config.max_running, dtype=bool)
        self._emitted: Ints = np.zeros(count, dtype=np.int64)
        self._prefilled: Ints = np.zeros(count, dtype=np.int64)
        self._head = 0  # first request without a slot
        self._partial: list[int] = []  # slots whose prompt is not complete, in order
        self._done = 0
        closed = workload.concurrency
        self._released = count if closed is None else min(closed, count)

    def run(self) -> Log:
        """Serve every request to its last token and return what happened."""
        while self._done < len(self.workload):
            if self._partial or (self._waiting() and (self._request == EMPTY).any()):
                self._prefill()
            elif self._decoding.any():
                self._decode()
            else:
                self.now_s = float(self.arrival_s[self._head])
        self.log.close(self.arrival_s, self.now_s)
        return self.log

    def _waiting(self) -> bool:
        return self._head < self._released and self.arrival_s[self._head] <= self.now_s

    def _prefill(self) -> None:
        budget, taken, complete = self.config.prefill_chunk_tok, 0, []
        free = [int(slot) for slot in np.flatnonzero(self._request == EMPTY)]
        while taken < budget:
            if not self._partial:
                if not free or not self._waiting():
                    break
                self._partial.append(self._admit(free.pop(0)))
            slot = self._partial[0]
            request = self._request[slot]
            part = min(budget - taken, int(self.workload.prompt_tok[request] - self._prefilled[request]))
            self._prefilled[request] += part
            taken += part
            if self._prefilled[request] == self.workload.prompt_tok[request]:
                complete.append(self._partial.pop(0))
        seconds = self.machine.prefill_time(taken)
        self.now_s += seconds
        self.log.prefill(seconds, len(complete))
        slots = np.array(complete, dtype=np.int64)
        self._decoding[slots] = True
        self.log.first_token_s[self._request[slots]] = self.now_s
        self._emit(slots, np.ones(len(slots), dtype=np.int64))

    def _admit(self, slot: int) -> int:
        self._request[slot] = self._head
        self._generation[slot] += 1
        self.log.admitted_s[self._head] = self.now_s
        self._head += 1
        return slot

    def _decode(self) -> None:
        slots = np.flatnonzero(self._decoding)
        requests = self._request[slots]
        done_tok = self._emitted[requests]
        context = int((self.workload.prompt_tok[requests] + done_tok).sum())
        if self.controller is None:
            plan = Plan(np.zeros(len(slots), dtype=np.int64), 0)
            correct = plan.lens
        else:
            drafts = self.acceptance.draft(requests, done_tok)
            plan = self.controller.plan(Batch(slots, self._generation[slots], context), drafts)
            correct = num_correct(drafts.accepted, plan.lens)
        seconds = self._price(plan, len(slots), context)
        self.now_s += seconds
        emitted = np.minimum(correct + 1, self.workload.output_tok[requests] - done_tok)
        self.log.decode(
            StepRow(
                end_s=self.now_s,
                seconds=seconds,
                requests=len(slots),
                drafted=plan.drafted,
                verified=int(plan.lens.sum()),
                correct=int(correct.sum()),
                emitted=int(emitted.sum()),
                predicted_tokens=plan.predicted_tokens,
                predicted_s=plan.predicted_s,
            ),
            plan.fallback,
        )
        self._emit(slots, emitted)

    def _price(self, plan: Plan, requests: int, context: int) -> float:
        verified = int(plan.lens.sum())
        if plan.drafted == 0:
            if verified:
                raise ConfigError(f"lens: {verified} drafts to verify in a step that did not draft")
            return self.machine.steps.plain_time(requests, context)
        times = self.machine.steps.step_times(requests, self.acceptance.gamma, context, 0, plan.drafted)
        return float(times[verified])

    def _emit(self, slots: Ints, tokens: Ints) -> None:
        requests = self._request[slots]
        self._emitted[requests] += tokens
        finished = self._emitted[requests] >= self.workload.output_tok[requests]
        if not finished.any():
            return
        ended = requests[finished]
        self.log.finish_s[ended] = self.now_s
        self.log.emitted_tok[ended] = self._emitted[ended]
        self._request[slots[finished]] = EMPTY
        self._decoding[slots[finished]] = False
        self._done += len(ended)
        if self.workload.concurrency is not None:
            # Each finished request frees one client, who asks the next one now.
            until = min(self._released + len(ended), len(self.workload))
            self.arrival_s[self._released : until] = self.now_s
            self._released = until
