"""bespokelabs-curator, with the in-flight limit as its only limit.

Its limits on requests and tokens a minute are raised out of the way (its defaults would decide
the result), telemetry, the live panel and all downloads are off. `answers` counts what
it hands back; with `require_all_responses` it would raise instead when one is missing.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

LITELLM = importlib.util.find_spec("litellm")
assert LITELLM is not None and LITELLM.origin is not None
os.environ |= {
    "TELEMETRY_ENABLED": "false",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # The tokeniser that it counts with would be downloaded; litellm carries it.
    "TIKTOKEN_CACHE_DIR": str(Path(LITELLM.origin).parent / "litellm_core_utils" / "tokenizers"),
}

from bespokelabs import curator  # noqa: E402 (reads the environment when it is imported)

KEY = "sk-or-v1-benchmark"
UNLIMITED = 10**12


class Complete(curator.LLM):  # type: ignore[misc]
    """One conversation to one answer."""

    def prompt(self, row: dict[str, Any]) -> Any:
        return row["messages"]

    def parse(self, row: dict[str, Any], answer: str) -> dict[str, Any]:
        return {"answer": answer}


def main(url: str, prompts: str, fields: str, in_flight: int, folder: str) -> int:
    rows = [json.loads(line) for line in Path(prompts).read_text("utf-8").splitlines()]
    common: dict[str, Any] = json.loads(Path(fields).read_text("utf-8"))
    llm = Complete(
        model_name=common.pop("model"),
        backend="openai",
        generation_params=common,
        backend_params={
            "base_url": url,
            "api_key": KEY,
            "max_concurrent_requests": in_flight,
            "max_requests_per_minute": UNLIMITED,
            "max_tokens_per_minute": UNLIMITED,
            "require_all_responses": False,
        },
    )
    return len(llm(rows, working_dir=folder).dataset)


if __name__ == "__main__":
    url, prompts, fields, in_flight, folder = sys.argv[1:]
    answers = main(url, prompts, fields, int(in_flight), folder)
    Path(folder, "answers.json").write_text(json.dumps({"answers": answers}))
