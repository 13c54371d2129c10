"""The emulator's configuration: one frozen tree, read once from TOML.

In: a TOML file. Out: `Config`. A key that does not exist, a value of the wrong type or
out of range is refused with the key's place in the file. 0 means off, wherever a
number can be off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from .chance import Shape
from .fault_kinds import KINDS
from .money import nano_of_usd, nano_per_token

#: What Kimi-K2.5 endpoints accept, as its public listing has it.
PARAMETERS = (
    "frequency_penalty include_reasoning logit_bias logprobs max_tokens min_p "
    "parallel_tool_calls presence_penalty reasoning reasoning_effort repetition_penalty "
    "response_format seed stop structured_outputs temperature tool_choice tools top_k "
    "top_logprobs top_p"
)


class ConfigError(Exception):
    """The emulator's configuration cannot be used."""


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


class Latency(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a completion takes (synthetic and recorded backends)."""

    kind: Shape = "constant"
    mean_s: float = 0.0
    spread: float = 0.5
    #: No latency is longer than this. 0: off.
    max_s: float = 0.0

    def __post_init__(self) -> None:
        _at_least(0, mean_s=self.mean_s, spread=self.spread, max_s=self.max_s)


class Sizes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many tokens a synthetic completion has."""

    kind: Shape = "lognormal"
    mean_tokens: float = 120.0
    spread: float = 0.5
    #: No completion wants to be longer than this. 0: off.
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        _at_least(0, spread=self.spread, max_tokens=self.max_tokens)
        _at_least(1, mean_tokens=self.mean_tokens)


class Backend(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the text comes from."""

    kind: Literal["synthetic", "recorded", "smollm2"] = "synthetic"
    latency: Latency = Latency()
    completion: Sizes = Sizes()
    #: Share of a synthetic completion that is reasoning. 0: no reasoning.
    reasoning_share: float = 0.4
    #: Folder of `*.request.json` and `*.response.body` files (recorded).
    samples: str = ""
    #: Most requests that are generated together (smollm2).
    batch_size: int = 16
    #: Threads for the model's arithmetic (smollm2). 0: half the cores, as threads that
    #: wait for each other on a busy machine are slower than one.
    threads: int = 0

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)
        _at_least(0, threads=self.threads, reasoning_share=self.reasoning_share)
        if self.reasoning_share > 0.95:
            raise ValueError("reasoning_share must be at most 0.95")
        if self.kind == "recorded" and not self.samples:
            raise ValueError("samples must name the folder of recorded exchanges")


class Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The one model that is served."""

    id: str = "moonshotai/kimi-k2.5"
    canonical_slug: str = "moonshotai/kimi-k2.5-0127"
    name: str = "MoonshotAI: Kimi K2.5"
    hugging_face_id: str = "moonshotai/Kimi-K2.5"
    created: int = 1769487076


class Honesty(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ways in which an endpoint is not what it says; the default is honest."""

    #: Added to prompt_tokens: an endpoint that renders another template.
    count_offset: int = 0
    #: Added to completion_tokens: -1 is an endpoint that leaves out the end token.
    completion_count_offset: int = 0
    #: Says that it supports logprobs, and returns null.
    drop_logprobs: bool = False
    #: The temperature it samples at, whatever was asked for. 0: as asked.
    temperature_served: float = 0.0
    #: The display name that its responses carry. "": its own.
    wrong_provider: str = ""
    #: The model that its responses name. "": the right one.
    wrong_model: str = ""


class Endpoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One provider's offer of the model."""

    tag: str
    provider_name: str
    quantization: str = "unknown"
    prompt_usd_per_m: float = 0.44
    completion_usd_per_m: float = 2.00
    context_length: int = 262144
    #: 0: the endpoint publishes none (null).
    max_completion_tokens: int = 65536
    supported_parameters: tuple[str, ...] = tuple(PARAMETERS.split())
    #: 0 is healthy, negative is not: used only when nothing healthy is left.
    status: int = 0
    uptime: float = 99.9
    #: Multiplies the endpoint's share of unpinned requests.
    weight: float = 1.0
    latency_factor: float = 1.0
    #: A cancelled stream is billed in full instead of up to what was sent.
    bills_cancelled_streams: bool = False
    honesty: Honesty = Honesty()

    def __post_init__(self) -> None:
        nano_per_token(self.prompt_usd_per_m)
        nano_per_token(self.completion_usd_per_m)
        _at_least(0, weight=self.weight, latency_factor=self.latency_factor)
        _at_least(1, context_length=self.context_length)

    @property
    def prompt_nano(self) -> int:
        return nano_per_token(self.prompt_usd_per_m)

    @property
    def completion_nano(self) -> int:
        return nano_per_token(self.completion_usd_per_m)


class Fault(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One way to fail, and how often. Faults are tried in order; the first that fires acts."""

    kind: str
    rate: float = 1.0
    #: Only requests that this endpoint serves. "": all.
    endpoint: str = ""
    #: Only the first so many requests with the same messages. 0: all.
    attempts: int = 0
    #: Only from here on, in seconds since the faults were set.
    from_s: float = 0.0
    #: Only up to here, in seconds since the faults were set. 0: for ever.
    until_s: float = 0.0
    #: Time from the request to the fault; keep-alives are sent meanwhile.
    after_s: float = 0.0
    #: What Retry-After or its like says, where the kind has one.
    retry_after_s: float = 1.0
    #: How long a hang or a slow drip goes on. 0: for ever (hang), 5 s (drip).
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown; known: {', '.join(sorted(KINDS))}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate must be between 0 and 1, not {self.rate}")
        _at_least(0, attempts=self.attempts, from_s=self.from_s, until_s=self.until_s)
        _at_least(0, after_s=self.after_s, retry_after_s=self.retry_after_s)
        _at_least(0, duration_s=self.duration_s)


DEFAULT_ENDPOINTS = (
    Endpoint(tag="chutes/int4", provider_name="Chutes", quantization="int4"),
    Endpoint(
        tag="inceptron/int4",
        provider_name="Inceptron",
        quantization="int4",
        completion_usd_per_m=2.20,
    ),
    Endpoint(
        tag="fireworks",
        provider_name="Fireworks",
        quantization="nvfp4",
        prompt_usd_per_m=0.60,
        completion_usd_per_m=3.00,
    ),
)


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the emulator is told when it starts."""

    seed: int = 0
    model: Model = Model()
    backend: Backend = Backend()
    endpoints: tuple[Endpoint, ...] = DEFAULT_ENDPOINTS
    faults: tuple[Fault, ...] = ()
    #: Keys that are let in. Empty: any that is not empty.
    api_keys: tuple[str, ...] = ()
    #: Keys that may read /credits.
    management_keys: tuple[str, ...] = ()
    #: What the account can spend. 0: no limit.
    balance_usd: float = 0.0
    #: Refuse a request whose max_tokens the balance could not pay for.
    check_max_tokens: bool = False
    #: Refuse, to be tried again, what only the requests in flight leave no balance for.
    in_flight_budget: bool = False
    #: Time between two keep-alives while a completion is awaited. 0: none are sent.
    keepalive_s: float = 1.0
    #: How long after a completion /generation still answers 404.
    generation_delay_s: float = 0.2

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("endpoints must have at least one entry")
        tags = [endpoint.tag for endpoint in self.endpoints]
        if len(set(tags)) < len(tags):
            raise ValueError("endpoints must have different tags")
        check_fault_endpoints(self.faults, tags)
        nano_of_usd(self.balance_usd)
        _at_least(0, balance_usd=self.balance_usd, keepalive_s=self.keepalive_s)
        _at_least(0, generation_delay_s=self.generation_delay_s)


def check_fault_endpoints(faults: tuple[Fault, ...], tags: list[str]) -> None:
    """ValueError for a fault that names an endpoint which does not exist."""
    for index, fault in enumerate(faults):
        if fault.endpoint and fault.endpoint not in tags:
            raise ValueError(f"faults[{index}].endpoint {fault.endpoint!r} is not in endpoints")


def load(path: Path | None) -> Config:
    """The configuration in the file, or the defaults without one."""
    if path is None:
        return Config()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:  # ValidationError is one too
        raise ConfigError(f"{path}: {error}") from error
