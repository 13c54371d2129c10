"""Which endpoint the emulator lets serve a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulator.config import Endpoint
from emulator.routing import MaxPrice, Preferences, Unroutable, route

CHUTES = Endpoint(tag="chutes/int4", provider_name="Chutes", quantization="int4")
CHUTES8 = Endpoint(
    tag="chutes/fp8", provider_name="Chutes", quantization="mxfp8", completion_usd_per_m=4.0
)
DEAR = Endpoint(
    tag="dear", provider_name="Dear", quantization="nvfp4", completion_usd_per_m=8.0, status=-2
)
BARE = Endpoint(tag="bare", provider_name="Bare", supported_parameters=("max_tokens",))
ALL = [CHUTES, CHUTES8, DEAR, BARE]


def tags(dice: float = 0.0, parameters: tuple[str, ...] = (), **wishes: Any) -> list[str]:
    return [e.tag for e in route(ALL, Preferences(**wishes), parameters, dice)]


def test_a_base_slug_means_all_of_a_provider_and_a_tag_one_endpoint() -> None:
    """`chutes` matches both of its endpoints, `chutes/int4` exactly one."""
    assert set(tags(only=["chutes"])) == {"chutes/int4", "chutes/fp8"}
    assert tags(only=["chutes/int4"]) == ["chutes/int4"]
    assert set(tags(ignore=["chutes"])) == {"dear", "bare"}


def test_order_is_followed_and_fallbacks_can_be_forbidden() -> None:
    """`order` comes first; the rest follows only where fallbacks are allowed."""
    assert tags(order=["dear", "chutes/fp8"])[:2] == ["dear", "chutes/fp8"]
    assert tags(order=["dear"], allow_fallbacks=False) == ["dear"]


def test_quantizations_price_and_parameters_filter() -> None:
    """Each constraint keeps what satisfies it; fp8 and fp4 include their block formats."""
    assert tags(quantizations=["fp8"]) == ["chutes/fp8"]
    assert tags(quantizations=["fp4"]) == ["dear"]
    assert "dear" not in tags(max_price=MaxPrice(completion=4.0))
    asked = ("max_tokens", "temperature", "messages")
    assert "bare" not in tags(parameters=asked, require_parameters=True)
    assert "bare" in tags(parameters=asked)


def test_what_no_endpoint_satisfies_is_a_404_that_names_both_sides() -> None:
    """The message lists who serves the model and whom the request permits."""
    with pytest.raises(Unroutable) as caught:
        tags(only=["nobody"])
    error = json.loads(caught.value.reply.body)["error"]
    assert caught.value.reply.status == error["code"] == 404
    assert "chutes" in error["message"]
    assert "permits only: nobody" in error["message"]
    assert error["availability"]["code"] == "constraint_filtered"


def test_unpinned_requests_go_by_the_inverse_square_of_price() -> None:
    """Two of these are equally cheap: each gets the share that 1/price² gives it."""
    firsts = [tags(dice=number / 1000)[0] for number in range(1000)]
    weights = {e.tag: 1 / (e.prompt_usd_per_m + e.completion_usd_per_m) ** 2 for e in ALL}
    share = weights["chutes/int4"] / (sum(weights.values()) - weights["dear"])
    assert firsts.count("chutes/int4") / 1000 == pytest.approx(share, abs=0.01)
    assert "dear" not in firsts, "an unhealthy endpoint is a fallback only"
