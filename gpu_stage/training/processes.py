"""The processes of one training: one, or as many as `torchrun` starts, one a GPU.

Gradients are summed, not averaged, and slots are counted over all processes before: so two
processes take the step that one would have taken.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """This process's place among them."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Add up over all processes, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that `torchrun` says there are; alone without it."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    own = torch.device(device)
    if own.type == "cuda" and own.index is None:
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
    if count == 1:
        yield Processes(), own
        return
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), count), own
    finally:
        dist.destroy_process_group()
