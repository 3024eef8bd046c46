"""Too little memory (`ulimit -v`) ends with a named error, and what was there before is
untouched.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import OutOfMemory, translate_memory_errors

SCRIPT = """
import resource, sys
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import OutOfMemory
from rlhf_pipeline.core.errors import translate_memory_errors
from rlhf_pipeline.generate.prompts import PromptParams, generate

files, day = Artefacts(sys.argv[1]), "2026-01-01"
frame = generate(PromptParams(n=20), day=day)
files.write_frame("prompts", frame, day)
large = frame.assign(text=[f"{i}" + "word " * 1_000_000 for i in range(20)])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 16_000_000, resource.RLIM_INFINITY))
try:
    with translate_memory_errors("Writing prompts"):
        files.write_frame("prompts", large, day)
except OutOfMemory as told:
    print(told)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads how much memory is used from /proc"
)
def test_frame_too_large_for_memory_keeps_the_last_one(tmp_path):
    # Arrow's own allocators reserve a gigabyte of addresses ahead, which the limit would count.
    environ = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Writing prompts needs more memory than this process may have" in done.stdout, (
        done.stderr[-2000:]
    )
    assert len(Artefacts(tmp_path).read_frame("prompts", "2026-01-01")) == 20
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["2026-01-01.parquet"]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (MemoryError(), OutOfMemory),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            ),
            OutOfMemory,
        ),
        (RuntimeError("shapes differ"), RuntimeError),
    ],
)
def test_refused_allocations_are_named_and_other_faults_are_not(fault, named):
    with pytest.raises(named) as raised, translate_memory_errors("Asset reward_model"):
        raise fault
    assert type(raised.value) is named
