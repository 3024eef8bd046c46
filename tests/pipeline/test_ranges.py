"""Ranges of days: one run for all of them, the same frames as day by day, days without data empty,
other days untouched.
"""

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.core.frames import SCHEMAS
from rlhf_pipeline.core.records import NewVote

GENERATE = ("prompts", "completions", "comparisons")
FEEDBACK = ("votes", "reflection_log", "drift_report")
N_DAYS = 7
VOTED = (0, 1, 2, 5)  # days of the week on which people voted
SMALL = {
    "ops": {
        "prompts": {"config": {"n": 6}},
        "completions": {"config": {"max_new_tokens": 12}},
        "comparisons": {"config": {"pairs_per_prompt": 2, "repeat_share": 0.2}},
    }
}


@pytest.fixture(scope="module")
def week(grown: Any, branch: Callable[..., Any]) -> Any:
    """A week after the grown project's three: collected in one run, voted on but for the gaps,
    reported in one run.
    """
    project = branch(grown)
    days = [project.day(3 + i) for i in range(N_DAYS)]
    project.run("collection", days[0], days[-1], config=SMALL)
    for n in VOTED:
        project.vote(days[n])
    project.run("feedback", days[0], days[-1])
    return project


def test_week_takes_one_collection_run_and_one_feedback_run(
    week: Any,
) -> None:
    runs = [run for run in week.instance.get_runs() if run.job_name in ("collection", "feedback")]
    assert sorted(run.job_name for run in runs) == ["collection", "feedback"]
    for stage in (*GENERATE, *FEEDBACK):
        assert week.files.days(stage) == [week.day(i) for i in range(3 + N_DAYS)]


def test_days_without_votes_are_empty_and_reported_as_insufficient(week: Any) -> None:
    for n in range(N_DAYS):
        day = week.day(3 + n)
        votes, report = (week.files.read_frame(s, day) for s in ("votes", "drift_report"))
        assert votes.empty is (n not in VOTED)
        assert list(votes.columns) == list(SCHEMAS["votes"].columns)
        log = week.files.read_frame("reflection_log", day)
        assert log["vote_id"].isna().all() == (n not in VOTED)
        assert len(log) > 0  # predictions wait for their votes
        if n not in VOTED:
            assert set(report["verdict"]) == {"insufficient"}


def drop_causes(report: pd.DataFrame) -> pd.DataFrame:
    def drop(text: str) -> str:
        evidence = json.loads(text)
        for event in evidence.get("events", []):
            for name in ("causes", "later_causes"):
                event.pop(name, None)
        return json.dumps(evidence)

    return report.assign(evidence=report["evidence"].map(drop))


def test_range_gives_the_same_frames_as_single_days_in_any_order(
    week: Any, grown: Any, branch: Callable[..., Any]
) -> None:
    single = branch(grown)
    for n in range(3):
        single.run("collection", single.day(3 + n), config=SMALL)
        single.vote(single.day(3 + n))
    for n in (2, 0, 1):
        single.run("feedback", single.day(3 + n))
    for n in range(3):
        for stage in (*GENERATE, *FEEDBACK):
            ours, theirs = (p.files.read_frame(stage, p.day(3 + n)) for p in (single, week))
            moving = [c for c in ("latency_ms", "received_at") if c in ours.columns]
            if stage == "drift_report":  # a range finds the causes of a change in all its votes
                ours, theirs = (drop_causes(frame) for frame in (ours, theirs))
            pd.testing.assert_frame_equal(
                ours.drop(columns=moving), theirs.drop(columns=moving), obj=f"{stage} of day {n}"
            )


def test_vote_revised_on_a_later_day_stays_in_its_own_day(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    first, later = project.day(1), project.day(2)
    changed = project.files.read_frame("votes", first).iloc[0]
    project.store.votes.cast(
        NewVote(
            comparison_id=changed["comparison_id"],
            annotator_id=changed["annotator_id"],
            annotator_kind=changed["annotator_kind"],
            choice="tie",
            voted_at=project.files.read_frame("votes", later)["voted_at"].iloc[0],
            origin="simulation",
            idempotency_key="changed on a later day",
            supersedes=changed["vote_id"],
        )
    )
    project.materialise(["votes", "reflection_log"], first, later)
    together = project.files.read_frame("reflection_log", first)
    assert changed["vote_id"] in set(project.files.read_frame("votes", first)["vote_id"])
    project.materialise(["votes", "reflection_log"], first)
    pd.testing.assert_frame_equal(project.files.read_frame("reflection_log", first), together)
