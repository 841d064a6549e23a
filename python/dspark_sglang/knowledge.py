"""What planning knows of its draft and its machine: calibration and step times, loaded, learned and shown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sglang.config import OFF, SchedulingConfig
from sgl_dspark.calibration import store as calibration_store
from sgl_dspark.calibration.online import OnlineCalibration, OnlineConfig
from sgl_dspark.errors import CalibrationError, ProfileError
from sgl_dspark.planner.step import StepCosts
from sgl_dspark.sps import store as step_time_store
from sgl_dspark.sps.fit import Probe, fit
from sgl_dspark.sps.online import OnlineStepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sgl_dspark.sps.model import StepTimeModel
    from sgl_dspark.sps.store import Fingerprint

logger = logging.getLogger(__name__)

# Rounds are handed to the calibration in portions, so that a step pays for a few numpy calls only now and then.
PORTION = 64
# Steps whose times are all learnt from, and how many apart they are afterwards.
TIMED_FIRST, TIMED_EVERY = 256, 4
# Traffic that takes turns between easy and hard prompts keeps one map 4 to 6 % off each of them, without any drift:
# confidences still tell the two apart, which the running mean that a drift falls back to does not.
DRIFT = OnlineConfig(drift_ece=0.08, settled_ece=0.05)


class Knowledge:
    """Calibration and step times of one worker.

    Parameters
    ----------
    config : SchedulingConfig
    gamma : int
    draft_path : str
        Folder of the draft, beside whose weights ``calibration.json`` lies.
    identity : dict
        Shown in the state.
    sizes : sequence of int, optional
        Verify tokens, ascending, that are computed without padding, where there are no graphs to say so.
    """

    def __init__(
        self,
        config: SchedulingConfig,
        gamma: int,
        draft_path: str,
        identity: dict[str, Any],
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.config, self.identity = config, identity
        self._sizes = None if sizes is None else np.array(sizes, np.int64)
        self.calibration_source, calibration = load_calibration(config, gamma, draft_path)
        greedy, sampled = (calibration.greedy.map, calibration.sampled.map) if calibration else (None, None)
        self.calibration = OnlineCalibration(gamma, greedy, sampled, DRIFT)
        # Verify tokens, ascending, of the graphs that were captured: what a step costs is what its tier costs.
        self.graph_tiers: list[int] | None = None
        self.step_time: OnlineStepTime | None = None
        self.step_time_source = "none"
        self._untimed = 0
        self._drafted_last = False
        self._waiting: list[tuple[np.ndarray, ...]] = []
        self._waiting_rounds = 0

    def start(self, measure: Callable[[], list[Probe]], fingerprint: Fingerprint, default_profile: Path) -> None:
        """Get the step times: from the stored profile if it fits, else by measuring, and store them."""
        off = self.config.profile == OFF
        path = default_profile if self.config.profile is None or off else Path(self.config.profile).expanduser()
        model: StepTimeModel | None = None
        if not off:
            try:
                if path.is_file():
                    model = step_time_store.load(path, fingerprint)
                    self.step_time_source = f"profile {path.name}"
                    logger.info("step times: read from %s", path)
            except (ProfileError, OSError) as error:
                logger.warning("step times: %s", error)
        if model is None:
            probes = measure()
            if not probes:
                logger.warning("step times: the KV pool is too small to measure any; blocks are verified whole")
                return
            model = fit(probes, self.graph_tiers)
            self.step_time_source = "measured at start-up"
            if not off:
                try:
                    step_time_store.save(path, model, fingerprint)
                    logger.info("step times: written to %s", path)
                except OSError as error:
                    logger.warning("step times cannot be kept in %s (%s); set --step-time-profile", path, error)
        self.step_time = OnlineStepTime(model)

    def costs(self, requests: int, gamma: int, context_tokens: int) -> StepCosts | None:
        """Price the step about to run; None without step times."""
        model = self.step_time
        if model is None:
            return None
        return StepCosts(
            model.plain_time(requests, context_tokens),
            model.step_times(requests, gamma, context_tokens),
            model.draft_row_s(requests),
            self._sizes if model.tiers is None else model.tiers,
        )

    def observe_time(self, requests: int, budget: int, drafted: int, context_tokens: int, seconds: float) -> None:
        """Learn what a step took: at first from every step, later every fourth and where drafting begins or ends.

        What is learnt changes slowly, and learning takes as long as planning does.
        """
        model = self.step_time
        if model is None or not self.config.online:
            return
        self._untimed += 1
        changed, self._drafted_last = self._drafted_last != (drafted > 0), drafted > 0
        if changed or self._untimed >= TIMED_EVERY or model.observations < TIMED_FIRST:
            self._untimed = 0
            model.observe(requests, budget, drafted, context_tokens, 0, seconds)

    def observe_rounds(self, logits: np.ndarray, verified: np.ndarray, accepted: np.ndarray, kinds: np.ndarray) -> None:
        """Learn what verified rounds came to; see `OnlineCalibration.observe`."""
        if not self.config.online:
            return
        self._waiting.append((logits, verified, accepted, kinds))
        self._waiting_rounds += len(logits)
        if self._waiting_rounds >= PORTION:
            columns = [np.concatenate(column) for column in zip(*self._waiting, strict=True)]
            self._waiting, self._waiting_rounds = [], 0
            self.calibration.observe(*columns)

    def calibrated(self, logits: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Scale confidence logits [n, gamma] by each round's calibration; their sigmoid is the confidence."""
        scaled = logits * self.calibration.inverse_temperatures[kinds]
        scaled += self.calibration.biases[kinds]
        return scaled

    def state(self) -> dict[str, Any]:
        """Return what ``GET /dspark/state`` shows of both, as JSON values."""
        times: dict[str, Any] = {"source": self.step_time_source}
        if self.step_time is not None:
            times["online"] = self.step_time.state()
            times["model"] = step_time_store.to_document(self.step_time.model)
            times["corrected"] = step_time_store.to_document(self.step_time.snapshot())
        shown = {"source": self.calibration_source, **self.calibration.snapshot()}
        return {"calibration": shown, "step_time": times}


def load_calibration(
    config: SchedulingConfig, gamma: int, draft_path: str
) -> tuple[str, calibration_store.Calibration | None]:
    """Read the calibration of a draft.

    Returns
    -------
    source : str
        Where it is from, or why there is none.
    calibration : Calibration or None
        None: confidences are taken as the draft gives them until serving has taught better.

    Raises
    ------
    CalibrationError
        If a file was named and cannot be used. One beside the draft that does not fit is left out, with a warning.
    """
    if config.calibration == OFF:
        return "off", None
    named = config.calibration is not None
    path = Path(config.calibration or Path(draft_path) / calibration_store.FILE_NAME).expanduser()
    if not named and not path.is_file():
        logger.info("calibration: none beside the draft; confidences are used raw until serving corrects them")
        return "none", None
    try:
        digest = calibration_store.draft_sha256(Path(draft_path))
        found = calibration_store.load(path, gamma=gamma, draft_sha256=digest)
    except CalibrationError as error:
        if named:
            raise
        logger.warning("calibration: %s", error)
        return "refused", None
    logger.info("calibration: read from %s", path)
    return path.name, found
