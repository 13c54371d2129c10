"""Exit codes, and the two consoles: results to standard output, talk to standard error."""

import sys
from enum import IntEnum

from rich.console import Console

#: A table in a file or a pipe has room.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 160)


class Exit(IntEnum):
    """What a command's exit status means."""

    OK = 0
    #: The command cannot do what it was asked: the message says why.
    REFUSED = 2
