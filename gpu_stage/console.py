"""Exit codes, and the two consoles: results to standard output, talk to standard error."""

import sys
from enum import IntEnum

from rich.console import Console

#: A table in a file or a pipe has room.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 160)


class Exit(IntEnum):
    """What a command's exit status means."""

    #: All that there is to do is done.
    OK = 0
    #: Some parts could not be made, the others are.
    SOME_FAILED = 1
    #: The command cannot do what it was asked: the message says why.
    REFUSED = 2
    #: Ended before the work did; start it again and it goes on.
    INTERRUPTED = 130
