"""A draft's folder for an engine: weights, configuration, contract, card.

In: a training's folder, or one of its checkpoints. Out: a new folder, complete or not there.
"""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
from safetensors.torch import save_file

from fleet import __version__
from fleet.errors import InputError
from gpu_stage.export import layouts
from gpu_stage.export.card import card
from gpu_stage.files import sha256, whole_folder
from gpu_stage.hidden.index import Layers
from gpu_stage.hidden.target import text_config
from gpu_stage.training import checkpoint

Style = Literal["sglang", "vllm", "speculators"]
WEIGHTS = "model.safetensors"
EVALUATION = "evaluation.json"


def export_draft(folder: Path, style: Style, out: Path) -> None:
    """Write a draft as an engine loads it.

    Args:
        folder: a training, of which the best checkpoint is taken, or one of its checkpoints.

    Raises:
        InputError: no training is there.
        ConfigError: `out` is there already.
    """
    training = folder if (folder / checkpoint.ABOUT).exists() else folder.parent
    about = checkpoint.read_about(training)
    draft = checkpoint.load_draft(folder)
    layers = msgspec.convert(about["layers"], Layers)
    settings = about["settings"]
    if style == "speculators":
        tensors = layouts.speculators_tensors(draft)
        config = layouts.speculators_config(
            draft.config, layers, _target(about), int(settings["steps"])
        )
    else:
        tensors = layouts.engine_tensors(draft)
        config = layouts.engine_config(draft.config, layers, layouts.SHIFT[style])
    chosen = folder if training != folder else folder / checkpoint.BEST
    name = chosen.resolve().name
    with whole_folder(out) as made:
        save_file(tensors, made / WEIGHTS, {"format": "pt"})
        _write(made / "config.json", config)
        contract = _contract(style, about, layers, name) | {"sha256": sha256(made / WEIGHTS)}
        _write(made / "contract.json", contract)
        evaluation = _evaluation(training, name)
        (made / "README.md").write_text(card(out.name, contract, about, evaluation))


def _target(about: dict[str, Any]) -> dict[str, Any]:
    folder = Path(about["target_folder"])
    architectures = text_config(folder).get("architectures") or []
    return {"name": about["target"]["name"], "architectures": architectures}


def _contract(style: Style, about: dict[str, Any], layers: Layers, name: str) -> dict[str, Any]:
    """What the draft relies on, so that whoever serves it can hold the engine against it."""
    return {
        "format": style,
        "checkpoint": name,
        "target": about["target"],
        "aux_layers": {
            "hidden_states": list(layers.aux),
            "of": layers.last,
            "meaning": "h[i], the residual stream after i decoder layers; h[0] is the embedding's",
        },
        "aux_states_are": "before any norm, concatenated low, middle, high",
        "norm_before_fc": about["settings"]["norm_before_fc"],
        "norm_before_residual": about["settings"]["norm_before_residual"],
        "next_hidden": "the layer's output before the final norm",
        "loss_mask": "the slot at token t counts at step k when the target wrote tokens t+1+k and "
        "t+2+k: the last token of a prompt is trained",
        "chat_template": "the target's own; samples are its token ids as they were written",
        "data": about["data"],
        "eagle_fleet": __version__,
    }


def _evaluation(training: Path, name: str) -> dict[str, Any] | None:
    """Of this very checkpoint, if it was evaluated."""
    path = training / EVALUATION
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); run `gpu-stage evaluate` again") from error
    return found if found["draft"] == name else None


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
