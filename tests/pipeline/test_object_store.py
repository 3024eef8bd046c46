"""The loop with its frames in an object store: every process that makes stages writes there, and
nothing lies below the home.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.records import CalibrationReport, ModelVersion
from tests.s3 import S3, local_s3

COLLECTION = ("prompts", "completions", "comparisons")
FEEDBACK = ("votes", "reflection_log", "drift_report")
N = 12  # prompts of a day


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with local_s3() as server:
        yield server


@pytest.fixture(scope="module")
def project(s3: S3, make_project: Callable[..., Any]) -> Any:
    """Two days whose frames are in the store."""
    project = make_project(
        persistent=True, completion_backend="template", frames_url=s3.url("two/days")
    )
    for day in (project.day(0), project.day(1)):
        project.collect(day, n=N)
        project.vote(day)
    project.run("feedback", project.day(0), project.day(1))
    return project


def test_object_store_holds_every_stage(project: Any, s3: S3) -> None:
    files = Artefacts(s3.url("two/days"))
    for stage in (*COLLECTION, *FEEDBACK):
        assert files.days(stage) == [project.day(0), project.day(1)], stage
        # no model has predicted yet
        assert stage == "reflection_log" or len(files.read_frame(stage, project.day(1))), stage


def test_reward_model_is_fitted_with_frames_in_an_object_store(
    project: Any,
) -> None:
    project.run("learning", config={"ops": {"calibration": {"config": {"min_pairs": 10}}}})
    model = project.files.read_record("reward_model", ModelVersion)
    assert project.files.read_record("calibration", CalibrationReport).reward_model == model.label


def test_refusing_object_store_is_named_with_the_cure(project: Any, s3: S3) -> None:
    from moto.core import set_initial_no_auth_action_count

    result = set_initial_no_auth_action_count(0)(project.run)("feedback", project.day(1), ok=False)
    message = project.errors(result)
    assert "takes the credentials" in message
    assert s3.url("two/days") in message
