"""A child ends with its parent, whatever kills the parent."""

import signal
import subprocess
import sys

import pytest

from rlhf_pipeline.core import processes

PARENT = """
import runpy, subprocess, sys, time
# without the two seconds that importing all of `cli` takes
bind_to_this_process = runpy.run_path(sys.argv[1])["bind_to_this_process"]
command = [sys.executable, "-c", "import time; print('child', flush=True); time.sleep(60)"]
child = subprocess.Popen(command, preexec_fn=bind_to_this_process())
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, processes.__file__], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "child\n"
    parent.send_signal(signal.SIGKILL)
    assert parent.stdout.read() == ""  # returns once nobody holds the pipe
    parent.stdout.close()
    parent.wait()
