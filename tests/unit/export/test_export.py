"""Exports hold what each engine's loader reads, under the keys that it reads them by."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import training_kit as kit
from safetensors.torch import load_file
from typer.testing import CliRunner

from fleet.errors import ConfigError, InputError
from gpu_stage.cli import cli
from gpu_stage.export import layouts
from gpu_stage.export.write import export_draft
from gpu_stage.hidden.index import Layers
from gpu_stage.training import checkpoint

#: What SGLang and vLLM load, with the shapes of the test's target: hidden size 64, 4 heads of 16,
#: 2 of them for keys and values, an MLP of 96, a vocabulary of 300 and 200 of it in the draft's.
ENGINE_KEYS = {
    "fc.weight": (64, 192),
    "midlayer.input_layernorm.weight": (64,),
    "midlayer.hidden_norm.weight": (64,),
    "midlayer.post_attention_layernorm.weight": (64,),
    "midlayer.self_attn.q_proj.weight": (64, 128),
    "midlayer.self_attn.k_proj.weight": (32, 128),
    "midlayer.self_attn.v_proj.weight": (32, 128),
    "midlayer.self_attn.o_proj.weight": (64, 64),
    "midlayer.mlp.gate_proj.weight": (96, 64),
    "midlayer.mlp.up_proj.weight": (96, 64),
    "midlayer.mlp.down_proj.weight": (64, 96),
    "norm.weight": (64,),
    "lm_head.weight": (200, 64),
    "d2t": (200,),
    "t2d": (300,),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a training in `checkpoints/`, made by the command."""
    folder = tmp_path_factory.mktemp("trained")
    run, target = kit.write_states(folder, [12, 20, 16, 8, 24, 18])
    (folder / "train.toml").write_text(
        "steps = 2\nepochs = 1\ndraft_vocab_size = 200\nheldout_share = 0.4\n"
    )
    arguments = ["train", str(run), "-c", str(folder / "train.toml"), "--target", str(target)]
    done = CliRunner().invoke(cli, [*arguments, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return run / "checkpoints"


def export(trained: Path, style: Any, out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    export_draft(trained, style, out)
    return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_bytes())


@pytest.mark.parametrize("style", ["sglang", "vllm"])
def test_engines_find_every_key_and_no_other(trained: Path, tmp_path: Path, style: str) -> None:
    """SGLang passes over a key that it does not know, vLLM fails at one; neither may be there."""
    tensors, config = export(trained, style, tmp_path / "out")
    assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == ENGINE_KEYS
    floats = {key for key in tensors if key not in ("d2t", "t2d")}
    assert {tensors[key].dtype for key in floats} == {torch.bfloat16}
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (300, 200)
    assert config["tie_word_embeddings"] is False
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


def test_draft_ids_lead_to_the_target_ids_they_stand_for(trained: Path, tmp_path: Path) -> None:
    """d2t is an offset: draft id + d2t is where t2d is true."""
    tensors, _ = export(trained, "vllm", tmp_path / "out")
    ids = torch.arange(200) + tensors["d2t"]
    assert torch.equal(ids, tensors["t2d"].nonzero()[:, 0])


def test_layer_ids_are_written_as_each_engine_reads_them(trained: Path) -> None:
    """SGLang adds 1 to them; the defaults are left out, which every engine reads alike."""
    config = checkpoint.load_draft(trained).config
    other = Layers((1, 3, 6), 8)
    written = {
        style: layouts.engine_config(config, other, shift)["eagle_config"]
        for style, shift in layouts.SHIFT.items()
    }
    assert written["sglang"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 5]
    assert written["vllm"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]
    default = layouts.engine_config(config, Layers((2, 4, 5), 8), 1)["eagle_config"]
    assert default == {"use_aux_hidden_state": True}


def test_speculators_find_their_own_layout(trained: Path, tmp_path: Path) -> None:
    """`layers.0.*`, the embedding, and the norms' places always written: vLLM's default for a
    speculators checkpoint is the other one."""
    tensors, config = export(trained, "speculators", tmp_path / "out")
    renamed = {key.replace("midlayer.", "layers.0."): shape for key, shape in ENGINE_KEYS.items()}
    renamed["embed_tokens.weight"] = (300, 64)
    assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == renamed
    assert config["speculators_model_type"] == "eagle3"
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["transformer_layer_config"]["hidden_size"] == 64
    verifier = config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "llama", "architectures": ["LlamaForCausalLM"]}


def test_yarn_is_spelt_both_ways(trained: Path) -> None:
    """Old engines read `rope_scaling`, new ones `rope_parameters`."""
    config = checkpoint.load_draft(trained).config
    config.rope.clear()
    config.rope.update(rope_type="yarn", rope_theta=5e4, factor=4.0)
    written = layouts.engine_config(config, Layers((2, 4, 5), 8), 0)
    assert written["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert written["rope_parameters"] == {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0}
    assert written["rope_theta"] == 5e4


def test_the_card_says_what_evaluation_found(trained: Path, tmp_path: Path) -> None:
    """The command evaluates, then exports: acceptance, hashes and the way to serve are in the card;
    a draft that was not evaluated says so."""
    export_draft(trained, "vllm", tmp_path / "before")
    assert "Not measured" in (tmp_path / "before" / "README.md").read_text()
    run = str(trained.parent)
    done = CliRunner().invoke(cli, ["evaluate", run, "--tokens", "8", "--json", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    report = json.loads((trained / "evaluation.json").read_bytes())
    out = tmp_path / "after"
    done = CliRunner().invoke(cli, ["export", str(trained), "--format", "vllm", "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = (out / "README.md").read_text()
    assert f"| draft | {report['decoding']['by']['draft']['acceptance_length']:.3f} |" in text
    contract = json.loads((out / "contract.json").read_bytes())
    assert contract["sha256"] in text and "vllm serve" in text
    assert contract["aux_layers"]["hidden_states"] == [2, 4, 5]


def test_what_is_no_training_or_is_there_already_is_refused(trained: Path, tmp_path: Path) -> None:
    """By name, and nothing is left behind."""
    with pytest.raises(InputError, match="no training there"):
        export_draft(tmp_path, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export_draft(trained, "vllm", tmp_path / "out")
    with pytest.raises(ConfigError):
        export_draft(trained, "sglang", tmp_path / "out")
