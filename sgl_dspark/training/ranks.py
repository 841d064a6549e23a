"""Several processes as one trainer: what one rank needs to know of the others (torch.distributed)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sgl_dspark.errors import ConfigError

Item = TypeVar("Item")
Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Ranks:
    """One process among all of a run; alone it needs no process group.

    Attributes
    ----------
    rank, world : int
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the run that ``torchrun`` started, or be alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this rank writes files."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[tuple[int, Item]]:
        """Return this rank's items of a global batch, each with its global index."""
        return list(enumerate(items))[self.rank :: self.world]

    def total(self, value: Tensor) -> Tensor:
        """Sum a tensor over all ranks."""
        if self.world == 1:
            return value
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def any(self, flags: Tensor) -> Tensor:
        """Combine bool tensors of all ranks by or."""
        if self.world == 1:
            return flags
        counts = flags.to(torch.uint8)
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        return counts.bool()

    def wrap(self, module: nn.Module, strategy: Strategy) -> nn.Module:
        """Make the ranks' gradients one: replicas (DDP), or shards of parameters and optimiser state (FSDP2)."""
        if self.world == 1:
            return module
        if strategy == "fsdp":
            from torch.distributed.fsdp import fully_shard

            frozen = {p for p in module.parameters() if not p.requires_grad}
            # In place: the module stays what it was, its parameters become shards.
            fully_shard(module, ignored_params=frozen)
            return module
        return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)

    def without_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Hold back the exchange of gradients, for all micro-batches of a step but the last."""
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def leave(self) -> None:
        """End the process group, if there is one."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def check_batch(batch_size: int, world: int) -> None:
    """Refuse a batch that ranks cannot share evenly."""
    if batch_size % world:
        raise ConfigError(f"optim.batch_size is {batch_size}; it must be a multiple of the {world} ranks")
