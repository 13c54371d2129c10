"""How much of everything is measured: the whole, and a smoke test that only shows that it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One throughput case."""

    in_flight: int
    prompts: int
    mean_latency_s: float
    #: Longest that one client may take.
    limit_s: float


@dataclass(frozen=True)
class Sizes:
    throughput: tuple[Case, ...]
    feeder_prompts: int
    #: Prompts of the resumed run, and how many of them are done.
    resume: tuple[int, int]
    resume_limit_s: float
    completions: int
    #: Connections and seconds of wrk.
    emulator: tuple[int, int]
    #: Seconds of each phase of the outage.
    outage_s: float
    #: Completions that become token ids.
    token_rows: int
    #: Completions that the target reads to find their ids.
    target_rows: int
    #: Completions whose hidden states are made.
    hidden_rows: int


FULL = Sizes(
    throughput=(
        Case(64, 600, 1.0, 60),
        Case(256, 2_500, 1.0, 60),
        Case(2_000, 12_000, 1.0, 90),
        # No client can handle 2,000 answers a second on two cores. Real answers take longer:
        # here 250 a second keep 2,000 in flight.
        Case(2_000, 8_000, 8.0, 150),
    ),
    feeder_prompts=40_000,
    resume=(1_000_000, 990_000),
    resume_limit_s=60,
    completions=40_000,
    emulator=(6_000, 12),
    outage_s=12,
    token_rows=20_000,
    target_rows=120,
    hidden_rows=24,
)
SMOKE = Sizes(
    throughput=(Case(8, 16, 0.5, 30),),
    feeder_prompts=2_000,
    resume=(2_000, 1_000),
    resume_limit_s=20,
    completions=1_000,
    emulator=(50, 4),
    outage_s=4,
    token_rows=40,
    target_rows=4,
    hidden_rows=2,
)
