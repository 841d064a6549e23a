"""Calibration and step times where drafting is SGLang's: every step drafts, and is profiled while it serves."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_sglang.config import OFF, SchedulingConfig
from dspark_sglang.knowledge import Knowledge
from sgl_dspark.errors import ProfileError
from sgl_dspark.planner.step import StepCosts
from sgl_dspark.sps import store
from sgl_dspark.sps.fit import fit
from sgl_dspark.sps.online import OnlineStepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sgl_dspark.sps.fit import Probe
    from sgl_dspark.sps.model import StepTimeModel

logger = logging.getLogger(__name__)


class BridgeKnowledge(Knowledge):
    """What `Knowledge` is, for a worker whose parts cannot be timed one by one.

    Parameters
    ----------
    config, gamma, draft_path, identity, sizes
        See `Knowledge`; ``sizes`` are the verify tokens that graphs exist for.
    fingerprint : store.Fingerprint
        What the step times depend on.
    path : Path
        Where they are kept unless the operator names a file.
    keep : bool
        Whether this rank writes them.
    """

    def __init__(
        self,
        config: SchedulingConfig,
        gamma: int,
        draft_path: str,
        identity: dict[str, Any],
        sizes: Sequence[int] | None,
        *,
        fingerprint: store.Fingerprint,
        path: Path,
        keep: bool = True,
    ) -> None:
        super().__init__(config, gamma, draft_path, identity, sizes)
        self._fingerprint, self._keep = fingerprint, keep and config.profile != OFF
        self._path = path if config.profile in (None, OFF) else Path(str(config.profile)).expanduser()
        if config.profile != OFF:
            self._restore()

    @property
    def tiers(self) -> np.ndarray | None:
        """Verify tokens that graphs exist for, int64 ascending; None without graphs."""
        return self._sizes

    @property
    def known(self) -> StepTimeModel | None:
        """Step times of an earlier start; None if there are none."""
        return None if self.step_time is None else self.step_time.model

    def _restore(self) -> None:
        try:
            if self._path.is_file():
                self.step_time = OnlineStepTime(store.load(self._path, self._fingerprint))
                self.step_time_source = f"profile {self._path.name}"
                logger.info("step times: read from %s", self._path)
        except (ProfileError, OSError) as error:
            logger.warning("step times: %s", error)

    def adopt(self, probes: list[Probe]) -> None:
        """Plan with what was profiled from now on, and keep it for the next start."""
        try:
            model = fit(probes)
        except ProfileError as error:
            logger.warning("step times: %s", error)
            return
        self.step_time, self.step_time_source = OnlineStepTime(model), "profiled while serving"
        logger.info("step times: profiled up to %d verify tokens", int(model.verify.sizes[-1]))
        if not self._keep:
            return
        try:
            store.save(self._path, model, self._fingerprint)
        except OSError as error:
            logger.warning("step times cannot be kept in %s (%s); set --step-time-profile", self._path, error)

    def costs(self, requests: int, gamma: int, context_tokens: int) -> StepCosts | None:
        """Price the step about to run; None without step times.

        SGLang's worker drafts in every step, so what a step costs least is verifying none of the drafts.
        """
        costs = super().costs(requests, gamma, context_tokens)
        if costs is None:
            return None
        return StepCosts(float(costs.step_times[0]), costs.step_times, 0.0, costs.tiers)
