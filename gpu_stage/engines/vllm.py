"""The target on a vLLM server that hands out hidden states.

In: the server's URL, a target's folder for the head. Out: an `Engine`. The server is started with
`speculative_config` "extract_hidden_states" and its example connector (docs/extract.md); it writes
a file for each request, into a folder that this machine sees too. Its states are those before a
layer's index, so index i is h[i], as here, and L the last before the norm.
"""

import fcntl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fleet.errors import ConfigError, FleetError
from gpu_stage.engines.final_norm import read_head
from gpu_stage.engines.layers import Layers
from gpu_stage.engines.packing import Pack
from gpu_stage.engines.states import Engine, States
from gpu_stage.engines.target_config import read_config

#: Requests at once: enough for the server to fill its batches.
IN_FLIGHT = 32
TIMEOUT_S = 600.0


class VllmEngine(Engine):
    """A target that a vLLM server has loaded."""

    def __init__(self, folder: Path, url: str, layers: Layers) -> None:
        """
        Args:
            layers: those that the server was started to extract; nothing there says which.

        Raises:
            ConfigError: no server answers there, or the folder holds no target.
        """
        config = read_config(folder)
        self.layers, self.dtype = layers, torch.bfloat16
        self.hidden_size, self.vocabulary = config.hidden_size, config.vocab_size
        self._url, self._head = url.rstrip("/"), read_head(folder)
        self._model = self._served()

    def _served(self) -> str:
        try:
            reply = requests.get(f"{self._url}/v1/models", timeout=10)
            reply.raise_for_status()
            model: str = reply.json()["data"][0]["id"]
        except (requests.RequestException, KeyError, IndexError) as error:
            raise ConfigError(
                f"{self._url}: no vLLM server answers ({error!r}); start one as docs/extract.md "
                "says, and name its URL with --device"
            ) from error
        return model

    def states(self, packs: Sequence[Pack]) -> Iterator[States]:
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            spans = [[pack.ids[a:b].tolist() for a, b in pack.spans()] for pack in packs]
            coming = [[pool.submit(self._sample, ids) for ids in samples] for samples in spans]
            for futures in coming:
                yield States(torch.cat([future.result() for future in futures]))

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        return self._head.logits(last)

    def _sample(self, ids: list[int]) -> torch.Tensor:
        """[T, 4, H] of one sample.

        Raises:
            FleetError: the server refuses it, or its file is not that sample's.
        """
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0}
        try:
            reply = requests.post(f"{self._url}/v1/completions", json=body, timeout=TIMEOUT_S)
            reply.raise_for_status()
            path = Path(reply.json()["kv_transfer_params"]["hidden_states_path"])
        except (requests.RequestException, KeyError, TypeError) as error:
            raise FleetError(
                f"{self._url}: gave no hidden states for a sample of {len(ids)} tokens "
                f"({error!r}); was it started with extract_hidden_states, and room for as many?"
            ) from error
        return self._taken(path, ids)

    def _taken(self, path: Path, ids: list[int]) -> torch.Tensor:
        """Read the file that the server wrote, and delete it."""
        lock = path.with_name(path.name + ".lock")
        try:
            with lock.open("a") as held:  # held by the server while it writes
                fcntl.flock(held, fcntl.LOCK_EX)
                found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise FleetError(
                f"{path}: the server's file cannot be read here ({error}); its folder must be "
                "under the same path on this machine"
            ) from error
        states = found["hidden_states"]
        wanted = (len(ids), 4, self.hidden_size)
        if found["token_ids"].tolist() != ids or states.shape != wanted:
            raise FleetError(
                f"{path}: is of other token ids, or its states {tuple(states.shape)} are not "
                f"{wanted}; start the server with the layers {[*self.layers.aux, self.layers.last]}"
            )
        path.unlink()
        lock.unlink(missing_ok=True)
        return states.to(torch.bfloat16)
