"""speculators' offline data: a dataset of ids and masks, and a file of states for each row.

    data-00000-of-00001.arrow, state.json, dataset_info.json   as `datasets.load_from_disk` reads
    hidden_states/hs_<row>.safetensors   token_ids int64 [T], hidden_states bf16 [T, 4, H]
    token_freq.pt                        count of each token id that the target wrote

The fourth state is the last, before the final norm. `--data-path` of its trainer names the folder.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fleet.errors import InputError
from gpu_stage.engines.final_norm import FinalNorm
from gpu_stage.hidden.peers.plain import Plain

DATA = "data-00000-of-00001.arrow"
FEATURES = {"input_ids": "int64", "loss_mask": "int64"}
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.list_(pa.int64())) for name in FEATURES),
        pa.field("seq_len", pa.int64()),
    ]
)


def write(folder: Path, samples: Iterator[Plain], _: FinalNorm | None) -> int:
    """Write samples; how many."""
    (folder / "hidden_states").mkdir()
    seen, count = Counter[int](), 0
    with pa.OSFile(str(folder / DATA), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as stream:
        for count, sample in enumerate(samples, start=1):
            columns = ([sample.ids.tolist()], [sample.mask.long().tolist()], [len(sample.ids)])
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            stream.write_batch(pa.record_batch(arrays, schema=SCHEMA))
            tensors = {"token_ids": sample.ids, "hidden_states": sample.states.contiguous()}
            save_file(tensors, folder / f"hidden_states/hs_{count - 1}.safetensors")
            seen.update(sample.ids[sample.mask].tolist())
    torch.save(dict(seen), folder / "token_freq.pt")
    (folder / "dataset_info.json").write_text(json.dumps({"features": _features()}))
    (folder / "state.json").write_text(json.dumps(_state()))
    return count


def _features() -> dict[str, object]:
    lists: dict[str, object] = {
        name: {"feature": {"dtype": dtype, "_type": "Value"}, "_type": "List"}
        for name, dtype in FEATURES.items()
    }
    return lists | {"seq_len": {"dtype": "int64", "_type": "Value"}}


def _state() -> dict[str, object]:
    return {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": "eagle-fleet",
        # speculators takes tensors from it.
        "_format_columns": ["input_ids", "loss_mask", "seq_len"],
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }


def read(folder: Path, _: FinalNorm | None) -> Iterator[Plain]:
    """The samples of a folder, in its order.

    Raises:
        InputError: a file is missing or damaged, or is of other ids than its row.
    """
    number = 0
    for file in _data_files(folder):
        with pa.OSFile(str(file), "rb") as opened, pa.ipc.open_stream(opened) as stream:
            for batch in stream:
                for row in batch.to_pylist():
                    yield _sample(folder / f"hidden_states/hs_{number}.safetensors", row)
                    number += 1


def _data_files(folder: Path) -> list[Path]:
    state = folder / "state.json"
    try:
        return [folder / one["filename"] for one in json.loads(state.read_bytes())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{state}: not there or not readable ({error!r}); name the folder that speculators' "
            "prepare-data wrote"
        ) from error


def _sample(path: Path, row: dict[str, list[int]]) -> Plain:
    try:
        tensors = load_file(path)
        ids, states = tensors["token_ids"], tensors["hidden_states"]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({error!r}); make it again") from error
    if ids.tolist() != row["input_ids"][: len(ids)] or states.shape[:2] != (len(ids), 4):
        raise InputError(
            f"{path}: its token ids are not those of its row, or it has {states.shape} states "
            "instead of [tokens, 4, hidden size]; the folder mixes two data sets"
        )
    mask = torch.tensor(row["loss_mask"][: len(ids)], dtype=torch.bool)
    return Plain(path.name, ids, mask, states.to(torch.bfloat16))
