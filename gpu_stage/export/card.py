"""`README.md` of an exported draft: what it is of, how it is served, what it is worth. Pure."""

from typing import Any

Object = dict[str, Any]

SERVE = {
    "vllm": """vllm serve TARGET --speculative-config \\
    '{{"method": "eagle3", "model": "{name}", "num_speculative_tokens": 3}}'""",
    "sglang": """python -m sglang.launch_server --model-path TARGET \\
    --speculative-algorithm EAGLE3 --speculative-draft-model-path {name} \\
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4""",
}
SERVE["speculators"] = SERVE["vllm"]


def card(name: str, contract: Object, about: Object, evaluation: Object | None) -> str:
    """The model card.

    Args:
        contract: of `contract.json`.
        about: of `train.json`.
        evaluation: of `evaluation.json`, if there is one of this checkpoint.
    """
    settings, samples = about["settings"], about["samples"]
    target = contract["target"]
    sections = [
        f"# {name}\n\nAn EAGLE-3 draft (arXiv 2503.01840) for `{target['name']}`, in the layout "
        f"of {contract['format']}.",
        f"## Serving\n\n```console\n{SERVE[contract['format']].format(name=name)}\n```",
        "## Training\n\n"
        f"{samples['train']:,} samples that the target wrote, {samples['heldout']:,} held out; "
        f"{settings['epochs']} epochs, {settings['steps']} steps of training-time test, rate "
        f"{settings['learning_rate']:g}; checkpoint `{contract['checkpoint']}`. The draft's "
        f"vocabulary covers {about['vocabulary_coverage']:.2%} of the tokens that the target "
        "wrote.",
        _worth(evaluation),
        "## Hashes\n\n"
        f"- `model.safetensors`: SHA-256 `{contract['sha256']}`\n"
        f"- target: fingerprint `{target['fingerprint']}`\n"
        f"- hidden states: `{contract['data']}`\n\n"
        "What the draft relies on is in `contract.json`.",
    ]
    return "\n\n".join(sections) + "\n"


def _worth(evaluation: Object | None) -> str:
    if evaluation is None:
        return "## Acceptance\n\nNot measured: `gpu-stage evaluate` before the export puts it here."
    decoding = evaluation["decoding"]
    guesses = decoding["guesses"]
    way = f"temperature {decoding['temperature']:g}" if decoding["temperature"] else "greedy"
    rows = [
        f"| {who} | {some['acceptance_length']:.3f} | "
        + " ".join(f"{share:.3f}" for share in some["accepted_at_position"])
        + " |"
        for who, some in decoding["by"].items()
        if some["rounds"]
    ]
    return (
        f"## Acceptance\n\n{decoding['prompts']:,} held-out prompts, {guesses} guesses a round, "
        f"{way}, a chain.\n\n| by | acceptance length | accepted at position |\n|---|---|---|\n"
        + "\n".join(rows)
    )
