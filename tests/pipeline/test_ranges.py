"""Ranges of days: one run for all of them, the same frames as day by day, days without data empty,
other days untouched.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.frames import SCHEMAS
from rlhf_pipeline.records import NewVote

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


def read_write_times(project: Any) -> dict[str, int]:
    folder = Path(project.settings.frames)
    return {
        str(p.relative_to(folder).with_suffix("")): p.stat().st_mtime_ns
        for p in folder.rglob("*.parquet")
    }


def test_week_takes_one_collection_run_and_one_feedback_run(
    week: Any,
) -> None:
    runs = [run for run in week.instance.get_runs() if run.job_name in ("collection", "feedback")]
    assert sorted(run.job_name for run in runs) == ["collection", "feedback"]
    for stage in (*GENERATE, *FEEDBACK):
        assert week.files.days(stage) == [week.day(i) for i in range(3 + N_DAYS)]


def test_every_day_of_the_range_counts_as_made(week: Any) -> None:
    import dagster as dg

    for stage in (*GENERATE, *FEEDBACK):
        assert week.instance.get_materialized_partitions(dg.AssetKey(stage)) == {
            week.day(3 + i) for i in range(N_DAYS)
        }


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


def test_a_range_gives_the_frames_of_day_by_day(
    week: Any, grown: Any, branch: Callable[..., Any]
) -> None:
    single = branch(grown)
    for n in range(3):
        single.run("collection", single.day(3 + n), config=SMALL)
        single.vote(single.day(3 + n))
        single.run("feedback", single.day(3 + n))
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


def test_a_range_rewrites_its_own_days_only(week: Any) -> None:
    before = read_write_times(week)
    week.run("feedback", week.day(5), week.day(8))
    after = read_write_times(week)
    assert {name for name in after if after[name] != before[name]} == {
        f"{s}/{week.day(i)}" for s in FEEDBACK for i in range(5, 9)
    }


def test_days_whose_prompts_were_never_made_are_empty_in_a_range(week: Any) -> None:
    first, last = week.day(40), week.day(47)
    config = {"ops": {"prompts": SMALL["ops"]["prompts"]}}
    week.materialise(["prompts"], week.day(40), week.day(42), config=config)
    week.materialise(["prompts"], week.day(45), week.day(47), config=config)
    week.materialise(["completions", "comparisons"], first, last)
    assert {
        i for i in range(40, 48) if week.files.read_frame("completions", week.day(i)).empty
    } == {43, 44}
    assert {
        i for i in range(40, 48) if week.files.read_frame("comparisons", week.day(i)).empty
    } == {43, 44}


def test_missing_file_in_a_range_is_named_and_can_be_remade(
    week: Any,
) -> None:
    lost = Path(week.files.path("votes", week.day(6)))
    lost.unlink()
    before = read_write_times(week)
    result = week.materialise(["reflection_log"], week.day(5), week.day(7), ok=False)
    message = week.errors(result)
    assert "MissingPartition" in message
    assert week.day(6) in message
    assert "Materialise votes for those days again" in message
    assert read_write_times(week) == before
    week.materialise(["votes"], week.day(6))
    week.materialise(["reflection_log"], week.day(5), week.day(7))
