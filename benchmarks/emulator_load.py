"""Whether the harness is the limit: the emulator alone, on one core, under wrk on another.

In: the benchmarks' own service (300 tokens, 1 s). Out: responses per second and CPU of each. wrk
keeps more requests in flight than one core can answer in a second, so its rate is the emulator's
capacity. wrk is a Debian package; without it nothing is measured here.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.measure import cpu_s

#: Different messages each time, as clients send them.
SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
local n, text = 0, "{text}"
request = function()
    n = n + 1
    local body = '{{"model":"{model}","max_tokens":4096,"temperature":1.0,"top_p":1.0,'
        .. '"provider":{{"require_parameters":true}},"messages":[{{"role":"user","content":"'
        .. n .. text .. '"}}]}}'
    return wrk.format(nil, nil, nil, body)
end
"""


def measure(connections: int, seconds: int) -> dict[str, Any] | None:
    """None without wrk."""
    if not shutil.which("wrk"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    text = workload.messages(1)[0][0]["content"]
    with tempfile.TemporaryDirectory(prefix="bench-") as name, workload.service() as host:
        _pin(host.process.pid, cores[0])
        script = Path(name) / "complete.lua"
        script.write_text(SCRIPT.format(key=workload.API_KEY, model=workload.MODEL, text=text))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
        command += ["-s", str(script), f"{host.url}/chat/completions"]
        cpu_before_s, began = cpu_s(host.process.pid), time.time()
        subprocess.run(
            ["taskset", "-c", str(cores[-1]), *command], check=True, stdout=subprocess.DEVNULL
        )
        wall_s, spent_s = time.time() - began, cpu_s(host.process.pid) - cpu_before_s
        times = [entry["time"] for entry in host.billed()]
    # The first and the last two seconds are filling and emptying.
    middle = [t for t in times if times[0] + 2 <= t <= began + seconds]
    per_s = (len(middle) - 1) / (middle[-1] - middle[0]) if len(middle) > 1 else 0.0
    return {
        "connections": connections,
        "per_s": per_s,
        "cpu_us": 1e6 * spent_s / max(len(times), 1),
        "core_share": spent_s / wall_s,
    }


def _pin(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
