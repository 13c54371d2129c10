"""`producer watch`: a run seen from another process, on a terminal and without one."""

import os
import pty
import signal
import sys

CONFIG = """
seed = 4
[backend.latency]
mean_s = 0.2
"""
RUN = """
[run]
name = "watched"
model = "moonshotai/kimi-k2.5"
concurrency = 8
[sampling]
max_tokens = 200
[providers]
quantizations = ["int4"]
"""


def test_watching_ends_with_the_run_and_is_lines_without_a_terminal(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """It shows a run that another process feeds, and leaves it alone."""
    emulator = start_emulator(CONFIG)
    path = write_prompts("B1", 120)
    run = make_run(emulator, RUN + f'[[datasets]]\nname = "B1"\npath = "{path}"\n')
    fed = run.start("run", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: emulator.books()["billed_requests"] > 5)

    watched = run.producer("watch", str(run.path))
    assert watched.returncode == 0, watched.stderr
    lines = watched.stdout.splitlines()
    assert all(line.startswith("B1 ") for line in lines)
    assert "B1 120/120" in lines[-1]
    assert "ended" in lines[-1]
    assert fed.wait(60) == 0
    assert emulator.books()["billed_requests"] == 120


def test_ctrl_c_stops_looking_and_not_the_run(
    start_emulator, make_run, write_prompts, wait_for
) -> None:
    """On a terminal it draws; interrupted it ends with 130, and the run goes on."""
    emulator = start_emulator(CONFIG)
    path = write_prompts("B1", 200)
    run = make_run(emulator, RUN + f'[[datasets]]\nname = "B1"\npath = "{path}"\n')
    fed = run.start("run", "producer", "run", str(run.path), "--yes")
    wait_for(lambda: emulator.books()["billed_requests"] > 5)

    child, terminal = pty.fork()
    if child == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "producer", "watch", str(run.path)],
            {**run.environment, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
        )
    seen = b""
    while b"in flight of" not in seen:
        seen += os.read(terminal, 65536)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)
    assert fed.wait(60) == 0
    assert emulator.books()["billed_requests"] == 200
