"""vLLM's example connector for hidden states, without CUDA: runs inside vLLM's own process.

The example copies by way of page-locked memory and CUDA events, which its CPU build has not. This
writes the same file at the same place, at once.
"""

import os

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class _Done:
    """Stands for a CUDA event of a copy that is over."""

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):
    """The example's, but for the copy."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        offsets = torch.arange(self._block_size)
        slots = (offsets[None] + blocks[:, None] * self._block_size).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        tensors = {"hidden_states": states.clone().contiguous(), "token_ids": pending.token_ids}
        save_file(tensors, pending.filename)
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is not None:
            os.close(lock)
        self._req_copy_events[pending.req_id] = _Done()
