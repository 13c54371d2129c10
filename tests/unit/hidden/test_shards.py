"""Shards of hidden states: written in one pass, mapped, checked; extraction that goes on."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import hidden_kit as kit
import msgspec
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors import safe_open

from fleet.errors import ConfigError, InputError
from gpu_stage.claimed_file import claim, temporary_of
from gpu_stage.engines.packing import Pack
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.engines.states import Engine, States
from gpu_stage.extract_command import Wishes, size_bytes, work_for
from gpu_stage.hidden import order as orders
from gpu_stage.hidden import spool
from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.extract import extract_here
from gpu_stage.hidden.float8 import Error, from_float8, to_float8
from gpu_stage.hidden.index import index_of
from gpu_stage.hidden.inspect import inspect, summary
from gpu_stage.hidden.make import Outcome, Watch, make_shard
from gpu_stage.hidden.shard_file import Shard
from gpu_stage.hidden.work import open_work

LENGTHS = (12, 30, 5, 44, 9, 21, 17, 33)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    return kit.write_target(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two parts of samples."""
    return kit.write_run(tmp_path / "run", LENGTHS, rows_a_part=4)


def work(run: Path, target: Path, **wishes: object) -> Work:
    """The work of `gpu-stage extract`; shards of about 60 tokens."""
    wanted = {
        "source": run,
        "out": None,
        "target": target,
        "engine": "resident",
        "storage": "bf16",
        "layers": "",
        "shard_size": f"{60 * 4 * kit.HIDDEN * 2}",
        "pack_tokens": 32,
        "device": "cpu",
        "spool": "0",
    }
    found = work_for(Wishes(**(wanted | wishes)))
    orders.keep(found.folder, found.order)
    return found


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_shards_hold_the_states_of_every_sample(run: Path, target: Path) -> None:
    """Cut at samples and parts; ids, masks and states are each sample's own, in order."""
    todo = work(run, target)
    made = extract_here(todo, QUIET)
    assert made.outcomes[Outcome.MADE] == len(shards(todo.folder)) == 4
    samples = [
        (row["prompt_id"], row["input_ids"], row["loss_spans"][0])
        for part in sorted(run.glob("samples/*/*.parquet"))
        for row in pq.ParquetFile(part).read().to_pylist()
    ]
    engine, seen = ResidentEngine(target), 0
    for path in shards(todo.folder):
        shard = Shard(path)
        bounds = shard.bounds.tolist()
        for n, (start, end) in enumerate(pairwise(bounds)):
            name, ids, span = samples[seen]
            assert (shard.index.samples[n].prompt_id, seen) == (name, seen)
            assert shard.input_ids[start:end].tolist() == ids
            assert shard.loss_mask[start:end].nonzero()[:, 0].tolist() == list(
                range(span["start"], span["end"])
            )
            (alone,) = engine.states([_pack(ids)])
            stored = shard.hidden_states(start, end)
            assert torch.allclose(stored.float(), alone.all.float(), atol=0.05, rtol=0.02)
            seen += 1
        shard.check()
    assert seen == len(LENGTHS)
    assert made.tokens == sum(LENGTHS) == summary(todo.folder, check=True)["tokens"]


def _pack(ids: Sequence[int]) -> Pack:
    return Pack(torch.tensor(ids), (0, len(ids)))


def test_the_file_is_plain_safetensors(run: Path, target: Path) -> None:
    """Any reader of safetensors reads it, states first."""
    todo = work(run, target)
    extract_here(todo, QUIET)
    path = shards(todo.folder)[0]
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tokens = sum(LENGTHS[:3])
    assert {name: list(t.shape) for name, t in tensors.items()} == {
        "hidden_states": [tokens, 4, kit.HIDDEN],
        "input_ids": [tokens],
        "cu_seqlens": [4],
        "loss_mask": [tokens],
    }
    shown = inspect(path, check=True)
    assert (shown["tokens"], shown["finite"]) == (tokens, True)


def test_what_is_there_is_not_made_again(run: Path, target: Path) -> None:
    """New samples make new shards only; samples made anew make their shards again."""
    todo = work(run, target)
    extract_here(todo, QUIET)
    before = {path: path.stat().st_ino for path in shards(todo.folder)}
    assert extract_here(work(run, target), QUIET).outcomes == {Outcome.UP_TO_DATE: 4}
    kit.write_run(run.parent / "more", [10, 11])
    (part,) = (run.parent / "more").glob("samples/*/*.parquet")
    part.rename(run / "samples/dataset=B1/part-0007.parquet")
    made = extract_here(work(run, target), QUIET)
    assert made.outcomes == {Outcome.UP_TO_DATE: 4, Outcome.MADE: 1}
    assert {path: path.stat().st_ino for path in before} == before
    first = run / "samples/dataset=B1/part-0000.parquet"
    table = pq.ParquetFile(first).read()
    pq.write_table(table.slice(0, 3), first)
    again = extract_here(work(run, target), QUIET)
    assert again.outcomes[Outcome.MADE] >= 1


def test_other_wishes_for_the_same_folder_are_refused(run: Path, target: Path) -> None:
    """Another storage, layers or cut would mix two kinds of shards."""
    work(run, target)
    for other in ({"storage": "fp8"}, {"layers": "1,2,3"}, {"shard_size": "1GB"}):
        with pytest.raises(ConfigError, match="name another folder with --out"):
            work(run, target, **other)
    assert work(run, target, pack_tokens=64).order.pack_tokens == 64


def test_a_shard_that_is_not_whole_is_refused_by_name(run: Path, target: Path) -> None:
    """Cut short, changed, without its index, with another's, or no shard at all."""
    todo = work(run, target)
    extract_here(todo, QUIET)
    first, second, third, fourth = shards(todo.folder)
    content = first.read_bytes()
    first.write_bytes(content[:-10])
    with pytest.raises(InputError, match=rf"{first.name}: has .* cut short"):
        Shard(first)
    first.write_bytes(content[:-10] + bytes(10))
    Shard(first)
    with pytest.raises(InputError, match=rf"{first.name}: its content is not what was written"):
        Shard(first).check()
    index_of(second).unlink()
    with pytest.raises(InputError, match=rf"{second.name}: has no index"):
        Shard(second)
    index_of(third).write_bytes(index_of(fourth).read_bytes())
    with pytest.raises(InputError, match=rf"{third.name}: has .* not the shard"):
        Shard(third)
    index_of(fourth).write_text("{}")
    with pytest.raises(InputError, match="not the index of a shard"):
        Shard(fourth)
    index_of(fourth).write_text(index_of(first).read_text().replace('"version":1', '"version":9'))
    with pytest.raises(InputError, match="version 9"):
        Shard(fourth)
    with pytest.raises(InputError, match=r"notes.md: not a shard of hidden states"):
        inspect(todo.folder / "notes.md", check=False)


def test_what_a_killed_process_left_is_made_anew(run: Path, target: Path) -> None:
    """An unfinished file, and a shard without its index, are written over."""
    todo = work(run, target)
    extract_here(todo, QUIET)
    first, second, *_ = shards(todo.folder)
    whole = first.read_bytes(), second.read_bytes()
    index_of(first).unlink()
    second.unlink()
    index_of(second).unlink()
    temporary_of(second).write_bytes(b"half")
    assert extract_here(work(run, target), QUIET).outcomes[Outcome.MADE] == 2
    assert (first.read_bytes(), second.read_bytes()) == whole
    assert summary(todo.folder, check=True)["shards"] == 4


def test_a_shard_that_another_process_makes_is_left_to_it(run: Path, target: Path) -> None:
    """Of two that want it, one does."""
    todo = work(run, target)
    piece = todo.pieces[0]
    with claim(todo.path(piece)) as file:
        assert file is not None
        assert make_shard(todo, piece, _never, Watch()) is Outcome.BUSY


def _never() -> Engine:
    raise AssertionError("the target was loaded for nothing")


def test_a_claim_that_was_lost_finishes_nothing(run: Path, target: Path) -> None:
    """A worker that slept past its claim leaves the shard to whoever took it."""
    todo = work(run, target)

    class Late(Watch):
        def still_mine(self) -> bool:
            return False

    piece = todo.pieces[0]
    assert make_shard(todo, piece, lambda: ResidentEngine(target), Late()) is Outcome.BUSY
    assert shards(todo.folder) == []


def test_fp8_halves_the_bytes_and_says_how_far_it_is_off(run: Path, target: Path) -> None:
    """The index holds the error that a comparison with bf16 finds."""
    exact, small = (
        work(run, target),
        work(run, target, storage="fp8", out=run / "fp8", shard_size="1GB"),
    )
    extract_here(exact, QUIET)
    extract_here(small, QUIET)
    shard = Shard(shards(small.folder)[0])
    stored = shard.hidden_states().float()
    true = torch.cat([Shard(p).hidden_states() for p in shards(exact.folder)]).float()[
        : len(stored)
    ]
    off = ((stored - true).square().sum((0, 2)) / true.square().sum((0, 2))).sqrt()
    assert shard.index.float8_error == pytest.approx(off.tolist(), rel=0.05)
    assert 0 < max(shard.index.float8_error) < 0.04
    assert shard.hidden_states(3, 5).shape == (2, 4, kit.HIDDEN)
    bf16 = sum(Shard(path).index.bytes for path in shards(exact.folder))
    assert sum(path.stat().st_size for path in shards(small.folder)) < 0.6 * bf16


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-6, 1e4), st.integers(1, 40))
def test_fp8_keeps_three_bits_whatever_the_scale(size: float, tokens: int) -> None:
    """Relative error of a value that is not tiny beside the largest: at most 1/16."""
    states = torch.randn(tokens, 4, 16, generator=torch.Generator().manual_seed(tokens)) * size
    values, scale = to_float8(states)
    back = from_float8(values, scale).float()
    large = states.abs() > states.abs().amax(-1, keepdim=True) / 1000
    assert ((back - states).abs() <= states.abs() / 16 * 1.1)[large].all()
    zeros, one = to_float8(torch.zeros(2, 4, 16))
    assert (from_float8(zeros, one) == 0).all()
    error = Error()
    error.add(states, values, scale)
    assert max(error.relative()) < 0.05


class _Fixed(Engine):
    """An engine that gives ones."""

    def states(self, packs: Sequence[Pack]) -> Iterator[States]:
        for pack in packs:
            yield States(torch.ones(len(pack.ids), 4, kit.HIDDEN, dtype=torch.bfloat16))

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_a_full_spool_waits_until_a_shard_is_consumed(
    run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extraction goes on once training has deleted one; the folder never exceeds its bound; what
    was consumed is not made again."""
    monkeypatch.setattr(spool, "POLL_S", 0)
    most = 2 * 60 * (4 * kit.HIDDEN * 2 + 5) + 2000
    todo = work(run, target, spool=str(most))
    sizes: list[int] = []

    class Training(Watch):
        def waiting(self) -> None:
            sizes.append(spool.used_bytes(todo.folder))
            spool.consume(shards(todo.folder)[0])

    watch = Training()
    for piece in todo.pieces:
        assert make_shard(todo, piece, _Fixed, watch) is Outcome.MADE
        sizes.append(spool.used_bytes(todo.folder))
    assert max(sizes) <= most and len(shards(todo.folder)) < 4
    assert all(todo.made(piece) for piece in open_work(todo.folder).pieces)
    assert summary(todo.folder, check=True)["consumed"] == 4 - len(shards(todo.folder))
    gone = todo.path(todo.pieces[0])
    spool.consume(gone)
    with pytest.raises(InputError, match="is gone, its index is there"):
        Shard(gone)


def test_a_spool_smaller_than_a_shard_is_refused(run: Path, target: Path) -> None:
    """It would wait for ever."""
    todo = work(run, target, spool="2KB")
    with pytest.raises(ConfigError, match="give --spool more"):
        make_shard(todo, todo.pieces[0], _Fixed, Watch())
    assert list(todo.folder.rglob(".*.tmp")) == []


def test_rejected_rows_are_no_samples(tmp_path: Path, target: Path) -> None:
    """They are left out, and a part of nothing else makes no shard."""
    run = kit.write_run(tmp_path / "run", [8, 9, 10], rows_a_part=2)
    for part, rejected in zip(sorted(run.glob("samples/*/*")), ([1], [0]), strict=True):
        rows = pq.ParquetFile(part).read()
        fidelity = ["rejected" if n in rejected else "counted" for n in range(len(rows))]
        column = rows.schema.get_field_index("fidelity")
        pq.write_table(rows.set_column(column, rows.schema.field(column), [fidelity]), part)
    todo = work(run, target)
    assert [(p.samples, p.tokens) for p in todo.pieces] == [(1, 8)]
    extract_here(todo, QUIET)
    assert len(Shard(shards(todo.folder)[0]).index.samples) == 1


def test_another_target_in_the_same_place_is_noticed(tmp_path: Path, run: Path) -> None:
    """A worker whose weights differ from those that the work was begun with makes nothing."""
    folder = kit.write_target(tmp_path / "target", "llama")
    todo = work(run, folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-40_000:] = bytes(40_000)
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(ConfigError, match="holds other weights"):
        extract_here(todo, QUIET)


def test_sizes_are_read_as_people_write_them() -> None:
    """Powers of ten, as disks are sold."""
    assert [size_bytes(text) for text in ("200GB", "1.5 tb", "4096", "0")] == [
        200 * 10**9,
        15 * 10**11,
        4096,
        0,
    ]
    for wrong in ("", "much", "GB", "1PB"):
        with pytest.raises(ConfigError, match="not a size"):
            size_bytes(wrong)


def test_an_index_says_what_a_program_needs(run: Path, target: Path) -> None:
    """Target, layers, source and samples, as JSON."""
    todo = work(run, target)
    extract_here(todo, QUIET)
    index = json.loads(index_of(shards(todo.folder)[0]).read_text())
    assert index["contract"]["layers"] == {"aux": [2, 4, 5], "last": 8}
    assert index["contract"]["source"]["part"] == "dataset=B1/part-0000"
    assert index["contract"]["target"]["name"] == "llama"
    assert [sample[2:] for sample in index["samples"]] == [[12, 6], [30, 15], [5, 3]]
    assert msgspec.json.decode(json.dumps(index))["engine"] == "resident"
