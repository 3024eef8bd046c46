"""Two demos on one home: the second is told so and touches nothing; a killed one keeps nobody
out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import lock_home
from rlhf_pipeline.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from pathlib import Path
from demo.__main__ import lock_home
with lock_home(Path(sys.argv[1])):
    print("at work", flush=True)
    sys.stdin.readline()
"""


def test_a_second_demo_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    environ = os.environ | {"RLHF_HOME": str(tmp_path), "RLHF_ANNOTATORS": "simulated"}
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "at work\n"
        before = sorted(tmp_path.iterdir())
        command = [sys.executable, "-m", "demo", "--days", "1"]
        second = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert second.returncode == 1
        said = " ".join(second.stdout.split())
        assert f"Another demo is at work on {tmp_path}" in said
        assert "make demo RLHF_HOME=" in said
        assert sorted(tmp_path.iterdir()) == before
        with pytest.raises(ConfigurationError, match="Another demo"), lock_home(tmp_path):
            pass
    finally:
        first.kill()
        first.wait()
    with lock_home(tmp_path):
        pass
