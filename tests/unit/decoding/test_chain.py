"""Speculative decoding writes what the target would have written, whatever guesses."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import hidden_kit
import pytest
import torch
import training_kit as kit
from torch import Tensor
from typer.testing import CliRunner

from gpu_stage.cli import cli
from gpu_stage.decoding.chain import Sampling, decode
from gpu_stage.decoding.proposers import DraftProposer, Guess, NgramProposer, Pick, Proposer
from gpu_stage.decoding.target import Verifier
from gpu_stage.draft.model import Draft, Slots
from gpu_stage.draft.unroll import unroll
from gpu_stage.hidden.target import layers_of
from gpu_stage.training.begin import new_draft
from gpu_stage.training.settings import TrainFile

CPU = torch.device("cpu")
NEVER: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hidden_kit.write_target(tmp_path_factory.mktemp("target") / "llama", "llama")


@pytest.fixture(scope="module")
def verifier(target: Path) -> Verifier:
    return Verifier(target, layers_of(target, None), CPU)


@pytest.fixture(scope="module")
def draft(target: Path) -> Draft:
    counts = torch.arange(hidden_kit.VOCABULARY)
    made, _ = new_draft(target, counts, TrainFile(draft_vocab_size=200))
    return made


def greedy() -> Sampling:
    return Sampling(0.0, torch.Generator())


@pytest.mark.parametrize("guesses", [1, 3, 5])
def test_greedily_the_text_is_that_of_the_target_alone(
    verifier: Verifier, draft: Draft, guesses: int
) -> None:
    """With a draft that knows nothing and with n-grams, for several prompts."""
    for seed in range(3):
        torch.manual_seed(seed)
        prompt = hidden_kit.make_ids(12)
        plain = decode(verifier, None, prompt, 40, guesses, greedy(), NEVER)
        for proposer in (DraftProposer(draft), NgramProposer()):
            made = decode(verifier, proposer, prompt, 40, guesses, greedy(), NEVER)
            assert made.tokens == plain.tokens
            assert sum(a + 1 for a in made.accepted) >= 39


def test_a_text_ends_where_the_target_ends_it(verifier: Verifier, draft: Draft) -> None:
    """Nothing stands behind an end, even when it was guessed in the middle of a round."""
    prompt = hidden_kit.make_ids(12)
    plain = decode(verifier, None, prompt, 30, 4, greedy(), NEVER).tokens
    end = frozenset([plain[7]])
    expected = plain[: plain.index(plain[7]) + 1]

    class Knows(Proposer):
        """Guesses the text itself."""

        def begin(self) -> None:
            """It keeps nothing."""

        def propose(self, ids: Sequence[int], aux: Tensor, count: int, pick: Pick) -> list[Guess]:
            at = len(ids) - len(prompt)
            return [Guess(token) for token in plain[at : at + count]]

    made = decode(verifier, Knows(), prompt, 30, 4, greedy(), end)
    assert made.tokens == expected
    whole = decode(verifier, Knows(), prompt, 30, 4, greedy(), NEVER)
    assert whole.tokens == plain and whole.accepted[0] == 4


class Tiny(Verifier):
    """A target whose next token depends on the last one alone, so that all is known of it."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.table = torch.randn(6, 6) * 1.5
        self.device = CPU
        self.seen = 0

    def begin(self) -> None:
        self.seen = 0

    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        self.seen += len(tokens)
        return self.table[list(tokens)], torch.zeros(len(tokens), 3)

    def cut(self, tokens: int) -> None:
        self.seen = tokens


class Skewed(Proposer):
    """Draws its guesses from another distribution; one token it never guesses."""

    def begin(self) -> None:
        """It keeps nothing."""

    def propose(self, ids: Sequence[int], aux: Tensor, count: int, pick: Pick) -> list[Guess]:
        logits = torch.tensor([2.0, 1.0, 0.0, 0.0, -1.0, -torch.inf])
        return [Guess(*pick(logits)) for _ in range(count)]


#: Chi-square at 35 degrees of freedom: 1 in 10,000 lies above.
CRITICAL = 77.2
TEXTS = 6000


def chi_square(kind: type[Sampling]) -> float:
    """Of the two tokens behind the first, against the target's own distribution (36 classes)."""
    target, sampling = Tiny(), kind(1.0, torch.Generator().manual_seed(1))
    p = target.table.softmax(-1)
    found: Counter[tuple[int, int]] = Counter()
    for _ in range(TEXTS):
        made = decode(target, Skewed(), [0, 2], 3, 3, sampling, NEVER)
        found[made.tokens[1], made.tokens[2]] += 1
    first = p[2] @ p  # of the second token
    expected = TEXTS * first[:, None] * p
    counts = torch.tensor([[found[a, b] for b in range(6)] for a in range(6)])
    return float(((counts - expected).square() / expected).sum())


def test_at_a_temperature_the_text_has_the_targets_distribution() -> None:
    """The tokens that guesses decide, by chi-square over 6,000 texts."""
    assert chi_square(Sampling) < CRITICAL


def test_the_test_of_the_distribution_sees_a_wrong_rule() -> None:
    """What stands behind a guess that was not accepted is drawn from (p − q)₊ by its weights; drawn
    from it evenly, the same test fails."""

    class Even(Sampling):
        def draw(self, p: Tensor) -> int:
            is_rest = abs(float(p.sum()) - 1) > 1e-4
            return super().draw((p > 0).float() if is_rest else p)

    assert chi_square(Even) > CRITICAL


def test_the_cached_draft_computes_what_training_computed(target: Path, draft: Draft) -> None:
    """Step by step with keys kept, the chain's logits are those of the training-time test."""
    ids = torch.tensor(hidden_kit.make_ids(10))
    torch.manual_seed(5)
    aux = torch.randn(10, 3 * hidden_kit.HIDDEN)
    steps = 3
    with torch.no_grad():
        slots = Slots(torch.arange(10), (0, 10))
        outs = list(unroll(draft, aux, ids, slots, steps))
        expected = [draft.logits(out[6]) for out in outs]
    seen: list[Tensor] = []

    def forced(logits: Tensor) -> tuple[int, Tensor | None]:
        """The guess is the text's own token, as in training."""
        seen.append(logits[draft.vocabulary])
        return int(ids[7 + len(seen)]) if 7 + len(seen) < 10 else 0, None

    proposer = DraftProposer(draft)
    proposer.begin()
    # In two calls, as behind a prompt and behind a round.
    proposer.propose(ids[:5].tolist(), aux[:4], 1, lambda logits: (0, None))
    proposer.propose(ids[:8].tolist(), aux[4:7], steps, forced)
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_evaluate_measures_the_draft_beside_the_baselines(tmp_path: Path) -> None:
    """Of a draft, an untrained one and n-grams: all lossless, counted alike, by dataset too."""
    run, target = kit.write_states(tmp_path, [12, 20, 16, 8, 24, 18])
    (tmp_path / "train.toml").write_text("steps = 2\nepochs = 1\nheldout_share = 0.4\n")
    arguments = ["train", str(run), "-c", str(tmp_path / "train.toml"), "--target", str(target)]
    assert CliRunner().invoke(cli, [*arguments, "--device", "cpu"]).exit_code == 0
    done = CliRunner().invoke(
        cli, ["evaluate", str(run), "--tokens", "12", "--guesses", "3", "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((run / "checkpoints" / "evaluation.json").read_bytes())
    decoding = report["decoding"]
    assert set(decoding["by"]) == {"draft", "untrained", "n-gram"}
    assert set(decoding["identical_to_plain"].values()) == {1.0}
    for some in decoding["by"].values():
        length = 1 + sum(some["accepted_at_position"])
        assert some["acceptance_length"] == pytest.approx(length)
    assert decoding["by_dataset"]["B1"] == decoding["by"]
    assert len(report["heldout"]["draft"]["accuracy"]) == 2
