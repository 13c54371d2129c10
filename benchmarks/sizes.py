"""How much of everything is measured: the whole, and a smoke test that only shows that it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    #: (in flight, prompts) of each throughput case.
    throughput: tuple[tuple[int, int], ...]
    #: Longest that one client may take for one case.
    case_limit_s: float
    feeder_prompts: int
    #: Prompts of the resumed run, and how many of them are done.
    resume: tuple[int, int]
    resume_limit_s: float
    completions: int
    #: Connections and seconds of wrk.
    emulator: tuple[int, int]


FULL = Sizes(
    throughput=((64, 600), (256, 2_500), (2_000, 12_000)),
    case_limit_s=120,
    feeder_prompts=40_000,
    resume=(1_000_000, 990_000),
    resume_limit_s=60,
    completions=40_000,
    emulator=(6_000, 12),
)
SMOKE = Sizes(
    throughput=((8, 16),),
    case_limit_s=30,
    feeder_prompts=2_000,
    resume=(2_000, 1_000),
    resume_limit_s=20,
    completions=1_000,
    emulator=(50, 4),
)
