"""SGLang platform for machines without an accelerator.

SGLang's in-tree CPU engine needs AMX kernels from a CUDA build; an out-of-tree
platform without capabilities makes it take its torch implementations instead.

SGLang loads this module while it is itself being imported, so import ``sglang`` first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from dspark_sglang.attention import CPU_BACKEND_NAME

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs
    from torch import nn

logger = logging.getLogger(__name__)

# SGLang sizes its KV pool by the machine's memory, which on a host shared with
# everything else takes most of it; this many tokens serve the default 48 requests.
DEFAULT_KV_TOKENS = 65536


class DsparkCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Torch kernels, our ragged attention backend, and our worker under the name DSPARK."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """Pinned memory serves device copies, of which there are none."""
        return False

    def apply_server_args_defaults(self, server_args: ServerArgs) -> None:
        """Default what SGLang would otherwise choose for a GPU; what the user gave stays."""
        # Upstream: intel_amx is what 0.5.23 chooses for every x86 CPU before it asks
        # the platform; its kernels come from a build that this platform does without.
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = CPU_BACKEND_NAME
        # An idle scheduler would otherwise poll at full speed on a core that the model
        # or the HTTP server of this machine needs.
        server_args.sleep_on_idle = True
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = DEFAULT_KV_TOKENS
            logger.info("KV cache limited to %d tokens; set --max-total-tokens to change it", DEFAULT_KV_TOKENS)

    def get_default_attention_backend(self) -> str:
        """Return the ragged CPU backend's name."""
        return CPU_BACKEND_NAME

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        """Return the ragged CPU backend's name; the draft runs from the same plans."""
        return CPU_BACKEND_NAME

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        """Whether SGLang may choose ``algorithm`` on this platform."""
        return algorithm.upper() == "DSPARK"

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        """Whether the draft of ``algorithm`` may run on ``backend``."""
        return algorithm.upper() == "DSPARK" and backend == CPU_BACKEND_NAME

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        """Return the KV pool that needs no Triton kernel, for plain attention."""
        if kind != "mha":
            return None
        from dspark_sglang.slots import cpu_kv_pool_class

        return cpu_kv_pool_class()

    def get_speculative_worker_cls(self, algorithm: str) -> type | None:
        """Return our worker for DSPARK, unless upstream's is asked for."""
        from dspark_sglang.selection import worker_class

        return worker_class(algorithm)

    def post_load_model(self, model: nn.Module) -> None:
        """Lay the target's weights out for oneDNN."""
        from dspark_sglang.packed_weights import pack_weights

        pack_weights(model)

    def init_backend(self) -> None:
        """Register the attention backend in the worker process."""
        from dspark_sglang.attention.register import register_backends

        register_backends()
