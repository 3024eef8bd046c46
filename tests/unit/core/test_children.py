"""A child ends with its parent, whatever kills the parent."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from rlhf_pipeline.core import processes

PARENT = """
import runpy, subprocess, sys, time
# without the two seconds that importing all of `cli` takes
bind_to_this_process = runpy.run_path(sys.argv[1])["bind_to_this_process"]
script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", script], preexec_fn=bind_to_this_process())
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, processes.__file__], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        # readable once nobody holds the pipe; a child that lives on holds it for ten minutes
        assert select.select([parent.stdout], [], [], 120)[0], "the child outlived its parent"
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        parent.stdout.close()
