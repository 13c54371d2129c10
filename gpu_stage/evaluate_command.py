"""What `gpu-stage evaluate` does: what a trained draft is worth, on prompts that are held out.

In: a training's folder. Out: accuracy by step, and real speculative decoding beside plain decoding,
an untrained draft and n-grams, as a table, JSON and `evaluation.json` beside the checkpoints.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.box import SIMPLE
from rich.table import Table

from fleet.errors import ConfigError, InputError
from gpu_stage.console import Exit, err, out
from gpu_stage.decoding.chain import Decoded, Sampling, decode
from gpu_stage.decoding.proposers import DraftProposer, NgramProposer, Proposer
from gpu_stage.decoding.target import Verifier
from gpu_stage.draft.model import Draft
from gpu_stage.hidden.index import Layers
from gpu_stage.hidden.target import pick_device, text_config
from gpu_stage.progress import Bar
from gpu_stage.training import checkpoint
from gpu_stage.training.begin import new_draft, target_head, token_counts
from gpu_stage.training.data import Data, Place, open_data, read
from gpu_stage.training.loop import Training, validate
from gpu_stage.training.processes import Processes
from gpu_stage.training.settings import TrainFile

NAME = "evaluation.json"
DRAFT, UNTRAINED, NGRAM = "draft", "untrained", "n-gram"


@dataclass(frozen=True)
class Wishes:
    """Options of `gpu-stage evaluate`, as they were given."""

    source: Path
    checkpoints: Path | None
    hidden: Path | None
    prompts: int
    tokens: int
    guesses: int
    temperature: float
    device: str


@dataclass
class Counts:
    """What decoding with one proposer came to."""

    #: How many of its guesses each round accepted.
    accepted: list[int]
    #: Texts, and those that are the same as without a draft.
    texts: int = 0
    identical: int = 0

    def told(self, guesses: int) -> dict[str, Any]:
        rounds = len(self.accepted)
        reached = [sum(a > k for a in self.accepted) for k in range(guesses)]
        return {
            "acceptance_length": 1 + sum(self.accepted) / rounds if rounds else None,
            # Of all rounds, as vLLM and SGLang count them.
            "accepted_at_position": [count / rounds for count in reached] if rounds else None,
            "rounds": rounds,
        }


def evaluate(wishes: Wishes, *, as_json: bool) -> int:
    """Measure a training's best draft; the exit status.

    Raises:
        ConfigError, InputError: no training is there, or nothing is held out.
    """
    folder = wishes.checkpoints or wishes.source / "checkpoints"
    about = checkpoint.read_about(folder)
    file = msgspec.convert(about["settings"], TrainFile)
    target, layers = Path(about["target_folder"]), msgspec.convert(about["layers"], Layers)
    data = open_data((wishes.hidden or wishes.source / "hidden").resolve(), file)
    if data.fingerprint != about["data"]:
        raise ConfigError(f"{folder}: was trained on other states; name those with --hidden")
    if not data.heldout:
        raise InputError(f"{folder}: the training held nothing out; there is nothing to measure on")
    device = torch.device(pick_device(wishes.device))
    untrained, _ = new_draft(target, token_counts(wishes.source, data), file)
    drafts = {DRAFT: checkpoint.load_draft(folder).to(device), UNTRAINED: untrained.to(device)}
    report: dict[str, Any] = {
        "draft": (folder / checkpoint.BEST).resolve().name,
        "heldout_samples": len(data.heldout),
        "heldout": {
            name: _on_heldout(draft, target, data, file, folder) for name, draft in drafts.items()
        },
        "decoding": _decoding(wishes, target, layers, drafts, data.heldout, device),
    }
    (folder / NAME).write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return Exit.OK


def _on_heldout(
    draft: Draft, target: Path, data: Data, file: TrainFile, folder: Path
) -> dict[str, Any]:
    training = Training(draft, target_head(target, draft), data, file, folder, Processes())
    return validate(training, data.heldout).told(training.step_weights())


def _decoding(
    wishes: Wishes,
    target: Path,
    layers: Layers,
    drafts: dict[str, Draft],
    heldout: Sequence[Place],
    device: torch.device,
) -> dict[str, Any]:
    verifier = Verifier(target, layers, device)
    proposers: dict[str, Proposer] = {name: DraftProposer(one) for name, one in drafts.items()}
    proposers[NGRAM] = NgramProposer()
    end = _end_ids(target)
    counts = {name: Counts([]) for name in proposers}
    by_dataset: dict[str, dict[str, Counts]] = {}
    places = heldout[: wishes.prompts]
    with Bar(err, "evaluate", len(places)) as shown:
        for place in places:
            here = by_dataset.setdefault(place.dataset, {name: Counts([]) for name in proposers})
            written = _one(wishes, verifier, proposers, place, end)
            for name, made, same in written:
                for some in (counts[name], here[name]):
                    some.accepted += made.accepted
                    some.texts += 1
                    some.identical += same
            shown.add(1, sum(len(made.tokens) for _, made, _ in written))
    greedy = not wishes.temperature
    return {
        "prompts": len(places),
        "most_tokens": wishes.tokens,
        "guesses": wishes.guesses,
        "temperature": wishes.temperature,
        "by": {name: some.told(wishes.guesses) for name, some in counts.items()},
        "by_dataset": {
            dataset: {name: some.told(wishes.guesses) for name, some in here.items()}
            for dataset, here in by_dataset.items()
        },
        # Of sampled text nothing of the kind can be said.
        "identical_to_plain": {name: some.identical / some.texts for name, some in counts.items()}
        if greedy
        else None,
    }


def _one(
    wishes: Wishes,
    verifier: Verifier,
    proposers: dict[str, Proposer],
    place: Place,
    end: frozenset[int],
) -> list[tuple[str, Decoded, bool]]:
    """A held-out prompt, decoded with each proposer: (its name, what it wrote, same as plain)."""
    example = read(place)
    prompt = example.ids[: int(example.mask.nonzero()[0, 0])].tolist()
    seed = int.from_bytes(place.prompt_id.encode()[-8:], "big") % 2**63

    def write(proposer: Proposer | None) -> Decoded:
        generator = torch.Generator().manual_seed(seed)
        sampling = Sampling(wishes.temperature, generator)
        return decode(verifier, proposer, prompt, wishes.tokens, wishes.guesses, sampling, end)

    plain = write(None).tokens if not wishes.temperature else []
    made = [(name, write(proposer)) for name, proposer in proposers.items()]
    return [(name, one, one.tokens == plain) for name, one in made]


def _end_ids(target: Path) -> frozenset[int]:
    """Ids that end a text: of `generation_config.json`, or else of `config.json`."""
    path = target / "generation_config.json"
    config = json.loads(path.read_bytes()) if path.exists() else text_config(target)
    ids = config.get("eos_token_id")
    return frozenset([ids] if isinstance(ids, int) else ids or [])


def _show(report: dict[str, Any]) -> None:
    decoding = report["decoding"]
    way = f"temperature {decoding['temperature']}" if decoding["temperature"] else "greedy"
    table = Table(
        title=f"{decoding['prompts']:,} held-out prompts, {decoding['guesses']} guesses a round, "
        f"{way}; accuracy by step on {report['heldout_samples']:,} held-out samples",
        title_justify="left",
        box=SIMPLE,
    )
    for column in ("by", "acceptance length", "accepted at position", "accuracy by step"):
        table.add_column(column, no_wrap=True)
    for name, some in decoding["by"].items():
        heldout = report["heldout"].get(name, {})
        table.add_row(
            name,
            f"{some['acceptance_length']:.3f}" if some["rounds"] else "–",
            _shares(some["accepted_at_position"]),
            _shares(heldout.get("accuracy")),
        )
    out.print(table)
    for dataset, here in decoding["by_dataset"].items():
        lengths = ", ".join(
            f"{name} {some['acceptance_length']:.3f}"
            for name, some in here.items()
            if some["rounds"]
        )
        out.print(f"  {dataset}: {lengths}", highlight=False)
    if decoding["identical_to_plain"] is not None:
        same = decoding["identical_to_plain"][DRAFT]
        out.print(f"Texts that are the same as without a draft: {same:.1%}", highlight=False)


def _shares(values: list[float] | None) -> str:
    return " ".join(f"{value:.2f}" for value in values) if values else "–"
