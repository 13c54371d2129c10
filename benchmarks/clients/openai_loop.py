"""The openai client's async loop, as its documentation has it: defaults and a semaphore.

A request that still fails after the client's own retries is counted, not tried again.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import openai

KEY = "sk-or-v1-benchmark"


async def main(url: str, prompts: str, fields: str, in_flight: int) -> int:
    rows = [json.loads(line) for line in Path(prompts).read_text("utf-8").splitlines()]
    common: dict[str, Any] = json.loads(Path(fields).read_text("utf-8"))
    extra = {"provider": common.pop("provider")}
    gate, answers = asyncio.Semaphore(in_flight), []
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:

        async def complete(row: dict[str, Any]) -> None:
            async with gate:
                try:
                    answer = await client.chat.completions.create(
                        **common, messages=row["messages"], extra_body=extra
                    )
                except openai.OpenAIError as error:
                    print(error, file=sys.stderr)
                    return
            answers.append(answer.choices[0].message.content)

        await asyncio.gather(*map(complete, rows))
    return len(answers)


if __name__ == "__main__":
    url, prompts, fields, in_flight, folder = sys.argv[1:]
    answers = asyncio.run(main(url, prompts, fields, int(in_flight)))
    Path(folder, "answers.json").write_text(json.dumps({"answers": answers}))
