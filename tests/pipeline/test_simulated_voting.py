"""The simulated pool votes on a day again: what it cast before is kept, whatever it would say
now.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.application.resources.simulation import simulated_votes
from rlhf_pipeline.feedback.votes.counting import counting_votes

NAMES = ("vote_id", "seq", "comparison_id", "annotator_id", "choice", "strength", "is_swapped")


@pytest.fixture(scope="module")
def collected(make_project: Callable[..., Any]) -> Any:
    project = make_project(completion_backend="template")
    project.collect(project.day(0), n=3)
    return project


def cast(project: Any) -> pd.DataFrame:
    return counting_votes(project.store.votes.log([project.day(0)]))[list(NAMES)]


def test_earlier_simulated_votes_are_kept(collected: Any, branch: Callable[..., Any]) -> None:
    project = branch(collected)
    day = project.day(0)
    comparisons = project.store.comparisons.for_days([day])
    whole = simulated_votes(project.settings)(
        comparisons, dict.fromkeys(comparisons["prompt_id"]), day
    )
    known = [vote.model_copy(update={"is_swapped": None}) for vote in whole[: len(whole) // 2]]
    project.store.votes.cast_many(known)
    before = cast(project)
    project.vote(day)
    after = cast(project)
    pd.testing.assert_frame_equal(after.iloc[: len(known)], before)
    assert before["is_swapped"].isna().all()
    assert len(after) == len(whole)
    assert not after["is_swapped"].iloc[len(known) :].isna().any()
    project.vote(day)
    pd.testing.assert_frame_equal(cast(project), after)
