"""The table of endpoints on a terminal of any usual width."""

import io

import pytest
from rich.console import Console

from fleet.run_config import Providers
from producer.endpoints import Endpoint
from producer.policy import judge, needs_of_policy
from producer.providers import endpoint_table

ENDPOINTS = [
    Endpoint("chutes/int4", "Chutes", "int4", 0.44e-6, 2.0e-6, uptime=99.9, tokens_per_s=41),
    Endpoint("amazon-bedrock/us-east-2", "Amazon Bedrock", "unknown", 0.5e-6, 12.5e-6, status=-5),
    Endpoint("fireworks", "Fireworks", "nvfp4", 0.6e-6, 3.0e-6),
]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_numbers_and_reasons_are_whole_at_usual_widths(width: int) -> None:
    """No price, size or reason is cut off, and each line fits."""
    needs = needs_of_policy(Providers(), "moonshotai/kimi-k2.5", None)
    screen = Console(width=width, file=io.StringIO(), force_terminal=False)
    screen.print(endpoint_table(judge(ENDPOINTS, needs)))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    text = " ".join(text.split())
    for word in ("0.44", "2.00", "12.50", "99.9%", "41", "unknown", "nvfp4", "(Chutes): kept"):
        assert word in text
    assert "ignore: fireworks; quantization: nvfp4, not int4" in text
    assert "status: -5, below -2" in text
