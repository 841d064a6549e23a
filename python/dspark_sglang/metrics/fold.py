"""Turns what a recorder noted into the sheet's counts; runs on the exporter's thread, many steps at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dspark_sglang.metrics import engine
from dspark_sglang.metrics.definitions import LABEL_VALUES, LOADS
from dspark_sglang.metrics.reliability import Reliability, Scales
from dspark_sglang.metrics.sheet import Sheet
from dspark_sglang.metrics.speed import Speed

if TYPE_CHECKING:
    from dspark_sglang.metrics.recorder import Recorder, Settled, Timed
    from dspark_sglang.step import Step

Item = TypeVar("Item")
_POLICY = {name: i for i, name in enumerate(LABEL_VALUES["policy"])}
_FINISH = {name: i for i, name in enumerate(LABEL_VALUES["finish"])}


class Fold:
    """Counts what was noted.

    Parameters
    ----------
    recorder : Recorder
    sheet : Sheet
    scales : callable, optional
        Gives the calibration in force; see `Reliability`.
    """

    def __init__(self, recorder: Recorder, sheet: Sheet, scales: Scales | None = None) -> None:
        self._recorder, self.sheet, gamma = recorder, sheet, sheet.gamma
        self._gamma = gamma
        self._reliability = Reliability(sheet, scales)
        self._speed = Speed(sheet)
        # Rounds by policy, drafts verified, drafts accepted: lengths, slots and sums are read off it.
        self._rounds = np.zeros((len(_POLICY), gamma + 1, gamma + 1))
        self._cut_bonus = self._cut_accepted = self._lost_bonus = self._lost_accepted = 0
        self._view = {cell.metric.name: sheet.view(cell.metric.name) for cell in sheet}

    def fold(self) -> None:
        """Count everything that waits."""
        recorder = self._recorder
        self._launched(_taken(recorder.launched))
        self._timed(_taken(recorder.timed_steps))
        self._settled(_taken(recorder.settled))
        for new in _taken(recorder.delivered):
            if new == 1:
                self._view["dspark_bonus_tokens_total"][1] += 1
            else:
                self._lost_bonus += 1
                self._lost_accepted += new - 1
        for reason in _taken(recorder.ended):
            kind = "abort" if reason is None else engine.finish_kind(reason)
            self._view["dspark_requests_finished_total"][_FINISH.get(kind, _FINISH["abort"])] += 1
        self._speed.add(_taken(recorder.users.spans))
        self._reliability.add(_taken(recorder.rounds_seen))
        self._read_off()

    def _launched(self, steps: list[Step]) -> None:
        if not steps:
            return
        lens, view = [_lens(step) for step in steps], self._view
        requests = _lengths(lens)
        budgets = _sums(lens, requests)
        drafted = np.array([step.drafted_count for step in steps])
        drafts = np.array([step.drafts for step in steps])
        policies = np.array([_POLICY[step.policy] for step in steps])
        rows = requests + budgets
        tiers = self._tiers(steps, rows)
        np.add.at(view["dspark_steps_total"], (policies, np.where(drafts, 0, 1)), 1)
        view["dspark_rounds_total"] += requests.sum()
        view["dspark_proposed_tokens_total"] += drafted.sum() * self._gamma
        view["dspark_verify_tokens_total"] += rows.sum()
        view["dspark_padding_tokens_total"] += (tiers - rows).sum()
        left_out = requests - drafted
        view["dspark_undrafted_rounds_total"] += left_out[~drafts].sum(), left_out[drafts].sum()
        self._observe("dspark_verify_budget_drafts", budgets, policies)
        self._observe("dspark_step_requests", requests)
        self._observe("dspark_verify_tier_tokens", tiers)

    def _timed(self, timed: list[Timed]) -> None:
        if not timed:
            return
        lens, view = [_lens(step) for step, _, _ in timed], self._view
        requests = _lengths(lens)
        seconds = np.array([item.seconds for item in timed])
        predicted = np.array([item.predicted_s for item in timed])
        modes = np.array([0 if step.drafts else 1 for step, _, _ in timed])
        self._observe("dspark_step_seconds", seconds, modes)
        loads = load_classes(requests)
        np.add.at(view["dspark_load_steps_total"], loads, 1)
        np.add.at(view["dspark_load_rounds_total"], loads, requests)
        np.add.at(view["dspark_load_verify_tokens_total"], loads, requests + _sums(lens, requests))
        np.add.at(view["dspark_load_seconds_total"], loads, seconds)
        np.add.at(view["dspark_load_tokens_total"], loads, [step.emitted or 0 for step, _, _ in timed])
        phases = view["dspark_phase_seconds_total"]
        for step, _, took in timed:
            step.was_timed = True
            self._recorder.clock.add(step, took, phases)
        priced = (predicted > 0) & (seconds > 0)
        predicted, seconds = predicted[priced], seconds[priced]
        view["dspark_predicted_step_seconds_total"] += predicted.sum()
        view["dspark_predicted_actual_seconds_total"] += seconds.sum()
        self._observe("dspark_step_time_error_ratio", np.abs(predicted / seconds - 1.0))

    def _settled(self, settled: list[Settled]) -> None:
        if not settled:
            return
        view, steps = self._view, [item.step for item in settled]
        counts = _lengths([item.accepted for item in settled])
        lens = np.concatenate([_lens(step) for step in steps])
        accepted = np.concatenate([item.accepted for item in settled])
        policies = np.repeat([_POLICY[step.policy] for step in steps], counts)
        emitted = accepted + 1
        if not all(item.everyone for item in settled):
            alive = np.concatenate([item.alive for item in settled])
            view["dspark_ended_rounds_total"] += len(alive) - alive.sum()
            emitted = np.where(alive, emitted, 0)
            lens, accepted, policies = lens[alive], accepted[alive], policies[alive]
        width, flat = self._gamma + 1, self._rounds.reshape(-1)
        flat += np.bincount((policies * width + lens) * width + accepted, minlength=flat.size)
        totals = np.add.reduceat(emitted, np.cumsum(counts) - counts)
        late = np.array([step.was_timed for step in steps])
        np.add.at(view["dspark_load_tokens_total"], load_classes(counts[late]), totals[late])
        for item, total in zip(settled, totals.tolist(), strict=True):
            item.step.emitted = total
            for tokens in item.cut:
                # The bonus is the last token of a round.
                self._cut_bonus += min(tokens, 1)
                self._cut_accepted += max(tokens - 1, 0)
        self._expected(settled, totals)

    def _expected(self, settled: list[Settled], totals: np.ndarray) -> None:
        """Count what steps were expected to emit beside what they did, where all their requests ran on."""
        chosen = [i for i, s in enumerate(settled) if s.everyone and s.step.drafts and s.step.expected is not None]
        if not chosen:
            return
        view, actual = self._view, totals[chosen]
        ranked = np.concatenate([settled[i].step.expected for i in chosen])
        view["dspark_expected_tokens_total"] += ranked.sum(dtype=np.float64)
        view["dspark_expected_actual_tokens_total"] += actual.sum()
        planned = np.array([settled[i].step.decision.expected_tokens for i in chosen])
        known = np.isfinite(planned)
        view["dspark_planned_tokens_total"] += planned[known].sum()
        view["dspark_planned_actual_tokens_total"] += actual[known].sum()

    def _tiers(self, steps: list[Step], rows: np.ndarray) -> np.ndarray:
        """Return the rows that the target computes, padding included."""
        found = rows.copy()
        sizes = [None if step.costs is None else step.costs.tiers for step in steps]
        # The same array in all steps, unless the step-time model has been replaced.
        for tiers in {id(tiers): tiers for tiers in sizes if tiers is not None}.values():
            padded = np.array([own is tiers for own in sizes]) & (rows <= tiers[-1])
            found[padded] = tiers[np.searchsorted(tiers, rows[padded])]
        return found

    def _observe(self, name: str, values: np.ndarray, first_label: np.ndarray | None = None) -> None:
        histogram, places = self._view[name], np.searchsorted(self.sheet.edges[name], values)
        if first_label is None:
            histogram[:-1] += np.bincount(places, minlength=histogram.shape[-1] - 1)
            histogram[-1] += values.sum()
        else:
            np.add.at(histogram, (first_label, places), 1)
            np.add.at(histogram[:, -1], first_label, values)

    def _read_off(self) -> None:
        """Set what is kept by rounds."""
        view, steps, rounds = self._view, np.arange(self._gamma + 1), self._rounds.sum(axis=0)
        accepted = (rounds.sum(axis=0) * steps).sum()
        view["dspark_verified_tokens_total"][...] = (rounds.sum(axis=1) * steps).sum()
        view["dspark_accepted_tokens_total"][...] = accepted - self._cut_accepted + self._lost_accepted
        view["dspark_bonus_tokens_total"][0] = rounds.sum() - self._cut_bonus + self._lost_bonus
        view["dspark_cut_tokens_total"][...] = self._cut_accepted + self._cut_bonus
        slots = steps[:-1, None, None]
        verified, taken = steps[:, None] > slots, steps[None, :] > slots
        view["dspark_slot_verified_total"][...] = (rounds * verified).sum(axis=(1, 2))
        view["dspark_slot_accepted_total"][...] = (rounds * taken).sum(axis=(1, 2))
        view["dspark_slot_judged_total"][...] = (rounds * (verified & (steps[None, :] >= slots))).sum(axis=(1, 2))
        for name, axis in (("dspark_verify_length_tokens", 2), ("dspark_accept_length_tokens", 1)):
            counts, histogram = self._rounds.sum(axis=axis), view[name]
            histogram[:, : self._gamma + 1] = counts
            histogram[:, -1] = (counts * (steps + 1)).sum(axis=1)


def load_classes(requests: np.ndarray) -> np.ndarray:
    """Return the places of numbers of requests among `LOADS`; past the last for more."""
    return np.searchsorted(LOADS, requests)


def _lens(step: Step) -> np.ndarray:
    assert step.lens is not None
    return step.lens


def _lengths(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.fromiter(map(len, arrays), np.int64, len(arrays))


def _sums(arrays: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Sum each array; none is empty."""
    return np.add.reduceat(np.concatenate(arrays), np.cumsum(lengths) - lengths)


def _taken(waiting: deque[Item]) -> list[Item]:
    """Take what waits now; what comes meanwhile is for the next time."""
    return [waiting.popleft() for _ in range(len(waiting))]
