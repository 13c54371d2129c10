"""The quantisation that a target's weights were released in, read from its `config.json`.

Pure but for reading that file. Answers in OpenRouter's spelling (`int4`, `fp8`, `bf16`, …), so that
it can be held against a listing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.errors import ConfigError

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: By `quant_method`.
METHODS = {"fp8": "fp8", "mxfp4": "mxfp4", "fbgemm_fp8": "fp8"}


def native_quantization(folder: Path) -> str | None:
    """None: the folder has no `config.json`, or it says nothing that is understood.

    Raises:
        ConfigError: the file cannot be read as JSON.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return read_quantization(config) if isinstance(config, dict) else None


def read_quantization(config: Mapping[str, Any]) -> str | None:
    """Of a model whose language part is nested (`text_config`), that part's."""
    nested = config.get("text_config")
    parts = [nested, config] if isinstance(nested, dict) else [config]
    for part in parts:
        quantization = part.get("quantization_config")
        if isinstance(quantization, dict):
            return _quantized(quantization)
    for part in parts:
        dtype = part.get("dtype") or part.get("torch_dtype")
        if dtype in DTYPES:
            return DTYPES[dtype]
    return None


def _quantized(quantization: Mapping[str, Any]) -> str | None:
    method = quantization.get("quant_method")
    if method in METHODS:
        return METHODS[str(method)]
    if method in ("gptq", "awq"):
        bits = quantization.get("bits")
        return f"int{bits}" if bits in (4, 8) else None
    if method == "modelopt":
        algorithm = str(quantization.get("quant_algo") or "").lower()
        return algorithm if algorithm in ("nvfp4", "fp8") else None
    return _compressed_tensors(quantization)


def _compressed_tensors(quantization: Mapping[str, Any]) -> str | None:
    """All groups of layers must agree, and a packed format names what bits alone do not."""
    if "nvfp4" in str(quantization.get("format")):
        return "nvfp4"
    groups = quantization.get("config_groups")
    found = set()
    for group in groups.values() if isinstance(groups, dict) else []:
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            kind = {"int": "int", "float": "fp"}.get(str(weights.get("type")))
            found.add(f"{kind}{weights.get('num_bits')}" if kind else None)
    return found.pop() if len(found) == 1 else None
