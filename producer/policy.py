"""Which endpoints may answer: the run file's `[providers]`, rule by rule.

In: the listing, the policy, what the run needs of an endpoint. Out: for each endpoint a `Verdict`
with every rule that removes it. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.endpoint_counts import EndpointCounts
from fleet.errors import FleetError
from fleet.run_config import Providers, RunConfig
from producer.endpoints import Endpoint
from producer.known_models import KNOWN_MODELS
from producer.native import native_quantization

#: Of `quantizations`: the one that the weights were released in.
NATIVE = "native"
#: Fields of a request that are OpenRouter's own, which no listing names.
OWN_PARAMETERS = frozenset(
    "user metadata session_id trace service_tier plugins transforms route models debug usage"
    " cache_control include_reasoning stream_options".split()
)
#: OpenRouter's filter of the first takes the others, too.
WIDER = {"fp4": ("fp4", "mxfp4", "nvfp4"), "fp8": ("fp8", "mxfp8")}
#: What the ledger parts its fields by.
UNUSABLE_IN_TAGS = {"|", "\n"}
#: Answers of an endpoint that are looked at before it is judged by them.
ENOUGH_VERIFIED = 20


class NobodyLeft(FleetError):
    """No endpoint of the model may answer."""


@dataclass(frozen=True)
class Needs:
    """What the run file and the model come to: the policy with every default filled in."""

    only: tuple[str, ...]
    ignore: tuple[str, ...]
    #: None: the rule is off.
    quantizations: tuple[str, ...] | None
    min_output_tokens: int
    min_context_tokens: int
    parameters: tuple[str, ...]
    min_status: int
    min_uptime: float
    #: US dollars per million tokens; 0 is off.
    max_prompt_usd_per_m: float
    max_completion_usd_per_m: float
    #: What could not be decided, for the user.
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """An endpoint, and what keeps it from being asked; nothing: it may be."""

    endpoint: Endpoint
    reasons: tuple[str, ...]

    @property
    def kept(self) -> bool:
        return not self.reasons

    def record(self) -> dict[str, Any]:
        return {**self.endpoint.record(), "kept": self.kept, "reasons": list(self.reasons)}


def needs_of(config: RunConfig, *, tools: bool) -> Needs:
    """What this run needs.

    Args:
        tools: some prompt carries tools.
    """
    parameters = {"temperature", "top_p", "max_tokens", *config.sampling.extra}
    parameters |= set(config.providers.require)
    if config.sampling.reasoning is not None:
        parameters.add("reasoning")
    if config.sampling.logprobs:
        parameters |= {"logprobs", "top_logprobs"}
    if tools:
        parameters.add("tools")
    return needs_of_policy(
        config.providers,
        config.run.model,
        config.target,
        output_tokens=config.sampling.max_tokens,
        parameters=tuple(sorted(parameters)),
    )


def needs_of_policy(
    policy: Providers,
    model: str,
    target: Path | None,
    *,
    output_tokens: int = 0,
    parameters: tuple[str, ...] = (),
) -> Needs:
    """The policy with its defaults for this model."""
    known = KNOWN_MODELS.get(model.partition(":")[0])
    native = (native_quantization(target) if target else None) or (known.native if known else None)
    ignore = policy.ignore if policy.ignore is not None else known.ignore if known else ()
    wanted = policy.quantizations if policy.quantizations is not None else [NATIVE]
    note = ""
    quantizations: tuple[str, ...] | None = tuple(
        native if name == NATIVE and native else name for name in wanted
    )
    if NATIVE in wanted and native is None:
        note = (
            f"the quantisation that {model} was released in is not known, so endpoints of any are"
            " kept: name its folder in run.target, or providers.quantizations"
        )
        quantizations = None
    return Needs(
        only=tuple(policy.only),
        ignore=tuple(ignore),
        quantizations=quantizations or None,
        min_output_tokens=policy.min_output_tokens or output_tokens,
        min_context_tokens=policy.min_context_tokens,
        parameters=parameters,
        min_status=policy.min_status,
        min_uptime=policy.min_uptime,
        max_prompt_usd_per_m=policy.max_prompt_usd_per_m,
        max_completion_usd_per_m=policy.max_completion_usd_per_m,
        note=note,
    )


def judge(endpoints: Sequence[Endpoint], needs: Needs) -> list[Verdict]:
    """Every endpoint with its verdict, the cheapest first."""
    verdicts = [Verdict(e, tuple(_reasons(e, needs))) for e in endpoints]
    return sorted(verdicts, key=lambda v: (*v.endpoint.price, v.endpoint.tag))


def without_unusable(
    verdicts: Sequence[Verdict], counts: Sequence[EndpointCounts]
) -> list[Verdict]:
    """The verdicts, against those too whose answers make no samples."""
    unusable = {e.tag: _unusable(e) for e in counts if _is_unusable(e)}
    return [
        replace(v, reasons=(*v.reasons, unusable[v.endpoint.tag]))
        if v.endpoint.tag in unusable
        else v
        for v in verdicts
    ]


def _is_unusable(endpoint: EndpointCounts) -> bool:
    return endpoint.verified >= ENOUGH_VERIFIED and 2 * endpoint.unusable > endpoint.verified


def _unusable(endpoint: EndpointCounts) -> str:
    return (
        f"answers: {endpoint.unusable} of {endpoint.verified} make no sample"
        f" ({endpoint.unusable_last})"
    )


def kept(verdicts: Sequence[Verdict]) -> list[Endpoint]:
    """Those that may be asked.

    Raises:
        NobodyLeft: with what removed each.
    """
    left = [verdict.endpoint for verdict in verdicts if verdict.kept]
    if not left:
        lines = [f"\n  {v.endpoint.tag}: {'; '.join(v.reasons)}" for v in verdicts]
        found = "".join(lines) or " it lists none"
        raise NobodyLeft(f"[providers] leaves no endpoint of the model:{found}")
    return left


def _reasons(endpoint: Endpoint, needs: Needs) -> Iterator[str]:
    names = {endpoint.tag, endpoint.tag.partition("/")[0]}
    if not endpoint.tag:
        yield "tag: the listing gives none, so it cannot be pinned"
    if UNUSABLE_IN_TAGS & set(endpoint.tag):
        yield "tag: cannot be read"
    if not endpoint.provider_name:
        yield "provider: the listing gives no name, so its answers cannot be told"
    if endpoint.odd:
        yield f"listing: cannot be read: {', '.join(endpoint.odd)}"
    if needs.only and not names & set(needs.only):
        yield "only: not named"
    if ignored := names & set(needs.ignore):
        yield f"ignore: {', '.join(sorted(ignored))}"
    if needs.quantizations and endpoint.quantization not in _widened(needs.quantizations):
        yield f"quantization: {endpoint.quantization}, not {' or '.join(needs.quantizations)}"
    yield from _too_small(endpoint, needs)
    if missing := _missing(endpoint, needs):
        yield f"parameters: without {', '.join(missing)}"
    if endpoint.status < needs.min_status:
        yield f"status: {endpoint.status}, below {needs.min_status}"
    if needs.min_uptime and (endpoint.uptime or 0) < needs.min_uptime:
        shown = "unknown" if endpoint.uptime is None else f"{endpoint.uptime:g} %"
        yield f"uptime: {shown}, below {needs.min_uptime:g} %"
    yield from _too_dear(endpoint, needs)


def _widened(quantizations: Sequence[str]) -> set[str]:
    return {wide for name in quantizations for wide in WIDER.get(name, (name,))}


def _too_small(endpoint: Endpoint, needs: Needs) -> Iterator[str]:
    output = endpoint.max_completion_tokens
    if output is not None and output < needs.min_output_tokens:
        yield f"output: at most {output:,} tokens, {needs.min_output_tokens:,} needed"
    context, least = endpoint.context_length, max(needs.min_context_tokens, needs.min_output_tokens)
    if context is not None and context < least:
        yield f"context: {context:,} tokens, {least:,} needed"


def _missing(endpoint: Endpoint, needs: Needs) -> list[str]:
    """OpenRouter leaves such endpoints out itself, for `require_parameters` is sent."""
    supported = endpoint.supported_parameters
    if supported is None:
        return []
    return [n for n in needs.parameters if n not in supported and n not in OWN_PARAMETERS]


def _too_dear(endpoint: Endpoint, needs: Needs) -> Iterator[str]:
    if endpoint.request_price is None:
        yield "price: of a request, not fixed"
    if endpoint.prompt_price is None or endpoint.completion_price is None:
        yield "price: not fixed"
        return
    for name, price, ceiling in (
        ("prompt", endpoint.prompt_price, needs.max_prompt_usd_per_m),
        ("completion", endpoint.completion_price, needs.max_completion_usd_per_m),
    ):
        if ceiling and price * 1e6 > ceiling * (1 + 1e-9):
            yield f"price: {price * 1e6:.2f} USD per million {name} tokens, above {ceiling:g}"
