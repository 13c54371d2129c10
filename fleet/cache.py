"""What is made once on a machine and used by every run: the demo's model."""

import os
from pathlib import Path


def smollm2_folder() -> Path:
    """Where the converted weights of SmolLM2 are, or will be: in $EAGLE_FLEET_CACHE, or in
    ~/.cache/eagle-fleet."""
    configured = os.environ.get("EAGLE_FLEET_CACHE")
    return Path(configured or Path.home() / ".cache" / "eagle-fleet") / "smollm2-135m"
