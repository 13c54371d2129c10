"""An endpoint whose answers make no samples is seen, and left, while the run goes on."""

from collections import Counter

import pytest

CONFIG = """
seed = 6
[backend]
kind = "smollm2"
[[endpoints]]
tag = "alpha/bf16"
provider_name = "Alpha"
quantization = "bf16"
[[endpoints]]
tag = "beta/bf16"
provider_name = "Beta"
quantization = "bf16"
[endpoints.honesty]
count_offset = 9
"""
RUN = """
[run]
name = "verified"
model = "moonshotai/kimi-k2.5"
target = "{target}"
concurrency = 16
[sampling]
max_tokens = 8
[providers]
quantizations = ["bf16"]
routing = "spread"
[[datasets]]
name = "B1"
path = "{path}"
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_endpoint_with_another_template_is_left_while_the_run_goes_on(
    start_emulator, make_run, write_prompts
) -> None:
    """Beta's prompts are billed with nine tokens more than the target's template has: after some
    twenty answers nothing more is bought there, and status says why."""
    model_folder = pytest.importorskip("emulator.backends.smollm2_weights").model_folder
    emulator = start_emulator(CONFIG)
    text = RUN.format(target=model_folder(), path=write_prompts("B1", 180))
    run = make_run(emulator, text)
    result = run.producer("run", str(run.path), "--yes")
    assert result.returncode == 0, result.stderr
    alpha, beta = (
        next(e for e in run.status()["endpoints"] if e["tag"] == f"{name}/bf16")
        for name in ("alpha", "beta")
    )
    assert (alpha["allowed"], alpha["unusable"]) == (True, 0)
    assert alpha["verified"] >= 20
    assert not beta["allowed"]
    assert beta["off"].startswith("answers: ")
    assert "prompt count off" in beta["off"]
    bought = Counter(row["endpoint"] for row in run.rows())
    assert 20 <= bought["beta/bf16"] < bought["alpha/bf16"]
    assert bought.total() == 180
