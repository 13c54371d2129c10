"""A run audited: chosen samples sent through the target, sums kept, verdicts made.

In: a run, a target's engine. Out: the record of `audit.json`. Killed and started again, it goes on
behind the last packs whose evidence was kept.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fleet.run_config import RunConfig
from gpu_stage.audit.choose import Choice, Chosen, choose, read_chosen
from gpu_stage.audit.kept_states import last_states
from gpu_stage.audit.measure import LogitsOf, Rule, evidence_of
from gpu_stage.audit.store import Key, Store, key_of
from gpu_stage.audit.verdict import Evidence
from gpu_stage.engines.final_norm import Head
from gpu_stage.engines.packing import make_pack, packs
from gpu_stage.engines.states import Engine
from gpu_stage.runs import Run

#: Evidence is kept after so many seconds at the latest.
KEEP_S = 20.0
PACK_TOKENS = 8192
#: So many tokens, prompts included, are in memory at a time; `streamed` reads its weights once for
#: them.
CHUNK_TOKENS = 1_000_000

#: Told of samples and tokens that are done.
Tell = Callable[[int, int], None]


@dataclass(frozen=True, order=True)
class Group:
    """Whose completions are counted together."""

    provider: str
    dataset: str
    endpoint: str


@dataclass(frozen=True)
class Measured:
    """What a run's samples say."""

    groups: dict[Group, Evidence]
    choice: Choice


@dataclass(frozen=True)
class Subject:
    """What is audited, and by what."""

    run: Run
    config: RunConfig
    rule: Rule
    #: Fingerprint of the target's weights.
    target: str
    #: Shards of hidden states, where extraction has made some.
    hidden: Path

    @property
    def store(self) -> Store:
        return Store(self.run.directory, self.target, self.rule)


@dataclass(frozen=True)
class Target:
    """The target, or its head alone; each is loaded when it is called for."""

    engine: Callable[[], Engine]
    head: Callable[[], Head]


@dataclass(frozen=True)
class Plan:
    """What is counted, and what of it is known."""

    choice: Choice
    known: Mapping[Key, Evidence]


def prepare(subject: Subject, tokens: int) -> Plan:
    """
    Args:
        tokens: most completion tokens of a provider; 0: all.
    """
    known = subject.store.read()
    measured = {(key.dataset, key.prompt_id) for key in known}
    return Plan(choose(subject.run, tokens, measured), known)


def measure(subject: Subject, plan: Plan, target: Target, tell: Tell) -> Measured:
    """Evidence about every chosen sample, from what is kept and by the target."""
    groups = defaultdict[Group, Evidence](Evidence)

    def look(missing: list[tuple[Key, Chosen]]) -> None:
        found = _measured(subject, target, missing, tell)
        for sample, evidence in _kept(subject.store, found):
            groups[_group(sample)] += evidence

    waiting, size = list[tuple[Key, Chosen]](), 0
    for key, sample in _chosen(plan.choice, logprobs=subject.config.sampling.logprobs):
        if key in plan.known:
            groups[_group(sample)] += plan.known[key]
            tell(1, 0)
            continue
        waiting.append((key, sample))
        size += len(sample.ids)
        if size >= CHUNK_TOKENS:
            look(waiting)
            waiting, size = [], 0
    if waiting:
        look(waiting)
    return Measured(dict(sorted(groups.items())), plan.choice)


def _chosen(choice: Choice, *, logprobs: bool) -> Iterator[tuple[Key, Chosen]]:
    for part, places in choice.rows.values():
        for sample in read_chosen(part, places, logprobs=logprobs):
            yield key_of(sample.dataset, sample.prompt_id, sample.ids, sample.spans), sample


def _group(sample: Chosen) -> Group:
    return Group(sample.provider, sample.dataset, sample.endpoint)


def _measured(
    subject: Subject, target: Target, missing: list[tuple[Key, Chosen]], tell: Tell
) -> Iterator[tuple[Key, Chosen, Evidence]]:
    """By the states that extraction has left where they are, else by the target."""
    left = dict(enumerate(missing))
    samples = [sample for _, sample in missing]
    for n, last in last_states(subject.hidden, subject.target, samples):
        if n in left:  # a sample may stand in several shards of a set
            key, sample = left.pop(n)
            yield key, sample, _evidence(target.head().logits, subject.rule, last, sample)
            tell(1, len(sample.ids))
    if left:
        yield from _computed(target.engine(), subject.rule, list(left.values()), tell)


def _computed(
    engine: Engine, rule: Rule, missing: list[tuple[Key, Chosen]], tell: Tell
) -> Iterator[tuple[Key, Chosen, Evidence]]:
    waiting = iter(missing)
    made = [make_pack(group) for group in packs([sample.ids for _, sample in missing], PACK_TOKENS)]
    for pack, states in zip(made, engine.states(made), strict=True):
        for start, end in pack.spans():
            key, sample = next(waiting)
            yield key, sample, _evidence(engine.logits, rule, states.last[start:end], sample)
        tell(len(pack.boundaries) - 1, len(pack.ids))


def _evidence(logits_of: LogitsOf, rule: Rule, last: torch.Tensor, sample: Chosen) -> Evidence:
    ids = torch.tensor(sample.ids)
    return evidence_of(logits_of, last, ids, sample.spans, rule, sample.stated)


def _kept(
    store: Store, found: Iterable[tuple[Key, Chosen, Evidence]]
) -> Iterator[tuple[Chosen, Evidence]]:
    """Hand evidence on, and keep it now and then and at the end."""
    rows: list[tuple[Key, Evidence]] = []
    kept_at = time.monotonic()
    try:
        for key, sample, evidence in found:
            rows.append((key, evidence))
            yield sample, evidence
            if time.monotonic() - kept_at > KEEP_S:
                store.add(rows)
                rows, kept_at = [], time.monotonic()
    finally:
        store.add(rows)
