"""Several processes under `torchrun`: who am I, and what all agree on. One process needs none of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kinrank.device import torch_device


@dataclass(frozen=True)
class Group:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """The process that writes files and talks."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients averaged over the processes."""
        if self.size == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over the processes."""
        if self.size == 1:
            return values
        values = values.clone()
        dist.all_reduce(values)
        return values / self.size

    def any(self, flag: bool) -> bool:
        """True for all when it is for one: processes must stop at the same step."""
        if self.size == 1:
            return flag
        return bool(self.mean(torch.tensor([float(flag)], device=self.device)).item() > 0)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def group(device: str = "auto") -> Iterator[Group]:
    """The processes that `torchrun` started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    place = torch_device(device)
    if size == 1:
        yield Group(0, 1, place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Group(dist.get_rank(), size, place)
    finally:
        dist.destroy_process_group()
