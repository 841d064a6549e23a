"""What step times and calibrations were measured with, so that they are never used for anything else."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dspark_sglang.switches import ATTENTION_KERNEL, PACKED_WEIGHTS, switched_on
from sgl_dspark.sps.store import Fingerprint

if TYPE_CHECKING:
    from dspark_sglang.worker import DsparkWorker

_EDGE = 1 << 20


def weights_id(folder: str | Path) -> str:
    """Identify the weights in a folder by the sizes, beginnings and ends of its files.

    Reading all of a large target would take longer than measuring it. 16 hexadecimal digits; ``unknown`` for what is
    not a folder of this machine.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        return "unknown"
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*.bin"), *path.glob("config.json")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_EDGE))
            opened.seek(max(size - _EDGE, 0))
            digest.update(opened.read(_EDGE))
    return digest.hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """Name the processor or accelerator."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def default_profile(target_path: str, draft_path: str) -> Path:
    """Return where the step times of a pair are kept unless the operator names a file: in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sgl-dspark" / "step-times" / f"{Path(target_path).name}--{Path(draft_path).name}.json"


def worker_fingerprint(worker: DsparkWorker, target_path: str, tensor_parallel: int) -> Fingerprint:
    """Describe everything that step times of ``worker`` depend on."""
    runner = worker.model_runner
    tiers = worker.knowledge.graph_tiers
    return Fingerprint(
        {
            **({} if tiers is None else {"graph tiers": " ".join(map(str, tiers))}),
            "target": Path(target_path).name,
            "target weights": weights_id(target_path),
            "draft weights": weights_id(worker.config.draft_path),
            "gamma": worker.gamma,
            "shortlist": worker.config.shortlist or 0,
            "device": worker.device.type,
            "device name": device_name(worker.device),
            "threads": torch.get_num_threads(),
            "tensor parallel size": tensor_parallel,
            "dtype": str(runner.dtype),
            "attention backend": type(runner.attn_backend).__name__,
            "packed weights": "layers and head" if switched_on(PACKED_WEIGHTS) else "none",
            "attention kernel": int(switched_on(ATTENTION_KERNEL)),
            "running requests": worker.max_requests,
            "KV slots": worker.num_slots,
            "context length": int(runner.model_config.context_len),
            "sgl-dspark": metadata.version("sgl-dspark"),
            "sglang": metadata.version("sglang"),
            "torch": torch.__version__,
        }
    )
