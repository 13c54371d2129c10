"""The states of a chunk of samples while its layers go by: in memory, or on the disk by size.

T   tokens of the chunk    H   hidden size
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

#: Low, middle, high, and the running one, which ends as `last`.
STATES = 4


@dataclass(frozen=True)
class HostMemory:
    """Where activations may lie."""

    #: Chunks up to so many bytes lie in memory.
    most_bytes: int = 64 << 30
    #: Folder for a larger one: a file without a name, which ends with its process.
    folder: Path = Path(tempfile.gettempdir())

    def states(
        self, tokens: int, hidden_size: int, dtype: torch.dtype, *, pinned: bool
    ) -> torch.Tensor:
        """Room for a chunk, [T, 4, H], uninitialised.

        Args:
            pinned: page-locked, so that a GPU copies from and to it while it computes.
        """
        shape = (tokens, STATES, hidden_size)
        count = tokens * STATES * hidden_size
        if count * dtype.itemsize <= self.most_bytes:
            return torch.empty(shape, dtype=dtype, pin_memory=pinned)
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix="activations-") as file:
            file.truncate(count * dtype.itemsize)
            mapped = torch.from_file(file.name, shared=True, size=count, dtype=dtype)
        return mapped.view(shape)
