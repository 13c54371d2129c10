"""What an installation makes of setup.cfg."""

import configparser
from pathlib import Path

import pytest

CONFIG = configparser.ConfigParser()
CONFIG.read(Path(__file__).parents[2] / "setup.cfg", "utf-8")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("options", "install_requires"),
        ("options.entry_points", "console_scripts"),
        ("options.packages.find", "include"),
        ("options.extras_require", "dev"),
        ("options.extras_require", "gpu"),
    ],
)
def test_nothing_is_named_twice(section: str, key: str) -> None:
    """Two commands of one name, as a merge makes them, and nothing installs any more."""
    lines = CONFIG[section][key].split("\n")
    names = [line.split("=")[0].split(">")[0].strip() for line in lines if line.strip()]
    assert names
    assert len(set(names)) == len(names)
