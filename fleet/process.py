"""Child processes that end with their parent, however it ends."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """For `preexec_fn`: a new process group (the terminal's Ctrl-C is the parent's to pass on),
    and, on Linux, SIGTERM when the parent dies. Start such a child from the main thread: Linux
    means the thread, not the process.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
