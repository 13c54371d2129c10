"""Hidden states from a real vLLM, on its CPU build: `make engine-test`.

Its example connector copies by CUDA alone; `cpu_connector.py` stands in for the copy and nothing
else. So the layers, their order and their meaning are vLLM's own.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import samples_kit
import torch

from fleet.cache import smollm2_folder
from gpu_stage.engines.layers import default_layers
from gpu_stage.engines.packing import make_pack
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.engines.vllm import VllmEngine
from gpu_stage.extract_command import Wishes, extract, work_for
from gpu_stage.hidden.inspect import summary

pytestmark = pytest.mark.engine

LAB = Path(__file__).parents[3] / "shared" / "tools" / "vllm-lab"
SAMPLED = Path(__file__).parents[3] / "shared" / "data" / "smollm2" / "faithful.parquet"
TARGET = smollm2_folder()
LAYERS = default_layers(30)
START_S = 420


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM server of SmolLM2 that hands out hidden states."""
    if not (LAB.exists() and TARGET.exists()):
        pytest.skip("needs ../shared/tools/vllm-lab and SmolLM2 (run `make demo` once)")
    folder = tmp_path_factory.mktemp("vllm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {
            "hf_config": {"eagle_aux_hidden_state_layer_ids": [*LAYERS.aux, LAYERS.last]}
        },
    }
    transfer = {
        "kv_connector": "CpuHiddenStatesConnector",
        "kv_connector_module_path": "cpu_connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "states")},
    }
    options = ["--no-enable-chunked-prefill", "--no-enable-prefix-caching"]
    options += ["--max-num-batched-tokens", "4096"]
    options += ["--speculative-config", json.dumps(speculative)]
    options += ["--kv-transfer-config", json.dumps(transfer)]
    url = f"http://127.0.0.1:{port}"
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [LAB, "serve", TARGET, str(port), *options],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
            stdout=log,
            stderr=log,
        )
    try:
        _wait(url, process, folder / "vllm.log")
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def rows(count: int) -> list[list[int]]:
    table = pq.read_table(SAMPLED, columns=["prompt_token_ids", "token_ids"]).slice(0, count)
    return [row["prompt_token_ids"] + row["token_ids"] for row in table.to_pylist()]


def test_vllms_states_are_ours(server: str) -> None:
    """The same four layers in the same order: as near as two engines' bf16 are, and far from the
    layers beside them. So an index here means what vLLM means by it."""
    pack = make_pack(rows(4))
    (theirs,) = VllmEngine(TARGET, server, LAYERS).states([pack])
    (ours,) = ResidentEngine(TARGET).states([pack])
    near = [_distance(theirs.all[:, n], ours.all[:, n]) for n in range(4)]
    assert max(near) < 0.05, near
    beside = type(LAYERS)((LAYERS.aux[0] + 1, LAYERS.aux[1] + 1, LAYERS.aux[2] + 1), LAYERS.last)
    (off,) = ResidentEngine(TARGET, layers=beside).states([pack])
    assert min(_distance(theirs.all[:, n], off.all[:, n]) for n in range(3)) > 2 * max(near)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative, root mean square over tokens: the first token's states are a thousand times as
    large as the rest, so each token counts alike."""
    off = (one.float() - other.float()).norm(dim=-1) / other.float().norm(dim=-1)
    return float(off.median())


def test_shards_are_extracted_through_a_server(server: str, tmp_path: Path) -> None:
    """`gpu-stage extract --engine vllm`: all samples, and no file of the server's is left."""
    samples = [
        samples_kit.Row(f"q{n}", prompt_ids=ids[:20], completion_ids=ids[20:])
        for n, ids in enumerate(rows(6))
    ]
    run = samples_kit.write_run(tmp_path / "run", {"B1": samples})
    wishes = Wishes(run, None, TARGET, "vllm", "bf16", "", "1GB", 1024, device=server, spool="0")
    work = work_for(wishes)
    assert extract(work, queue_url=None, as_json=True) == 0
    assert summary(work.folder, check=True)["samples"] == 6
