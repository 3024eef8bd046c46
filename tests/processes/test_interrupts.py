"""Ctrl-C in the middle of the demo, once and again: it ends at once without a traceback, and the
next call goes on.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.__main__ import INTERRUPTED
from demo.state import DemoState
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.demo import claim
from tests.project import Project

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(make_project: Callable[..., Any]) -> Project:
    made: Project = make_project(persistent=True, completion_backend="template")
    claim(Workspace(made.settings))
    return made


def start(project: Project) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "demo", "--days", "1"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=project.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_second_interrupt_leaves_a_demo_that_goes_on(project: Project) -> None:
    demo = start(project)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.strip().startswith("comparisons"):
            break
    for _ in range(2):
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to all processes in the foreground
        time.sleep(0.2)
    said, _ = demo.communicate(timeout=120)
    assert demo.returncode == INTERRUPTED, said
    assert said.rstrip().endswith("The same command goes on with the day that is unfinished."), said
    assert DemoState.read(project.settings.demo_state).finished is None

    again = start(project)
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 0, said
    day = project.day(0)
    assert DemoState.read(project.settings.demo_state).finished == day
    published = project.store.comparisons.for_days([day])
    assert set(project.files.read_frame("votes", day)["comparison_id"]) <= set(
        published["comparison_id"]
    )
    assert not published["comparison_id"].duplicated().any()
    assert project.store.audit.verify() > 0
