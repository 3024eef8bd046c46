"""Child processes that end when the process that started them is killed."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None)  # loaded here: a forked child must not search for libraries


def bind_to_this_process() -> Callable[[], None]:
    """A `preexec_fn`: the child receives SIGTERM when this process dies, SIGKILL included. Does
    nothing outside Linux.
    """
    parent = os.getpid()

    def bind() -> None:
        if sys.platform == "linux":
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the call
                os.kill(os.getpid(), signal.SIGTERM)

    return bind
