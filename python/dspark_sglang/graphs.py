"""CUDA graphs of our own: sizes that exist, capture that may fail, and what a replay reads.

A captured graph runs the same kernels on the same addresses. So whatever changes from replay to replay lies in buffers
that are made once; a graph exists for a few sizes (tiers), and a step runs at the next one above its own.
"""

from __future__ import annotations

import bisect
import logging
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

logger = logging.getLogger(__name__)

WARM_UPS = 2
LEAST_FREE_BYTES = 1 << 30


class Graph(Protocol):
    """What runs the same work again on the same memory."""

    def capture(self, run: Callable[[], None]) -> None:
        """Record what ``run`` launches; it is called several times."""

    def replay(self) -> None:
        """Launch it again."""


class CudaGraph:
    """torch's CUDA graph; all share one memory pool, so that only one's results are alive at a time.

    Parameters
    ----------
    pool : handle, optional
        From ``torch.cuda.graph_pool_handle``.
    """

    def __init__(self, pool: Any = None) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool

    def capture(self, run: Callable[[], None]) -> None:
        """Warm up beside the current stream, which compiles kernels and fills caches, then record."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                run()
        current.wait_stream(side)
        # Other threads (metrics, copies) may go on calling CUDA.
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            run()

    def replay(self) -> None:
        """Launch the recorded kernels on the current stream."""
        self._graph.replay()


def staged(values: Tensor, device: torch.device) -> Tensor:
    """Pin ``values`` if they lie on the host and ``device`` is an accelerator.

    From other memory the driver may wait for the stream before it copies; torch hands a pinned block out again only
    when its copies are done.
    """
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


def sent_to(values: Tensor, device: torch.device) -> Tensor:
    """Give ``values`` of the host on ``device``, copied without waiting for its stream; as they are on a CPU."""
    return staged(values, device).to(device, non_blocking=True)


def request_tiers(most: int) -> list[int]:
    """List the request counts, ascending up to ``most``, for which draft graphs exist: padding stays below a half."""
    sizes = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 128, 16), *range(128, 4096, 64)]
    return [*(size for size in sizes if size < most), most]


def token_tiers(requests: int, width: int) -> list[int]:
    """List the verify tokens, ascending, for which target graphs exist.

    Parameters
    ----------
    requests : int
        Most that run at once.
    width : int
        gamma + 1.
    """
    most = requests * width
    sizes = [1, 2, *range(4, 16, 4), *range(16, 64, 8), *range(64, 256, 16), *range(256, 512, 32)]
    sizes += [*range(512, 16384, 128)]
    return [*(size for size in sizes if size < most), most]


def tier_above(tiers: Sequence[int], size: int) -> int | None:
    """Return the smallest tier of at least ``size``, or None: of ascending ``tiers``."""
    at = bisect.bisect_left(tiers, size)
    return tiers[at] if at < len(tiers) else None


def enough_memory(device: torch.device) -> bool:
    """Whether another graph may be captured; always where there is no CUDA device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= LEAST_FREE_BYTES


class Captured:
    """Graphs by key, captured one after the other; what could not be captured has a reason.

    Parameters
    ----------
    what : str
        For the log, and before the reasons: ``draft`` gives ``draft_graph_failed`` and ``draft_graph_memory``.
    make_graph : callable
    device : torch.device
    """

    def __init__(self, what: str, make_graph: Callable[[], Graph], device: torch.device) -> None:
        self.what, self._make, self._device = what, make_graph, device
        self._graphs: dict[object, Graph] = {}
        self.missing: str | None = None

    def capture(self, key: object, prepare: Callable[[], Callable[[], None]]) -> bool:
        """Capture what ``prepare`` returns under ``key``; False if it could not be, or nothing more is tried.

        Parameters
        ----------
        prepare : callable
            Makes buffers and plans of this graph, and returns what it records. Called only if there is memory, and
            what it raises counts as a failed capture.
        """
        if self.missing is not None:
            return False
        if not enough_memory(self._device):
            logger.warning(
                "%s graphs: less than %d MB are free after %d; the rest runs without. Lower --mem-fraction-static.",
                self.what,
                LEAST_FREE_BYTES >> 20,
                len(self._graphs),
            )
            self.missing = f"{self.what}_graph_memory"
            return False
        try:
            run = prepare()
            graph = self._make()
            graph.capture(run)
        # Whatever a kernel's compiler, FlashInfer's planner or the driver raises, the server serves without graphs.
        except Exception:  # noqa: BLE001
            # What was captured before stays valid.
            logger.warning("%s graphs: capture of %s failed, steps run without", self.what, key, exc_info=True)
            self.missing = f"{self.what}_graph_failed"
            return False
        self._graphs[key] = graph
        return True

    def replay(self, key: object) -> bool:
        """Replay the graph of ``key``; False if there is none."""
        graph = self._graphs.get(key)
        if graph is None:
            return False
        graph.replay()
        return True

    def __contains__(self, key: object) -> bool:
        return key in self._graphs

    def __len__(self) -> int:
        return len(self._graphs)
