"""The policy: each rule removes what it should, and says so; the listing may be anything."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import run_config
from fleet.run_config import Providers, RunConfig
from producer.endpoints import Endpoint, read_listing
from producer.native import native_quantization, read_quantization
from producer.policy import NobodyLeft, judge, kept, needs_of, needs_of_policy

KIMI = "moonshotai/kimi-k2.5"
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data" / "kimi_tokenizer"
PARAMETERS = ["temperature", "top_p", "max_tokens", "logprobs", "top_logprobs", "tools"]


def raw(**fields: Any) -> dict[str, Any]:
    """An endpoint of a listing."""
    return {
        "tag": "chutes/int4",
        "provider_name": "Chutes",
        "quantization": "int4",
        "pricing": {"prompt": "0.00000044", "completion": "0.000002", "request": "0"},
        "context_length": 262144,
        "max_completion_tokens": 65536,
        "supported_parameters": PARAMETERS,
        "status": 0,
        "uptime_last_30m": 99.5,
    } | fields


def endpoint(**fields: Any) -> Endpoint:
    (found,) = read_listing({"endpoints": [raw(**fields)]})
    return found


def reasons(providers: Providers, model: str = KIMI, **fields: Any) -> tuple[str, ...]:
    needs = needs_of_policy(providers, model, None, output_tokens=8192, parameters=("temperature",))
    (verdict,) = judge([endpoint(**fields)], needs)
    return verdict.reasons


@pytest.mark.parametrize(
    ("providers", "fields", "reason"),
    [
        (Providers(only=["parasail"]), {}, "only: not named"),
        (Providers(ignore=["chutes"]), {}, "ignore: chutes"),
        (Providers(ignore=["chutes/int4"]), {}, "ignore: chutes/int4"),
        (Providers(), {"tag": "fireworks"}, "ignore: fireworks"),
        (Providers(), {"tag": "baseten/fp4", "quantization": "int4"}, "ignore: baseten"),
        (Providers(), {"quantization": "fp8"}, "quantization: fp8, not int4"),
        (Providers(), {"quantization": None}, "quantization: unknown, not int4"),
        (
            Providers(quantizations=["native", "fp8"]),
            {"quantization": "bf16"},
            "quantization: bf16, not int4 or fp8",
        ),
        (
            Providers(),
            {"max_completion_tokens": 4096},
            "output: at most 4,096 tokens, 8,192 needed",
        ),
        (
            Providers(min_output_tokens=100_000),
            {},
            "output: at most 65,536 tokens, 100,000 needed",
        ),
        (
            Providers(min_context_tokens=300_000),
            {},
            "context: 262,144 tokens, 300,000 needed",
        ),
        (Providers(), {"context_length": 4096}, "context: 4,096 tokens, 8,192 needed"),
        (
            Providers(),
            {"supported_parameters": ["top_p"]},
            "parameters: without temperature",
        ),
        (Providers(), {"status": -5}, "status: -5, below -2"),
        (Providers(min_status=0), {"status": -2}, "status: -2, below 0"),
        (Providers(min_uptime=99.9), {}, "uptime: 99.5 %, below 99.9 %"),
        (Providers(min_uptime=1), {"uptime_last_30m": None}, "uptime: unknown, below 1 %"),
        (
            Providers(max_prompt_usd_per_m=0.4),
            {},
            "price: 0.44 USD per million prompt tokens, above 0.4",
        ),
        (
            Providers(max_completion_usd_per_m=1.9),
            {},
            "price: 2.00 USD per million completion tokens, above 1.9",
        ),
        (Providers(), {"pricing": {"prompt": "-1", "completion": "-1"}}, "price: not fixed"),
        (Providers(), {"pricing": None}, "price: not fixed"),
        (
            Providers(),
            {"tag": None},
            "tag: the listing gives none, so it cannot be pinned",
        ),
        (
            Providers(),
            {"provider_name": None},
            "provider: the listing gives no name, so its answers cannot be told",
        ),
        (Providers(), {"status": "down"}, "listing: cannot be read: status = 'down'"),
        (
            Providers(),
            {"supported_parameters": 7},
            "listing: cannot be read: supported_parameters = '7'",
        ),
    ],
)
def test_each_rule_removes_what_it_should_and_says_so(
    providers: Providers, fields: dict[str, Any], reason: str
) -> None:
    """One rule, one reason, with the values."""
    assert reasons(providers, **fields) == (reason,)


@pytest.mark.parametrize(
    ("providers", "fields"),
    [
        (Providers(), {}),
        (Providers(only=["chutes"]), {}),
        (Providers(only=["chutes/int4"]), {}),
        (Providers(ignore=[]), {"tag": "fireworks"}),
        (Providers(quantizations=[]), {"quantization": "nvfp4"}),
        (Providers(quantizations=["native", "unknown"]), {"quantization": None}),
        (Providers(quantizations=["fp4"]), {"quantization": "nvfp4"}),
        (Providers(), {"max_completion_tokens": None, "context_length": None}),
        (Providers(), {"supported_parameters": None}),
        (Providers(), {"status": -2}),
        (Providers(max_completion_usd_per_m=2.0, max_prompt_usd_per_m=0.44), {}),
    ],
)
def test_what_no_rule_concerns_is_kept(providers: Providers, fields: dict[str, Any]) -> None:
    """What is not published removes nothing; a ceiling may be met."""
    assert reasons(providers, **fields) == ()


def test_a_policy_that_leaves_nobody_says_which_rule_removed_whom() -> None:
    """Every endpoint with its reasons."""
    listing = [endpoint(), endpoint(tag="fireworks", quantization="nvfp4", status=-5)]
    verdicts = judge(listing, needs_of_policy(Providers(only=["parasail"]), KIMI, None))
    with pytest.raises(NobodyLeft) as refused:
        kept(verdicts)
    text = str(refused.value)
    assert "chutes/int4: only: not named" in text
    assert "fireworks: only: not named; ignore: fireworks; quantization: nvfp4" in text


def test_the_cheapest_comes_first_and_what_has_no_price_last() -> None:
    """By completion price, then by prompt price."""
    prices = {"a": ("1", "3"), "b": ("2", "2"), "c": ("1", "2"), "d": (None, None)}
    listing = [
        endpoint(tag=tag, pricing={"prompt": prompt, "completion": completion})
        for tag, (prompt, completion) in prices.items()
    ]
    verdicts = judge(listing, needs_of_policy(Providers(), KIMI, None))
    assert [v.endpoint.tag for v in verdicts] == ["c", "b", "a", "d"]


def test_a_price_that_may_rise_is_reserved_at_its_highest() -> None:
    """Overrides for long prompts or times of day raise it; one without a price of its own does
    not count."""
    overrides = [
        {"min_prompt_tokens": 1000, "prompt": "0.000003"},
        {"utc_start": "08:00", "pricing": {"completion": "0.000009"}},
    ]
    found = endpoint(
        pricing={"prompt": "0.000001", "completion": "0.000002", "overrides": overrides}
    )
    assert (found.prompt_price, found.completion_price) == (3e-6, 9e-6)


@pytest.mark.parametrize("overrides", ["soon", [7], {"prompt": "0.1"}])
def test_an_override_that_cannot_be_read_leaves_no_fixed_price(overrides: Any) -> None:
    """What it raises a price to is not known, so no reservation could hold it."""
    found = endpoint(pricing={"prompt": "0.1", "completion": "0.1", "overrides": overrides})
    assert (found.prompt_price, found.completion_price) == (None, None)


def test_reasoning_with_a_higher_price_is_reserved_for_every_token() -> None:
    """Any token of an answer may be one of its reasoning."""
    pricing = {"prompt": "0.000001", "completion": "0.000002", "internal_reasoning": "0.000009"}
    assert endpoint(pricing=pricing).completion_price == 9e-6
    for none in ("0", None):
        assert endpoint(pricing=pricing | {"internal_reasoning": none}).completion_price == 2e-6


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(raw())), JSON))
def test_whatever_a_listing_says_there_is_a_verdict(fields: dict[str, Any]) -> None:
    """Missing, null and odd values crash nothing."""
    needs = needs_of_policy(Providers(min_uptime=1, max_prompt_usd_per_m=1), KIMI, None)
    for verdict in judge(read_listing({"endpoints": [raw(**fields), fields, None]}), needs):
        assert verdict.kept == (not verdict.reasons)


def test_a_listing_without_endpoints_has_none() -> None:
    """Null, missing, and what is no list."""
    assert read_listing({}) == read_listing({"endpoints": None}) == []
    assert read_listing({"endpoints": 5}) == read_listing({"endpoints": True}) == []


# What a run needs


def config(tmp_path: Path, sampling: str = "") -> RunConfig:
    path = tmp_path / "run.toml"
    dataset = '[[datasets]]\nname = "B1"\npath = "x"\n'
    path.write_text(f'[run]\nname = "r"\nmodel = "{KIMI}"\n{sampling}\n{dataset}')
    return run_config.load(path)


def test_a_run_needs_the_parameters_that_its_requests_send(tmp_path: Path) -> None:
    """As OpenRouter holds them against the listing under require_parameters; its own fields, which
    no listing names, are none."""
    plain = needs_of(config(tmp_path), tools=False)
    assert plain.parameters == ("max_tokens", "temperature", "top_p")
    sampling = "[sampling]\nlogprobs = true\nreasoning = {enabled = true}\nextra = {min_p = 0.1}\n"
    more = needs_of(config(tmp_path, sampling), tools=True)
    added = {"logprobs", "top_logprobs", "reasoning", "min_p", "tools"}
    assert set(more.parameters) == set(plain.parameters) | added
    own = needs_of(config(tmp_path, '[sampling]\nextra = {user = "me"}\n'), tools=False)
    (verdict,) = judge([endpoint()], own)
    assert verdict.kept


def test_without_a_known_native_quantisation_the_rule_is_off_and_says_so() -> None:
    """An unknown model: every quantisation is kept, with a note."""
    needs = needs_of_policy(Providers(), "some/model", None)
    assert "run.target" in needs.note
    assert judge([endpoint(quantization="fp4")], needs)[0].kept
    assert needs_of_policy(Providers(quantizations=["fp8"]), "some/model", None).note == ""


def test_the_targets_own_config_wins_over_what_is_known(tmp_path: Path) -> None:
    """Its folder says what its weights are."""
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    needs = needs_of_policy(Providers(), KIMI, tmp_path)
    assert needs.quantizations == ("bf16",)


@pytest.mark.parametrize(
    ("config", "native"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bf16"),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                }
            },
            "int4",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {"weights": {"num_bits": 4, "type": "int"}},
                        "group_1": {"weights": {"num_bits": 8, "type": "float"}},
                    },
                }
            },
            None,
        ),
        ({"quantization_config": {"format": "nvfp4-pack-quantized"}}, "nvfp4"),
        ({"quantization_config": {"quant_method": "unheard-of"}}, None),
        ({}, None),
    ],
)
def test_the_native_quantisation_is_read_from_the_models_config(
    config: dict[str, Any], native: str | None
) -> None:
    """The forms in which checkpoints say it; what is not understood is None."""
    assert read_quantization(config) == native


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data/kimi_tokenizer is not here")
def test_kimis_own_config_says_int4() -> None:
    """The real file."""
    assert native_quantization(SHARED) == "int4"


def test_a_broken_config_names_the_file(tmp_path: Path) -> None:
    """Not silently unknown."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Exception, match=r"config\.json: cannot be read"):
        native_quantization(tmp_path)
    assert native_quantization(tmp_path / "nowhere") is None


def test_a_verdict_is_recorded_whole() -> None:
    """As JSON, with every field of the listing."""
    (verdict,) = judge([endpoint(status=-5)], needs_of_policy(Providers(), KIMI, None))
    record = json.loads(json.dumps(verdict.record()))
    assert record["tag"] == "chutes/int4"
    assert record["kept"] is False
    assert record["reasons"] == ["status: -5, below -2"]
