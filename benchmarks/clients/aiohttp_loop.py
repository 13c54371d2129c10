"""A bare aiohttp loop: the least that Python can do. No retry, no record, answers in memory."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

KEY = "sk-or-v1-benchmark"


async def main(url: str, prompts: str, fields: str, in_flight: int) -> int:
    rows = [json.loads(line) for line in Path(prompts).read_text("utf-8").splitlines()]
    common: dict[str, Any] = json.loads(Path(fields).read_text("utf-8"))
    gate, answers = asyncio.Semaphore(in_flight), []
    connector = aiohttp.TCPConnector(limit=in_flight)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def complete(row: dict[str, Any]) -> None:
            async with gate:
                body = common | {"messages": row["messages"]}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    answer = json.loads(await response.read())
            answers.append(answer["choices"][0]["message"]["content"])

        await asyncio.gather(*map(complete, rows))
    return len(answers)


if __name__ == "__main__":
    url, prompts, fields, in_flight, folder = sys.argv[1:]
    answers = asyncio.run(main(url, prompts, fields, int(in_flight)))
    Path(folder, "answers.json").write_text(json.dumps({"answers": answers}))
