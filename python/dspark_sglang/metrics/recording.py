"""The recorder of this process: made with the worker, fed by it and by two of SGLang's functions."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from json import dumps
from typing import TYPE_CHECKING, Any

import torch

from dspark_sglang import policy_codec
from dspark_sglang.metrics import engine
from dspark_sglang.metrics.definitions import LABEL_VALUES
from dspark_sglang.metrics.exporter import Exporter
from dspark_sglang.metrics.flags import sla_from_environment
from dspark_sglang.metrics.fold import Fold
from dspark_sglang.metrics.phases import PhaseClock
from dspark_sglang.metrics.recorder import Recorder
from dspark_sglang.metrics.sheet import Sheet
from sgl_dspark.sps.store import to_document

if TYPE_CHECKING:
    from dspark_sglang.bridge.worker import BridgeWorker
    from dspark_sglang.knowledge import Knowledge
    from dspark_sglang.scheduling import VerifyScheduler
    from dspark_sglang.worker import DsparkWorker

logger = logging.getLogger(__name__)


class Recording:
    """A recorder, what it is exported by, and where it finds what others count.

    Parameters
    ----------
    recorder : Recorder
    sheet : Sheet
    scheduler : VerifyScheduler
    identity : dict
        Labels of ``dspark_worker_info`` that do not change.
    model_name : str
    registry : prometheus_client registry, optional
    """

    def __init__(
        self,
        recorder: Recorder,
        sheet: Sheet,
        scheduler: VerifyScheduler,
        identity: Mapping[str, str],
        model_name: str,
        registry: Any = None,
    ) -> None:
        self.recorder, self._scheduler, self._identity = recorder, scheduler, dict(identity)
        calibration = scheduler.knowledge.calibration
        self._tables = _tables(scheduler.knowledge)
        fold = Fold(recorder, sheet, lambda: (calibration.inverse_temperatures, calibration.biases))
        # Totals of others may be started over; a counter goes on from where it was.
        self._seen: Counter[tuple[str, str]] = Counter()
        self.exporter = Exporter(fold, model_name, self._gather, registry)

    def _gather(self, sheet: Sheet) -> dict[str, dict[tuple[str, ...], float]]:
        scheduler = self._scheduler
        planner, knowledge, probes = scheduler.planner, scheduler.knowledge, scheduler.allocator.probes
        fallbacks = sheet.view("dspark_fallbacks_total")
        known = LABEL_VALUES["reason"]
        for where, counts in (("planner", planner.fallbacks), ("ledger", scheduler.ledger.fallbacks)):
            for reason, count in dict(counts).items():
                name = reason if reason in known else "other"
                fallbacks[known.index(name)] += self._growth(f"{where} {reason}", count)
        looked = sheet.view("dspark_probes_total")
        totals = (probes.probes, planner.totals["probes"], planner.totals["row_probes"])
        for i, (name, total) in enumerate(zip(LABEL_VALUES["probe"], totals, strict=True)):
            looked[i] += self._growth(f"probe {name}", total)
        sheet.view("dspark_probe_tokens_total")[...] += self._growth("probe tokens", probes.extra_tokens)
        calibration = knowledge.calibration
        for i in range(len(LABEL_VALUES["kind"])):
            sheet.view("dspark_calibration_ece_ratio")[i] = calibration.live_mean_ece(i)
            sheet.view("dspark_calibration_drifting")[i] = calibration.state(i) == "drift"
        shown = policy_codec.shown(planner.config)
        settings = _digest(dumps(shown, sort_keys=True).encode())
        return {
            "dspark_policy_info": {(str(shown["policy"]), settings): 1.0},
            "dspark_worker_info": {(*self._identity.values(), *self._tables): 1.0},
        }

    def _growth(self, name: str, total: float) -> float:
        before, self._seen[("", name)] = self._seen[("", name)], total  # type: ignore[assignment]
        return total - before if total >= before else total


def _tables(knowledge: Knowledge) -> tuple[str, str]:
    """Say where step times and calibration are from, with a digest that tells two of the same source apart."""
    calibration, step_time = knowledge.calibration, knowledge.step_time
    digest = _digest(calibration.inverse_temperatures.tobytes() + calibration.biases.tobytes())
    times = knowledge.step_time_source
    if step_time is not None:
        times += " " + _digest(dumps(to_document(step_time.model), sort_keys=True).encode())
    return times, f"{knowledge.calibration_source} {digest}"


def _digest(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


ACTIVE: Recording | None = None


def start(worker: DsparkWorker | BridgeWorker, scheduler: VerifyScheduler, head: str) -> None:
    """Record what a worker does from now on, where SGLang exports metrics of this process.

    ``head`` names the kind of the draft's sequential head.
    """
    global ACTIVE
    model_name = engine.model_name()
    if model_name is None:
        return
    recorder = Recorder(worker.max_requests + 1, PhaseClock(torch.device(worker.device)))
    sheet = Sheet(worker.gamma, sla_from_environment())
    identity = {
        "version": metadata.version("sgl-dspark"),
        "sglang": metadata.version("sglang"),
        **{name: str(scheduler.knowledge.identity[name]) for name in ("target", "draft")},
        "gamma": str(worker.gamma),
        "head": head,
    }
    scheduler.recorder = recorder
    ACTIVE = Recording(recorder, sheet, scheduler, identity, model_name)
    ACTIVE.exporter.start()
    logger.info("metrics: recording, %d series", len(sheet.cells))


def finished(rid: str) -> None:
    """Note that a request has ended; SGLang's worker contract tells."""
    if ACTIVE is not None:
        ACTIVE.recorder.finished(rid)


def after_stream(result: Any, streamer: Any, reqs: Any, return_logprob: Any = None, skip_req: Any = None) -> Any:
    """Settle a batch whose tokens were sent on."""
    if ACTIVE is not None and reqs:
        ACTIVE.recorder.streamed(reqs, skip_req)
        ACTIVE.exporter.touch()
    return result


def after_abort(result: Any, scheduler: Any, abort_request: Any, request: Any) -> Any:
    """Count a request that SGLang ends outside the stream."""
    if ACTIVE is not None:
        ACTIVE.recorder.aborted(request)
        ACTIVE.exporter.touch()
    return result
