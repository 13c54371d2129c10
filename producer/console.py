"""Exit codes, and the two consoles: results to standard output, talk to standard error."""

import sys
from enum import IntEnum

from rich.console import Console

#: A table in a file or a pipe has room.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 160)


class Exit(IntEnum):
    """What a command's exit status means."""

    #: Every prompt is done, cancelled or out of budget.
    OK = 0
    #: The run ended and some prompts are in the dead letters.
    SOME_FAILED = 1
    #: The command cannot do what it was asked: the message says why.
    REFUSED = 2
    #: Ended before the run did; start it again and it goes on.
    INTERRUPTED = 130
