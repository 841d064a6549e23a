"""From SGLang's per-batch sampling tensors to our laws and verdicts.

Shape legend: R requests, W = gamma + 1 columns, T = sum of verify_lens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dspark_sglang import compat
from dspark_sglang.kernels.rejection import verify
from dspark_sglang.verify import VerifyWindow
from sgl_dspark.calibration.online import ADJUSTED
from sgl_dspark.calibration.records import GREEDY, SAMPLED
from sgl_dspark.sampling.block import DraftBlock
from sgl_dspark.sampling.draw import draw, uniforms
from sgl_dspark.sampling.rejection import Verdict
from sgl_dspark.sampling.warp import Filters, target_probs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from torch import Tensor

    from dspark_sglang.adjust.seeds import SeededRequests
    from dspark_sglang.adjust.step import StepAdjustments
    from dspark_sglang.device_window import DeviceWindow
    from sgl_dspark.sampling.warp import Greediness


@dataclass(frozen=True)
class RowSampling:
    """Sampling parameters of the running requests.

    Attributes
    ----------
    greediness : {"all", "none", "some"}
        Which requests are greedy, known on the host.
    greedy_rows : bool [R]
        Greedy requests: exact argmax rows, never a small temperature.
    draft_temperatures : fp32 [R]
        Each request's temperature, 0 for greedy ones.
    top_ks : int [R]; top_ps, min_ps : fp32 [R]
        As in `sgl_dspark.sampling.warp.target_probs`.
    filtered : bool
        Whether any request has a top-k, top-p or min-p.
    seeded : SeededRequests or None
    adjusted : bool [R], numpy, or None
        Requests whose law or acceptance is not that of plain sampling; None if there are none.
    on_host : (temperatures, top_ks, top_ps, min_ps) or None
        The host's own copies, where any request has a filter and the tensors are on an accelerator.
    """

    greediness: Greediness
    greedy_rows: Tensor
    draft_temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    filtered: bool
    seeded: SeededRequests | None = None
    adjusted: np.ndarray | None = None
    on_host: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls,
        info: SamplingBatchInfo,
        adjustments: StepAdjustments | None = None,
        requests: Sequence[Any] | None = None,
    ) -> RowSampling:
        """Read the parameters of a batch; SGLang writes greedy as top-k 1 at temperature 1.

        ``requests`` are SGLang's, from whose own parameters an accelerator need not be asked.
        """
        greedy_rows = info.top_ks <= 1
        temperatures = info.temperatures.view(-1)
        greediness: Greediness = "all" if info.is_all_greedy else "some" if info.is_any_greedy else "none"
        if greediness != "none":
            temperatures = temperatures.masked_fill(greedy_rows, 0.0)
        filtered = info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling
        seeded = adjustments.seeded if adjustments is not None else None
        adjusted = adjustments.adjusted if adjustments is not None else None
        filters = (info.top_ks, info.top_ps, info.min_ps)
        on_host = None
        if filtered and requests is not None and temperatures.device.type != "cpu":
            on_host = compat.host_sampling(requests)
        return cls(greediness, greedy_rows, temperatures, *filters, filtered, seeded, adjusted, on_host)

    @classmethod
    def greedy(cls, requests: int, device: torch.device) -> RowSampling:
        """Give the parameters of ``requests`` greedy requests."""
        ones = torch.ones(requests, device=device)
        return cls("all", ones.bool(), torch.zeros_like(ones), ones.int(), ones, torch.zeros_like(ones), False)

    def select(self, requests: Tensor) -> RowSampling:
        """Give the parameters of some requests (int64 [n], ascending) alone; what is known of their kinds stays."""
        return RowSampling(
            self.greediness,
            self.greedy_rows[requests],
            self.draft_temperatures[requests],
            self.top_ks[requests],
            self.top_ps[requests],
            self.min_ps[requests],
            self.filtered,
            None if self.seeded is None else self.seeded.select(requests),
        )

    def kinds(self, count: int, requests: Sequence[Any] | None = None) -> np.ndarray:
        """Tell which calibration each of ``count`` requests has, int64 [count]; see `sgl_dspark.calibration.online`.

        ``requests`` are SGLang's, from whose own parameters an accelerator need not be asked.
        """
        if self.greediness != "some":
            found = np.full(count, SAMPLED if self.greediness == "none" else GREEDY)
        elif requests is not None and self.greedy_rows.device.type != "cpu":
            found = np.where(compat.greedy_requests(requests), GREEDY, SAMPLED)
        else:
            # Sync: a batch of both kinds reads back which is which (free on a CPU).
            found = np.where(self.greedy_rows.cpu().numpy(), GREEDY, SAMPLED)
        if self.adjusted is not None:
            found[self.adjusted] = ADJUSTED
        return found

    def uniforms(self, count: int, width: int) -> Tensor | None:
        """Give uniforms [count, width] that seeded requests share over draft and target; None if there are none."""
        if self.seeded is None:
            return None
        device = self.greedy_rows.device
        found = uniforms(count, width, device=device)
        found[self.seeded.places.to(device)] = self.seeded.uniforms(width)
        return found

    def target_law(self, logits: Tensor, window: VerifyWindow | DeviceWindow) -> Tensor:
        """Return the target's law of every verified row, fp32 [T, V]."""
        per_row = [
            window.per_row(values, logits.shape[0])
            for values in (self.draft_temperatures, self.top_ks, self.top_ps, self.min_ps)
        ]
        filters = None
        if not self.filtered:
            filters = Filters(0, False, False, True, self.greediness)
        elif self.on_host is not None:
            # On a CPU they are read off the tensors, which is free there.
            filters = Filters.of(*self.on_host, logits.shape[1])
        return target_probs(logits, *per_row, filters=filters)


def accept(
    block: DraftBlock,
    window: VerifyWindow | DeviceWindow,
    logits: Tensor,
    rows: RowSampling,
    uniforms: Tensor | None = None,
) -> Verdict:
    """Accept a prefix of every block and emit one token more.

    Parameters
    ----------
    block : DraftBlock
        The drafts and the law they were drawn from.
    window : VerifyWindow or DeviceWindow
        Which of them were verified.
    logits : float [T, V]
        The target's logits of the verified rows; a padded tail is not read.
    rows : RowSampling
        The requests' sampling parameters.
    uniforms : float [R, W], optional
        See `sgl_dspark.sampling.rejection.verify`.
    """
    argmax = None if rows.greediness == "none" else logits.argmax(-1)
    probs = None if rows.greediness == "all" else rows.target_law(logits, window)
    exact, greedy = rows.greedy_rows, rows.greediness
    if rows.seeded is not None:
        assert isinstance(window, VerifyWindow)
        # A seed fixes the target's choice at each row, and a draft that is that choice is right: as for greedy ones.
        assert probs is not None
        count = len(window.verify_lens_list)
        argmax = _with_seeded(argmax, probs, window, rows.seeded)
        exact = exact | rows.seeded.mask(count)
        greedy = "all" if rows.greediness == "none" and len(rows.seeded.places) == count else "some"
    return verify(
        block,
        window.verify_lens,
        target_argmax=argmax,
        target_probs=probs,
        greedy_rows=exact,
        greedy=greedy,
        uniforms=uniforms,
    )


def _with_seeded(argmax: Tensor | None, probs: Tensor, window: VerifyWindow, seeded: SeededRequests) -> Tensor:
    """Put the choices of seeded requests into the target's tokens per row, int64 [T]."""
    rows, owners, depths = (part.to(probs.device) for part in window.rows_of(seeded.places.tolist()))
    chosen = draw(probs[rows], seeded.uniforms(window.positions.shape[1])[owners, depths])
    if argmax is None:
        argmax = torch.zeros(probs.shape[0], dtype=torch.int64, device=probs.device)
    argmax[rows] = chosen
    return argmax


def without_drafts(window: VerifyWindow, logits: Tensor, rows: RowSampling, stride: int) -> Verdict:
    """Emit one token per request of a step that drafted nothing, straight from the target's law.

    Parameters
    ----------
    window : VerifyWindow
        One row per request.
    logits : float [R, V]
        The target's.
    rows : RowSampling
    stride : int
        Columns of the verdict's tokens, gamma + 1.
    """
    tokens = None if rows.greediness == "none" else logits.argmax(-1)
    if rows.greediness != "all":
        law = rows.target_law(logits, window)
        at = rows.uniforms(len(law), 1)
        drawn = draw(law, (uniforms(len(law), 1, device=law.device) if at is None else at).squeeze(1))
        tokens = drawn if tokens is None else torch.where(rows.greedy_rows, tokens, drawn)
    assert tokens is not None
    out = torch.zeros((len(tokens), stride), dtype=torch.int64, device=tokens.device)
    out[:, 0] = tokens
    return Verdict(torch.ones_like(tokens), out, torch.zeros((), dtype=torch.int64, device=tokens.device))


def spread(block: DraftBlock, drafted: Tensor, requests: int) -> DraftBlock:
    """Give the block of all requests when only some of them drafted.

    Parameters
    ----------
    block : DraftBlock
        Of the requests that drafted.
    drafted : int64 [n]
        Which those are.
    requests : int
        R.

    Returns
    -------
    DraftBlock
        Rows of the others hold zeros and a confidence of 0 (logit minus infinity): nothing of them may be verified.
    """

    def over_all(values: Tensor | None, fill: float = 0.0) -> Tensor | None:
        if values is None:
            return None
        full = values.new_full((requests, *values.shape[1:]), fill)
        return full.index_copy_(0, drafted.to(values.device), values)

    tokens, confidence = over_all(block.tokens), over_all(block.confidence_logits, float("-inf"))
    assert tokens is not None
    assert confidence is not None
    return DraftBlock(
        tokens, confidence, over_all(block.candidates), over_all(block.probs), over_all(block.token_probs)
    )
