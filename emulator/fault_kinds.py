"""The names of all faults, with a sentence on each: the emulator's list of bad luck.

`KINDS` maps a kind to what a client sees. What each does is in `fault_errors` (an
error with its own HTTP status), `fault_bodies` (a 200 that is none, never billed),
`fault_cuts` (the connection) and `fault_text` (a completion altered, and billed).
"""

from __future__ import annotations

#: An HTTP status and an error body. Free.
ERRORS = {
    "context_length_400": "the prompt is too long for the endpoint",
    "provider_400": "a provider's own 400, passed on; another try may succeed",
    "unauthorized_401": "the key is not known",
    "credits_402": "the account has no credits",
    "afford_402": "max_tokens is more than the credits can pay for",
    "prompt_limit_402": "the prompt is longer than the credits can pay for",
    "in_flight_402": "requests in flight use up the credits; try again (Retry-After)",
    "weight_402": "the request alone is more than the in-flight budget",
    "key_limit_402": "the key's own spending limit is reached",
    "moderation_403": "the input was flagged",
    "budget_403": "a workspace budget is spent, until it resets",
    "not_found_404": "the model or endpoint is not there",
    "timeout_408": "the operation timed out",
    "conflict_409": "the request conflicts with another",
    "gone_410": "the resource is gone",
    "precondition_412": "a precondition failed",
    "too_large_413": "the request is too large",
    "unprocessable_422": "the request cannot be processed",
    "rate_limit_429": "rate limited upstream, without a hint when to come back",
    "rate_limit_429_header": "rate limited, with a Retry-After header",
    "rate_limit_429_metadata": "rate limited, with metadata.retry_after_seconds",
    "rate_limit_429_cloudflare": "rate limited by Cloudflare: raw is `error code: 1015`",
    "rate_limit_429_free": "a free model's daily quota is used up",
    "capacity_429": "no capacity: error.availability says retryable, no error.code",
    "closed_499": "the client closed the request, says the provider",
    "server_500": "internal server error",
    "provider_502": "provider returned error",
    "unavailable_503": "no provider available just now",
    "unavailable_503_header": "no provider available just now, with Retry-After",
    "availability_503": "error.availability says retryable, no error.code",
    "timeout_504": "the gateway timed out",
    "timeout_524": "request timed out, as JSON",
    "overloaded_529": "the provider is overloaded, as JSON",
    **{f"html_{status}": f"a Cloudflare page with status {status}" for status in range(520, 530)},
    "html_502": "an nginx page with status 502",
}

#: HTTP 200 and a body that is no completion. Free.
BODIES = {
    "error_200": "`error` alone",
    "error_200_null_fields": "`error`, and id, choices, model all null",
    "error_200_empty_choices": "`error` beside `choices: []`",
    "error_200_string_code": "`error` whose code is a string",
    "null_choices": "`choices: null` and no error",
    "empty_choices": "`choices: []` and no error",
    "missing_choices": "no `choices` and no error",
    "nested_under_provider": "the completion lies under `provider`, top-level fields null",
    "html_200": "a Cloudflare page with status 200",
    "empty_200": "no body at all",
}

#: The connection misbehaves. Free.
CUTS = {
    "cut_after_keepalives": "the body ends, cleanly, after keep-alive whitespace",
    "cut_mid_json": "the body ends, cleanly, in the middle of the JSON",
    "cut_connection": "the connection is closed in the middle of the JSON",
    "reset": "the connection is reset before anything was sent",
    "hang": "keep-alives, and nothing else, for `duration_s` (0: for ever)",
    "hang_silent": "nothing, for `duration_s` (0: for ever)",
}

#: A completion that is not what was asked for. Billed, but for the first two.
ALTERED = {
    "finish_error": "partial content, finish_reason `error` and choices[0].error; free",
    "zero_tokens": "no content, no finish_reason, zero completion tokens; free",
    "length": "cut off in the content, finish_reason `length`",
    "length_in_reasoning": "content null, cut off in the reasoning, finish_reason `length`",
    "no_finish_reason": "finish_reason null",
    "markup_in_content": "raw tool-call tokens in the content, no tool_calls",
    "markup_in_reasoning": "raw tool-call tokens in the reasoning, no tool_calls",
    "think_leak": "`</think>` in the content",
    "empty_content": "the content is an empty string",
    "null_native_finish": "native_finish_reason null",
    "missing_usage": "no usage block; the cost is in the books alone",
    "wrong_provider": "the response names a provider that was not allowed",
    "wrong_model": "the response names another model",
    "slow_drip": "the body arrives a little at a time, over `duration_s` (0: 5 s)",
}

KINDS = {**ERRORS, **BODIES, **CUTS, **ALTERED}

#: Altered completions that cost nothing (zero-completion insurance).
FREE = frozenset({"finish_error", "zero_tokens"})
