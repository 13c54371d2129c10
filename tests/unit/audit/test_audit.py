"""`gpu-stage audit` on small targets: sums, what is kept, what is refused."""

import json
from pathlib import Path
from typing import Any

import hidden_kit as kit
import pyarrow.parquet as pq
import pytest
import samples_kit
import torch

from fleet import run_config
from fleet.errors import ConfigError, InputError
from gpu_stage import extract_command
from gpu_stage.audit.measure import Rule, evidence_of, rule_of
from gpu_stage.audit.store import Store
from gpu_stage.audit_command import Wishes, audit
from gpu_stage.engines.packing import make_pack
from gpu_stage.engines.resident import ResidentEngine
from gpu_stage.hidden.target import look_at
from gpu_stage.runs import open_run

RUN = """
[run]
name = "r"
model = "author/model"
target = "{target}"
[sampling]
{sampling}
[[datasets]]
name = "B1"
path = "prompts.jsonl"
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    return kit.write_target(tmp_path_factory.mktemp("target") / "llama", "llama")


def sampled(target: Path, count: int, temperature: float) -> list[list[int]]:
    """Completions of 40 tokens that the target writes behind `PROMPT`."""
    engine, made = ResidentEngine(target, dtype=torch.float32), [list(PROMPT) for _ in range(count)]
    torch.manual_seed(3)
    for _ in range(40):
        pack = make_pack(made)
        (states,) = engine.states([pack])
        ends = torch.tensor(pack.boundaries[1:]) - 1
        p = (engine.logits(states.last[ends]) / temperature).softmax(-1)
        for ids, token in zip(made, torch.multinomial(p, 1)[:, 0].tolist(), strict=True):
            ids.append(token)
    return [ids[len(PROMPT) :] for ids in made]


PROMPT = (5, 9, 200)


def write_run(folder: Path, target: Path, rows: list[samples_kit.Row], sampling: str = "") -> Path:
    samples_kit.write_run(folder, {"B1": rows}, rows_a_part=10)
    (folder / "run.toml").write_text(RUN.format(target=target, sampling=sampling))
    return folder


def rows(completions: list[list[int]], provider: str, **fields: Any) -> list[samples_kit.Row]:
    return [
        samples_kit.Row(
            f"{provider} {n}", provider=provider, prompt_ids=PROMPT, completion_ids=ids, **fields
        )
        for n, ids in enumerate(completions)
    ]


def record(run: Path, tokens: int = 0) -> dict[str, Any]:
    audit(Wishes(run, None, tokens, 0.3, "resident", "cpu"), as_json=False)
    found: dict[str, Any] = json.loads((run / "audit.json").read_text())
    return found


def test_who_serves_another_temperature_is_found_out(tmp_path: Path, target: Path) -> None:
    """The faithful provider is not; `merge` reads the verdicts."""
    warm = rows(sampled(target, 40, 1.0), "Alpha")
    cool = rows(sampled(target, 40, 0.4), "Beta")
    run = write_run(tmp_path / "run", target, [*warm, *cool])
    found = record(run)
    assert found["verdicts"] == {"Alpha": "passed", "Beta": "failed"}
    assert open_run(run).verdicts() == found["verdicts"]
    alpha, beta = (found["providers"][name] for name in ("Alpha", "Beta"))
    assert alpha["tokens"] == beta["tokens"] == 40 * 40
    assert abs(alpha["z"]) < 3 and beta["z"] < -8
    assert beta["drift"] < beta["interval"][1] < 0
    assert [group["provider"] for group in found["groups"]] == ["Alpha", "Beta"]


def test_sums_are_what_the_formula_says(target: Path) -> None:
    """Against the distribution written out, with temperature and nucleus."""
    engine = ResidentEngine(target, dtype=torch.float32)
    ids = torch.tensor(kit.make_ids(12))
    (states,) = engine.states([make_pack([ids.tolist()])])
    logits = engine.logits(states.last).double() / 0.8
    surprise = variance = 0.0
    impossible = 0
    for place in range(4, 12):
        p, order = logits[place - 1].softmax(-1).sort(descending=True)
        inside = order[: int((p.cumsum(0) < 0.9).sum()) + 1]
        q = torch.zeros_like(p).scatter(0, inside, p[: len(inside)] / p[: len(inside)].sum())
        if not q[ids[place]]:
            impossible += 1
            continue
        logs = q.clamp_min(1e-300).log()
        entropy = -(q * logs).sum()
        surprise += float(-logs[ids[place]] - entropy)
        variance += float((q * logs**2).sum() - entropy**2)
    found = evidence_of(engine.logits, states.last, ids, [(4, 12)], Rule(0.8, 0.9))
    assert (found.tokens + found.impossible, found.impossible) == (8, impossible)
    assert found.surprise == pytest.approx(surprise, abs=1e-4)
    assert found.variance == pytest.approx(variance, abs=1e-4)


def test_stated_log_probabilities_are_compared(tmp_path: Path, target: Path) -> None:
    """A provider that states others than the target's is off by as much; one without is not."""
    completions = sampled(target, 5, 1.0)
    engine = ResidentEngine(target)
    made = []
    for n, ids in enumerate(completions):
        (states,) = engine.states([make_pack([[*PROMPT, *ids]])])
        logs = engine.logits(states.last[2:-1]).log_softmax(-1)
        content = [{"token": "x", "logprob": float(logs[k, i]) + 0.5} for k, i in enumerate(ids)]
        response = {"choices": [{"logprobs": {"content": content}}]}
        made += rows([ids], "A", response=response, sampling=str(n), fidelity="exact")
    made += rows(completions, "B")
    run = write_run(tmp_path / "run", target, made, "logprobs = true")
    found = record(run)["providers"]
    assert found["A"]["stated"] == 200 and found["B"]["stated"] == 0
    assert found["A"]["stated_gap"] == pytest.approx(0.5, abs=0.02)
    assert found["A"]["stated_distance"] == pytest.approx(0.5, abs=0.02)


def test_a_bad_endpoint_fails_its_provider(tmp_path: Path, target: Path) -> None:
    """Though the provider's other endpoint is faithful and has most of the tokens."""
    run = write_run(tmp_path / "run", target, rows(sampled(target, 60, 1.0), "Alpha"))
    cool = write_run(
        tmp_path / "cool", target, rows(sampled(target, 12, 0.3), "Alpha", sampling="c")
    )
    for part in cool.glob("samples/*/*"):
        table = pq.ParquetFile(part).read()
        column = table.schema.get_field_index("endpoint")
        table = table.set_column(column, table.schema.field(column), [["a/fp4"] * len(table)])
        pq.write_table(table, run / f"samples/dataset=B1/part-9{part.name[5:]}")
    for part in cool.glob("completions/*/*"):
        part.rename(run / f"completions/dataset=B1/part-9{part.name[5:]}")
    found = record(run)
    assert found["verdicts"] == {"Alpha": "failed"}
    by_endpoint = {one["endpoint"]: one["verdict"] for one in found["endpoints"]}
    assert by_endpoint["a/fp4"] == "failed" != by_endpoint["(unknown)"]


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second audit loads no target; more samples cost only themselves; samples made anew, or
    another temperature, are measured anew."""
    completions = sampled(target, 6, 1.0)
    run = write_run(tmp_path / "run", target, rows(completions[:4], "Alpha"))
    first = record(run)
    with monkeypatch.context() as patch:
        patch.setattr("gpu_stage.audit_command.load_engine", _never)
        assert record(run) == first
    write_run(run, target, rows(completions, "Alpha"))
    assert record(run)["providers"]["Alpha"]["tokens"] == 240
    fingerprint = look_at(target).fingerprint
    assert len(Store(run, fingerprint, Rule(1.0, 1.0)).read()) == 6
    write_run(run, target, rows([ids[:-1] for ids in completions], "Alpha"))
    assert record(run)["providers"]["Alpha"]["tokens"] == 234
    write_run(run, target, rows(completions, "Alpha"), "temperature = 0.9")
    with monkeypatch.context() as patch:
        patch.setattr("gpu_stage.audit_command.load_engine", _never)
        with pytest.raises(AssertionError, match="for nothing"):
            record(run)


def _never(*_: object) -> None:
    raise AssertionError("the target was loaded for nothing")


def extract(run: Path, target: Path, **wishes: Any) -> None:
    """Hidden states of a run, in its folder."""
    wanted = {"storage": "bf16", "shard_size": "20KB", "pack_tokens": 64} | wishes
    fixed = {"source": run, "out": None, "target": target, "engine": "resident", "layers": ""}
    work = extract_command.work_for(
        extract_command.Wishes(**(fixed | wanted), device="cpu", spool="0")  # type: ignore[arg-type]
    )
    assert extract_command.extract(work, queue_url=None, as_json=True) == 0


def test_after_extraction_the_head_alone_is_needed(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same figures as by the target, from the states that lie there; fp8's are not taken."""
    completions = sampled(target, 6, 1.0)
    plain = write_run(tmp_path / "plain", target, rows(completions, "Alpha"))
    states = write_run(tmp_path / "states", target, rows(completions, "Alpha"))
    packed = write_run(tmp_path / "packed", target, rows(completions, "Alpha"))
    extract(states, target)
    extract(packed, target, storage="fp8")
    wanted = record(plain)["providers"]["Alpha"]
    monkeypatch.setattr("gpu_stage.audit_command.load_engine", _never)
    found = record(states)["providers"]["Alpha"]
    assert found["tokens"] == wanted["tokens"] == 240
    assert found["drift"] == pytest.approx(wanted["drift"], abs=0.02)  # packs differ: bf16
    with pytest.raises(AssertionError, match="loaded for nothing"):
        record(packed)


def test_states_of_other_ids_are_not_taken(tmp_path: Path, target: Path) -> None:
    """Samples that were made anew since the extraction go through the target."""
    run = write_run(tmp_path / "run", target, rows(sampled(target, 4, 1.0), "Alpha"))
    extract(run, target)
    for part in (run / "samples").rglob("part-*.parquet"):
        part.unlink()
    write_run(run, target, rows(sampled(target, 4, 0.3), "Alpha"))
    assert record(run)["providers"]["Alpha"]["z"] < -3


def test_a_budget_of_tokens_takes_the_same_samples_again(tmp_path: Path, target: Path) -> None:
    """As many of each provider as are asked for, by the hash of the prompt; samples whose ids are
    not known are left out and counted."""
    completions = sampled(target, 8, 1.0)
    near = rows(completions[:2], "Gamma", fidelity="near")
    run = write_run(
        tmp_path / "run", target, [*rows(completions, "Alpha"), *rows(completions, "Beta"), *near]
    )
    found = record(run, tokens=100)
    assert {name: one["tokens"] for name, one in found["providers"].items()} == {
        "Alpha": 120,
        "Beta": 120,
    }
    assert found["left_out"] == {"near": 2}
    assert found["providers"]["Alpha"]["tokens_available"] == 320
    kept = Store(run, look_at(target).fingerprint, Rule(1.0, 1.0))
    before = set(kept.read())
    assert record(run, tokens=60)["providers"]["Alpha"]["tokens"] == 120, "what is known counts"
    record(run, tokens=200)
    assert before < set(kept.read()) and len(kept.read()) == 10


def test_a_run_that_cannot_be_audited_is_refused(tmp_path: Path, target: Path) -> None:
    """Greedy, or sampled in a way that is not modelled; no known ids; no run file."""
    for sampling, word in (
        ("temperature = 0", "greedy"),
        ("extra = { top_k = 20 }", "extra.top_k"),
        ("extra = { presence_penalty = 0.5 }", "presence_penalty"),
        ('extra = { tool_choice = "required" }', "tool_choice"),
    ):
        run = write_run(tmp_path / "run", target, [samples_kit.Row()], sampling)
        with pytest.raises(ConfigError, match=word):
            rule_of(run_config.load(run / "run.toml"))
    neutral = "extra = { top_k = -1, repetition_penalty = 1.0, frequency_penalty = 0 }"
    run = write_run(tmp_path / "run", target, [samples_kit.Row()], neutral)
    assert rule_of(run_config.load(run / "run.toml")) == Rule(1.0, 1.0)
    run = write_run(tmp_path / "run", target, [samples_kit.Row(fidelity="near")])
    with pytest.raises(InputError, match="no sample's ids are known"):
        record(run)
    (run / "run.toml").unlink()
    with pytest.raises(ConfigError, match=r"has no run\.toml"):
        record(run)
