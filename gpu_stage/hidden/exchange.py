"""Shards written in another trainer's format, and another's files made shards."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from fleet.errors import InputError
from gpu_stage.engines.final_norm import read_norm
from gpu_stage.files import whole_folder
from gpu_stage.hidden.index import Contract, Source, index_of
from gpu_stage.hidden.inspect import shards_below
from gpu_stage.hidden.peers import specforge, speculators
from gpu_stage.hidden.peers.plain import Plain
from gpu_stage.hidden.shard_file import Shard, token_bytes
from gpu_stage.hidden.target import layers_of, look_at
from gpu_stage.hidden.write import Read, write_shard

FORMATS: dict[str, ModuleType] = {"speculators": speculators, "specforge": specforge}


def export_hidden(folder: Path, style: str, out: Path, target: Path | None) -> int:
    """Write all samples of a folder of shards as another trainer reads them; how many.

    Args:
        out: appears when it is whole.
        target: its folder, where the format needs the final norm.

    Raises:
        ConfigError: `out` is there, or the target is needed.
        InputError: a shard is not whole.
    """
    shards = shards_below(folder)
    if not shards:
        raise InputError(f"{folder}: no shards there; `gpu-stage extract` makes them")
    norm = read_norm(target) if target else None
    with whole_folder(out) as made:
        return int(FORMATS[style].write(made, _samples(shards), norm))


def _samples(shards: list[Path]) -> Iterator[Plain]:
    for path in shards:
        shard = Shard(path)
        shard.check()
        bounds = shard.bounds.tolist()
        ids, mask = shard.input_ids.long(), shard.loss_mask
        for sample, start, end in zip(shard.index.samples, bounds, bounds[1:], strict=False):
            span = slice(start, end)
            states = shard.hidden_states(start, end)
            yield Plain(sample.prompt_id, ids[span].clone(), mask[span].clone(), states)


def import_hidden(
    folder: Path, style: str, out: Path, target: Path, shard_bytes: int
) -> tuple[int, int]:
    """Make shards of another trainer's files; samples and shards.

    Args:
        out: appears when it is whole.
        target: whose states they are; of its default layers.

    Raises:
        ConfigError: `out` is there, or the target cannot be read.
        InputError: a file is not what it should be, or is of another hidden size.
    """
    norm, layers = read_norm(target), layers_of(target, None)
    samples = FORMATS[style].read(folder, norm)
    size = len(norm.weight)
    seen = hashlib.sha256(f"{style} {folder.resolve()}".encode()).hexdigest()
    count = shards = 0
    with whole_folder(out) as made:
        for group in _groups(samples, shard_bytes // token_bytes(size, "bf16"), size):
            source = Source(f"{style}: {folder.name}", seen, (count, count + len(group)))
            contract = Contract(look_at(target), layers, "bf16", source)
            _write(made / f"part-{shards:05}.safetensors", group, contract)
            count, shards = count + len(group), shards + 1
    return count, shards


def _groups(samples: Iterable[Plain], most: int, size: int) -> Iterator[list[Plain]]:
    group: list[Plain] = []
    tokens = 0
    for sample in samples:
        if sample.states.shape[-1] != size:
            raise InputError(
                f"{sample.name}: states of {sample.states.shape[-1]} values, the target's have "
                f"{size}: they are another target's"
            )
        if group and tokens + len(sample.ids) > most:
            yield group
            group, tokens = [], 0
        group.append(sample)
        tokens += len(sample.ids)
    if group:
        yield group


def _write(path: Path, group: list[Plain], contract: Contract) -> None:
    samples = [Read(one.name, "", one.ids, one.mask) for one in group]
    with path.open("wb") as file:
        index = write_shard(file, contract, "imported", samples, (one.states for one in group))
    index_of(path).write_bytes(msgspec.json.encode(index))
