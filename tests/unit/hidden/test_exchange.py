"""Hidden states in speculators' and SpecForge's files, and back."""

from pathlib import Path

import hidden_kit as kit
import pytest
import torch
from datasets import load_from_disk
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fleet.errors import ConfigError, InputError
from gpu_stage.engines.final_norm import read_norm
from gpu_stage.extract_command import Wishes, work_for
from gpu_stage.hidden import order as orders
from gpu_stage.hidden.exchange import export_hidden, import_hidden
from gpu_stage.hidden.extract import extract_here
from gpu_stage.hidden.inspect import shards_below, summary
from gpu_stage.hidden.shard_file import Shard

LENGTHS = [12, 30, 5]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    return kit.write_target(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.fixture
def hidden(tmp_path: Path, target: Path) -> Path:
    """Shards of three samples."""
    run = kit.write_run(tmp_path / "run", LENGTHS)
    wishes = Wishes(run, None, target, "resident", "bf16", "", "20KB", 64, device="cpu", spool="0")
    work = work_for(wishes)
    orders.keep(work.folder, work.order)
    extract_here(work, Console(quiet=True))
    return work.folder


def everything(folder: Path) -> tuple[list[int], list[bool], torch.Tensor]:
    """Ids, mask and states of all shards, end to end."""
    shards = [Shard(path) for path in shards_below(folder)]
    ids = [i for shard in shards for i in shard.input_ids.tolist()]
    mask = [m for shard in shards for m in shard.loss_mask.tolist()]
    return ids, mask, torch.cat([shard.hidden_states() for shard in shards])


def test_speculators_files_are_what_its_trainer_reads(
    hidden: Path, target: Path, tmp_path: Path
) -> None:
    """Rows by `load_from_disk` as tensors, a file of states for each, ids alike; and back."""
    out = tmp_path / "theirs"
    assert export_hidden(hidden, "speculators", out, None) == 3
    rows = load_from_disk(str(out))
    ids, mask, states = everything(hidden)
    start = 0
    for number, row in enumerate(rows):
        end = start + LENGTHS[number]
        assert isinstance(row["input_ids"], torch.Tensor) and int(row["seq_len"]) == end - start
        found = load_file(out / f"hidden_states/hs_{number}.safetensors")
        assert found["token_ids"].tolist() == row["input_ids"].tolist() == ids[start:end]
        assert row["loss_mask"].tolist() == mask[start:end]
        assert torch.equal(found["hidden_states"], states[start:end])
        start = end
    counts = torch.load(out / "token_freq.pt")
    assert sum(counts.values()) == sum(mask)
    assert import_hidden(out, "speculators", tmp_path / "ours", target, 20_000) == (3, 2)
    again = everything(tmp_path / "ours")
    assert again[:2] == (ids, mask) and torch.equal(again[2], states)
    assert summary(tmp_path / "ours", check=True)["samples"] == 3


def test_specforge_files_are_what_its_trainer_reads(
    hidden: Path, target: Path, tmp_path: Path
) -> None:
    """The last state is behind the final norm, as the model itself gives it; and back, with the
    same logits."""
    out = tmp_path / "theirs"
    assert export_hidden(hidden, "specforge", out, target) == 3
    ids, mask, states = everything(hidden)
    first = torch.load(out / "rows_0-2000/data_0.ckpt", weights_only=True)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = model.model(first["input_ids"][None], output_hidden_states=True)
    assert first["input_ids"].tolist() == ids[:12] and first["loss_mask"].tolist() == mask[:12]
    assert torch.allclose(first["hidden_state"], theirs.last_hidden_state, atol=0.02, rtol=0.02)
    aux = torch.cat([theirs.hidden_states[n] for n in (2, 4, 5)], dim=-1)
    assert torch.allclose(first["aux_hidden_state"], aux, atol=0.02, rtol=0.02)
    assert import_hidden(out, "specforge", tmp_path / "ours", target, 10**9) == (3, 1)
    again, norm = everything(tmp_path / "ours"), read_norm(target)
    assert again[:2] == (ids, mask) and torch.equal(again[2][:, :3], states[:, :3])
    assert torch.allclose(norm.of(again[2][:, 3]), norm.of(states[:, 3]), atol=0.03, rtol=0.02)


def test_the_norm_is_the_models_own(target: Path) -> None:
    """Bit for bit what transformers computes."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    last = torch.randn(9, kit.HIDDEN).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(read_norm(target).of(last), model.model.norm(last))


def test_what_is_not_theirs_is_refused_by_name(hidden: Path, target: Path, tmp_path: Path) -> None:
    """Nothing there; ids of another row; states of another target; a file that is cut."""
    for style, word in (("speculators", "state.json"), ("specforge", "no data_")):
        with pytest.raises(InputError, match=word):
            import_hidden(tmp_path, style, tmp_path / "x", target, 10**9)
    with pytest.raises(ConfigError, match="--target"):
        export_hidden(hidden, "specforge", tmp_path / "y", None)
    out = tmp_path / "theirs"
    export_hidden(hidden, "speculators", out, None)
    file = out / "hidden_states/hs_1.safetensors"
    whole = load_file(file)
    save_file(whole | {"token_ids": whole["token_ids"] + 1}, file)
    with pytest.raises(InputError, match=r"hs_1\.safetensors: its token ids"):
        import_hidden(out, "speculators", tmp_path / "x", target, 10**9)
    save_file(whole | {"hidden_states": torch.zeros(30, 4, 8)}, file)
    with pytest.raises(InputError, match="another target's"):
        import_hidden(out, "speculators", tmp_path / "x", target, 10**9)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=r"hs_1\.safetensors: cannot be read"):
        import_hidden(out, "speculators", tmp_path / "x", target, 10**9)
    assert not (tmp_path / "x").exists()
