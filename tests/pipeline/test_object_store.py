"""The loop with its frames in an object store: every process that makes stages writes there, and
nothing lies below the home.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import ENV_PREFIX
from rlhf_pipeline.records import CalibrationReport, ModelVersion, utc_now
from tests.s3 import S3, local_s3

COLLECTION = ("prompts", "completions", "comparisons")
FEEDBACK = ("votes", "reflection_log", "drift_report")
SMALL = {
    "prompts": {"n": 12},
    "completions": {"max_new_tokens": 8},
    "comparisons": {"pairs_per_prompt": 6},
}
IN_A_PROCESS = Path(__file__).parents[1] / "processes" / "step_processes.py"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with local_s3() as server:
        yield server


def collect_in_a_process(project: Any, day: str) -> set[str]:
    """A run in a process of its own; returns the jobs that beat in the project's store
    meanwhile.
    """
    own = project.environ | {
        "STEP_SETTINGS": project.settings.model_dump_json(
            exclude_none=True, exclude={"alert_targets"}
        ),
        "STEP_JOB": "collection",
    }
    environ = {
        key: value
        for key, value in own.items()
        if not key.startswith(ENV_PREFIX) or key == "RLHF_HOME"
    }
    config = {"ops": {stage: {"config": values} for stage, values in SMALL.items()}}
    command = [sys.executable, str(IN_A_PROCESS), day, json.dumps(config)]
    beat: set[str] = set()
    with subprocess.Popen(
        command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as running:
        stopped = threading.Event()

        def look() -> None:
            while not stopped.wait(0.2):
                beat.update(
                    row.job
                    for row in project.store.heartbeats.find_stale(utc_now() + timedelta(days=1))
                )

        looking = threading.Thread(target=look)
        looking.start()
        _, said = running.communicate()
        stopped.set()
        looking.join()
    assert running.returncode == 0, said[-3000:]
    return beat


@pytest.fixture(scope="module")
def project(s3: S3, make_project: Callable[..., Any]) -> Any:
    """Two days whose frames are in the store: the first collected in this process, the second in
    one of its own.
    """
    project = make_project(
        persistent=True, completion_backend="template", frames_url=s3.url("two/days")
    )
    project.collect(project.day(0), n=SMALL["prompts"]["n"])
    project.__dict__["beat"] = collect_in_a_process(project, project.day(1))
    for day in (project.day(0), project.day(1)):
        project.vote(day)
    project.run("feedback", project.day(0), project.day(1))
    return project


def test_every_stage_of_both_days_is_in_the_store(project: Any, s3: S3) -> None:
    files = Artefacts(s3.url("two/days"))
    for stage in (*COLLECTION, *FEEDBACK):
        assert files.days(stage) == [project.day(0), project.day(1)], stage
        # no model has predicted yet
        assert stage == "reflection_log" or len(files.read_frame(stage, project.day(1))), stage


def test_a_run_beats_for_the_project_its_definitions_were_made_for(project: Any) -> None:
    assert project.beat == {"collection"}


def test_reward_model_is_fitted_with_frames_in_an_object_store(
    project: Any,
) -> None:
    project.run("learning", config={"ops": {"calibration": {"config": {"min_pairs": 10}}}})
    model = project.files.read_record("reward_model", ModelVersion)
    assert project.files.read_record("calibration", CalibrationReport).reward_model == model.label


def test_a_store_that_refuses_ends_the_run_with_cause_and_cure(project: Any, s3: S3) -> None:
    from moto.core import set_initial_no_auth_action_count

    result = set_initial_no_auth_action_count(0)(project.run)("feedback", project.day(1), ok=False)
    said = project.errors(result)
    assert "The store refuses the credentials" in said
    assert s3.url("two/days") in said
