"""Names processes, tells whether one still runs, and binds children to their parent."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import cache
from itertools import count

_number = count()


@cache
def _process_name(pid: int) -> str:
    """Host, number and start time of a process: numbers are reused."""
    import psutil

    return f"{socket.gethostname()}/{pid}/{psutil.Process(pid).create_time():.2f}"


def make_owner() -> str:
    """A name for one worker; `is_dead` reads from it whether its process still runs."""
    return f"{_process_name(os.getpid())}/{next(_number)}"


def is_dead(owner: str) -> bool:
    """Whether the process of an owner on this host has ended. Leases of other hosts run out."""
    import psutil

    host, pid, begin, _ = owner.rsplit("/", 3)
    if host != socket.gethostname():
        return False
    try:
        return bool(abs(psutil.Process(int(pid)).create_time() - float(begin)) > 1)
    except psutil.NoSuchProcess:
        return True


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
