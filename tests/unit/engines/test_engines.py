"""The engines against transformers' own forward pass, on small targets of each class."""

import json
from collections.abc import Callable
from pathlib import Path

import hidden_kit as kit
import pytest
import torch
from transformers import AutoModelForCausalLM

from fleet.errors import ConfigError
from gpu_stage.engines.activations import HostMemory
from gpu_stage.engines.layers import Layers, default_layers
from gpu_stage.engines.packing import make_pack, packs
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.engines.states import States
from gpu_stage.engines.streamed import StreamedEngine

KINDS = pytest.mark.parametrize("kind", list(kit.CONFIGS))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A target's folder by its kind."""
    folder, made = tmp_path_factory.mktemp("targets"), dict[str, Path]()

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = kit.write_target(folder / kind, kind)
        return made[kind]

    return get


@KINDS
def test_states_are_what_transformers_says_they_are(
    target: Callable[[str], Path], kind: str
) -> None:
    """aux is `output_hidden_states[i]`, the residual stream behind i layers, at 2, L/2 and L-3;
    last is the one behind all layers, which transformers' list has only normed; logits are its."""
    folder = target(kind)
    (pack,) = kit.make_packs([40])
    engine = ResidentEngine(folder)
    (states,) = engine.states([pack])
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="eager"
    )
    with torch.inference_mode():
        theirs = model(pack.ids[None], output_hidden_states=True)
    for mine, index in enumerate((2, kit.LAYERS // 2, kit.LAYERS - 3)):
        assert torch.equal(states.aux[:, mine], theirs.hidden_states[index][0])
    assert not torch.equal(states.last, theirs.hidden_states[-1][0])
    assert torch.equal(engine.logits(states.last), theirs.logits[0].float())


@KINDS
def test_streamed_is_resident_bit_for_bit(target: Callable[[str], Path], kind: str) -> None:
    """Several packs through a layer before the next is read: the same numbers."""
    packs_ = kit.make_packs([5, 17, 3], [40], [1, 2, 3, 4])
    resident, streamed = ResidentEngine(target(kind)), StreamedEngine(target(kind))
    mine, theirs = list(streamed.states(packs_)), list(resident.states(packs_))
    assert [len(states.all) for states in mine] == [25, 40, 10]
    assert all(torch.equal(a.all, b.all) for a, b in zip(mine, theirs, strict=True))
    last = theirs[0].last
    assert torch.equal(streamed.logits(last), resident.logits(last))


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("config", [kit.INT4, kit.FP8], ids=["int4", "fp8"])
def test_quantised_weights_count_as_what_they_stand_for(
    tmp_path: Path, kind: str, config: dict[str, object]
) -> None:
    """INT4 as compressed-tensors packs it, and blocks of fp8: as the plain weights, bit for bit."""
    plain = kit.write_target(tmp_path / "plain", kind)
    small = kit.write_quantised(tmp_path / "small", plain, config)
    packs_ = kit.make_packs([20, 11])
    (mine,), (theirs,) = (
        list(engine.states(packs_)) for engine in (StreamedEngine(small), ResidentEngine(plain))
    )
    assert torch.equal(mine.all, theirs.all)


@KINDS
def test_packing_changes_nothing(target: Callable[[str], Path], kind: str) -> None:
    """A sample's states are the same alone and in a pack, in float32 to its last digits: a
    neighbour's token changes nothing at all."""
    engine = ResidentEngine(target(kind), dtype=torch.float32)
    first, second, third = (kit.make_ids(n) for n in (7, 30, 12))
    alone, packed, other = engine.states(
        [
            make_pack([second]),
            make_pack([first, second, third]),
            make_pack([third[:7], second, first]),
        ]
    )
    assert torch.allclose(packed.all[7:37], alone.all, atol=1e-5, rtol=1e-5)
    assert torch.allclose(other.all[7:37], packed.all[7:37], atol=1e-6, rtol=1e-6)


def test_states_that_do_not_fit_into_memory_lie_on_the_disk(
    target: Callable[[str], Path], tmp_path: Path
) -> None:
    """A chunk beyond the bound is mapped from a file, which leaves nothing behind."""
    packs_ = kit.make_packs([30], [9])
    on_disk = StreamedEngine(target("llama"), memory=HostMemory(0, tmp_path))
    mine = [States(states.all.clone()) for states in on_disk.states(packs_)]
    theirs = ResidentEngine(target("llama")).states(packs_)
    assert all(torch.equal(a.all, b.all) for a, b in zip(mine, theirs, strict=True))
    assert list(tmp_path.iterdir()) == []


def test_only_two_layers_are_in_memory(target: Callable[[str], Path]) -> None:
    """Between layers, and behind the last, a streamed target holds no layer's weights."""
    engine = StreamedEngine(target("deepseek_v3"))
    seen = []
    layers = engine._body.layers
    for layer in layers:
        layer.register_forward_hook(lambda *_: seen.append(_filled(layers)))
    list(engine.states(kit.make_packs([10])))
    assert seen == [1] * kit.LAYERS
    assert _filled(layers) == 0


def _filled(layers: torch.nn.ModuleList) -> int:
    return sum(not weight.is_meta for layer in layers for weight in [next(layer.parameters())])


def test_layers_that_are_wanted_are_taken(target: Callable[[str], Path]) -> None:
    """Any three, the embedding (0) among them."""
    (pack,) = kit.make_packs([10])
    folder, layers = target("qwen3"), Layers((0, 1, 8), 8)
    engines = (StreamedEngine(folder, layers=layers), ResidentEngine(folder, layers=layers))
    mine, theirs = (next(iter(engine.states([pack]))) for engine in engines)
    assert torch.equal(mine.all, theirs.all)
    assert torch.equal(mine.aux[:, 2], mine.last)


def test_a_target_that_cannot_be_read_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    """No weights; a tensor missing; a quantisation that is not known; a sliding window."""
    with pytest.raises(ValueError, match="three rising numbers"):
        default_layers(5)
    folder = kit.write_target(tmp_path / "target", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    cases = {
        "awq": {"quantization_config": {"quant_method": "awq"}},
        "sliding_attention": {
            "layer_types": ["sliding_attention"] * kit.LAYERS,
            "sliding_window": 9,
        },
        "cannot read it": {"layer_types": ["full_attention"]},
        r"has no tensor layers\.8\.": {"num_hidden_layers": 9, "layer_types": None},
    }
    for message, changed in cases.items():
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ConfigError, match=message):
            list(StreamedEngine(folder).states(kit.make_packs([3])))
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ConfigError, match="cannot be read"):
        StreamedEngine(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        StreamedEngine(folder)


def test_packs_hold_whole_samples_in_order() -> None:
    """No pack is larger than its size but for a sample that is."""
    samples = [[1] * n for n in (3, 4, 9, 2, 2, 1)]
    assert [[len(s) for s in group] for group in packs(samples, 5)] == [[3], [4], [9], [2, 2, 1]]
    assert make_pack(samples[:2]).positions.tolist() == [0, 1, 2, 0, 1, 2, 3]
