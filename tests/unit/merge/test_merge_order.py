"""The split, the order and the balance of a set, whatever its rows: properties."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from samples_kit import Row, read, write_run

from gpu_stage.merge import merge
from gpu_stage.merge.choose import budgets, held_out, repeated
from gpu_stage.merge.rows import ROW, conversation_of
from gpu_stage.merge.scatter import SIDES
from gpu_stage.merge.settings import Dataset, load

Merge = Callable[..., Path]
#: A busy machine fails no example, and a merge is no matter of microseconds.
QUICKLY = settings(deadline=None)
SLOWLY = settings(QUICKLY, max_examples=25)

rows = st.builds(
    Row,
    text=st.sampled_from([f"question {number}" for number in range(12)]),
    sampling=st.sampled_from(["", "hotter"]),
    fidelity=st.sampled_from(["exact", "counted", "recovered", "near", "unverified", "rejected"]),
    finish_reason=st.sampled_from(["stop", "length", None]),
    provider=st.sampled_from(["Alpha", "Beta", None]),
    completion_ids=st.lists(st.integers(0, 500), min_size=1, max_size=8),
    cost_usd=st.one_of(st.none(), st.floats(0, 1)),
)
runs = st.lists(
    st.dictionaries(st.sampled_from(["A", "B"]), st.lists(rows, max_size=12), min_size=1),
    min_size=1,
    max_size=3,
)
#: One row that every filter takes, so that there is a set.
SURE = Row(text="the one that is always there", fidelity="exact")


def merge_in(folder: Path, some: list[dict[str, list[Row]]], toml: str) -> Path:
    write_run(folder / "sure", {"A": [SURE]})
    paths = [write_run(folder / f"run{n}", run, rows_a_part=5) for n, run in enumerate(some)]
    (folder / "merge.toml").write_text(toml)
    merge([folder / "sure", *paths], folder / "set", load(folder / "merge.toml"))
    return folder / "set"


@SLOWLY
@given(some=runs)
def test_what_goes_in_comes_out_or_is_listed(some: list[dict[str, list[Row]]]) -> None:
    """Every row read is in train, held out, or in the list with its reason: none twice."""
    with TemporaryDirectory() as name:
        toml = "heldout_share = 0.0\npart_tokens = 20\n[[datasets]]\nname = 'A'\ncap_tokens = 30"
        folder = merge_in(Path(name), some, toml)
        kept = [*read(folder / "train"), *read(folder / "heldout")]
        left_out = pq.read_table(folder / "dropped.parquet").to_pylist()
        given_rows = Counter(
            (f"run{n}", dataset, row.prompt_id)
            for n, run in enumerate(some)
            for dataset, rows in run.items()
            for row in rows
        )
        given_rows["sure", "A", SURE.prompt_id] += 1
        found = Counter((row["run"], row["dataset"], row["prompt_id"]) for row in kept + left_out)
        assert found == given_rows
        assert len({row["prompt_id"] for row in kept}) == len(kept)
        record = json.loads((folder / "set.json").read_text())["overall"]
        assert record["dropped"] == Counter(row["reason"] for row in left_out)


@QUICKLY
@given(
    st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50),
    st.lists(st.integers(0, 2**64 - 1), max_size=50),
    st.floats(0, 0.9),
)
def test_no_prompt_changes_sides_when_others_come(
    prompts: list[int], more: list[int], share: float
) -> None:
    """Nor when the share grows: it only takes more out of train."""
    before = held_out(np.array(prompts, np.uint64), share)
    after = held_out(np.array([*more, *prompts], np.uint64), share)
    assert np.array_equal(after[len(more) :], before)
    grown = held_out(np.array(prompts, np.uint64), share + 0.05)
    assert not (before & ~grown).any()


def test_a_set_that_grows_keeps_its_split(merged: Merge) -> None:
    """More rows, another seed, another run: who was held out still is."""
    rows = [Row(text=f"question {number}") for number in range(300)]
    half = "heldout_share = 0.5\n"
    small = merged({"A": rows[:150]}, toml=half)
    large = merged({"C": rows[200:]}, {"A": rows[:200]}, toml=f"{half}seed = 7")
    before = {row["prompt_id"] for row in read(small / "heldout")}
    after = {row["prompt_id"] for row in read(large / "heldout")}
    assert before == after & {row.prompt_id for row in rows[:150]}
    assert 50 < len(before) < 100


def test_what_a_cap_keeps_is_of_the_seed_and_not_of_the_split(merged: Merge) -> None:
    """A cap takes of both sides alike, and with another seed other conversations."""
    rows = [Row(text=f"question {number}") for number in range(400)]
    toml = "heldout_share = 0.5\n[[datasets]]\nname = 'A'\ncap_tokens = 300"
    first, other = (merged({"A": rows}, toml=f"seed = {n}\n{toml}") for n in range(2))
    train, heldout = ({row["prompt_id"] for row in read(first / side)} for side in SIDES)
    assert len(train | heldout) == 100
    assert 25 < len(heldout) < 75
    assert train != {row["prompt_id"] for row in read(other / "train")}


def test_the_turns_of_a_conversation_stay_together(merged: Merge) -> None:
    """A later turn is held out when its first is, in whatever run, whatever was answered, and
    whether the answers before it came with the dataset."""
    talks: list[list[Row]] = []
    for number in range(60):
        first = [{"role": "system", "content": "Be."}, {"role": "user", "content": f"Q{number}"}]
        answered = [{"role": "assistant", "content": "A"}, {"role": "user", "content": "And?"}]
        again = [{"role": "assistant", "content": "B"}, {"role": "user", "content": "So?"}]
        talks.append([Row(messages=first), Row(messages=first + answered, turn=1)])
        given_before = [{"role": "assistant", "content": "Hm"}, {"role": "user", "content": "So?"}]
        talks[-1] += [
            Row(messages=first + answered + again, turn=2),
            Row(messages=first + given_before),
        ]
    early = {"A": [talk[0] for talk in talks]}
    late = {"A": [row for talk in talks for row in talk[1:]]}
    folder = merged(early, late, toml="heldout_share = 0.5")
    sides = {row["prompt_id"]: side for side in SIDES for row in read(folder / side)}
    assert len(sides) == 240
    assert all(len({sides[row.prompt_id] for row in talk}) == 1 for talk in talks)
    assert len(set(sides.values())) == 2


def test_a_conversation_is_known_by_its_messages_up_to_the_first_answer() -> None:
    """Whoever wrote that answer; what an assistant says before the first user is no answer."""
    system, bot = {"role": "system", "content": "Be."}, {"role": "assistant", "content": "A"}
    user = {"role": "user", "content": "Q"}
    alike = ([system, user], [system, user, bot, user], [system, user, bot, user, bot, user])
    assert len({conversation_of(messages) for messages in alike}) == 1
    others = ([user], [system, bot, user], [system, user, user], [system, bot], [])
    assert len({conversation_of(messages) for messages in (alike[0], *others)}) == 6


@SLOWLY
@given(some=runs, seed=st.integers(0, 3))
def test_the_same_input_and_seed_give_the_same_bytes(
    some: list[dict[str, list[Row]]], seed: int
) -> None:
    """Every file of the set, the record and the card included."""
    with TemporaryDirectory() as a, TemporaryDirectory() as b:
        toml = f"seed = {seed}\nheldout_share = 0.0\npart_tokens = 20\n[near_duplicates]\n"
        one, other = (merge_in(Path(name), some, toml) for name in (a, b))
        names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
        assert names == {path.relative_to(other) for path in other.rglob("*") if path.is_file()}
        assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_the_order_is_of_the_seed_and_not_of_the_files(merged: Merge) -> None:
    """Rows come in one order however they were spread over runs; another seed is another order."""
    rows = [Row(text=f"question {number}") for number in range(60)]
    options = "heldout_share = 0.0\npart_tokens = 50\n"

    def order(folder: Path) -> list[str]:
        return [row["prompt_id"] for row in read(folder / "train")]

    whole = order(merged({"A": rows}, toml=options))
    spread = order(merged({"A": rows[30:]}, {"A": rows[:30]}, toml=options, rows_a_part=7))
    assert spread == whole != [row.prompt_id for row in rows]
    assert order(merged({"A": rows}, toml=f"{options}seed = 1")) != whole


@QUICKLY
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=40),
)
def test_taking_doubles_out_twice_is_taking_them_out_once(
    values: list[tuple[int, int, bool]],
) -> None:
    """What is left has no doubles, and of each prompt the best known is there."""
    table = np.zeros(len(values), ROW)
    for place, name in enumerate(("prompt", "fidelity", "truncated")):
        table[name] = [value[place] for value in values]
    gone = repeated(table, np.arange(len(table)), "prompt")
    left = np.setdiff1d(np.arange(len(table)), gone)
    assert len(repeated(table, left, "prompt")) == 0
    for prompt in {value[0] for value in values}:
        (kept,) = left[table["prompt"][left] == prompt]
        assert table["fidelity"][kept] == min(v[1] for v in values if v[0] == prompt)


@QUICKLY
@given(
    st.dictionaries(st.sampled_from("ABCD"), st.integers(1, 10**9), min_size=1),
    st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    st.integers(0, 10**9),
)
def test_weights_never_ask_for_more_than_there_is(
    there: dict[str, int], weights: list[float], cap: int
) -> None:
    """Every dataset stays within what it has and its cap, and one of them gives all it may."""
    chosen = [Dataset(name, cap, weight) for name, weight in zip(there, weights, strict=False)]
    limits = budgets(there, chosen)
    allowed = {name: min(count, cap or count) for name, count in there.items()}
    assert all(limits[name] <= allowed[name] for name in there)
    assert any(limits[name] == allowed[name] for name in there)


@QUICKLY
@given(st.integers(1, 10**9), st.integers(1, 1000), st.integers(1, 1000))
def test_weights_are_proportions_as_they_are_written(scarce: int, one: int, other: int) -> None:
    """0.1 to 0.3 is one to three: what binary fractions lack costs no dataset a token."""
    weights = [Dataset("A", weight=one / 10), Dataset("B", weight=other / 10)]
    limits = budgets({"A": scarce, "B": 10**15}, weights)
    assert limits == {"A": scarce, "B": scarce * other // one}
