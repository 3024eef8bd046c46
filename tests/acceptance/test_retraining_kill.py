"""A training that is killed goes on where it was and ends with the same weights."""

import hashlib
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.demo import TIMEOUT_S, Demo, copy_before_retraining
from tests.acceptance.home import Home, kill

pytestmark = pytest.mark.timeout(3600)

# short, because what it learns is of no interest here
SHORT = ("min_steps=0", "epochs=1", "checkpoint_every=3", "evaluation.max_new_tokens=8")
ORDER = ["policy", "train", "--strategy", "sft", "--reason", "acceptance", "--wait"]
ORDER += [word for each in SHORT for word in ("--set", each)]


def test_a_killed_training_ends_with_the_same_weights(demo: Demo, tmp_path: Path) -> None:
    unbroken, killed = (copy_before_retraining(demo, tmp_path / name) for name in ("a", "b"))
    unbroken.run(*ORDER, timeout_s=TIMEOUT_S)

    process = killed.popen(*ORDER, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not list((killed.path / "models").rglob("checkpoint-*")):
            assert process.poll() is None, "the training ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        kill(process)
    assert "demo.policy@3" not in killed.run("models", "list")
    order_again(killed)
    assert hash_files(killed, tmp_path / "killed") == hash_files(unbroken, tmp_path / "unbroken")


def order_again(home: Home) -> None:
    """Give the same order as its user would. While the killed run still counts as running, the
    command waits for its end and reports its failure; later it names the cure.
    """
    home.environ |= {"RLHF_DEAD_AFTER_SECONDS": "20"}
    process = home.popen(*ORDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        kill(process)
    if lost := re.search(r"Its process is gone. `rlhf policy cancel (\d+)`", printed):
        home.run("policy", "cancel", lost[1], "--reason", "killed")
    else:
        assert "its process was ended" in printed, printed
    home.run(*ORDER, timeout_s=TIMEOUT_S)


def hash_files(home: Home, folder: Path) -> dict[str, str]:
    """SHA-256 of the files of the trained policy that a user would load."""
    home.run("models", "export", "demo.policy@3", folder)
    patterns = ("*.safetensors", "tokenizer*.json", "config.json")
    files = [path for pattern in patterns for path in folder.glob(pattern)]
    assert len(files) >= 3
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
