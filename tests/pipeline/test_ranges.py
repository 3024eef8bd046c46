"""Ranges of days: one run for all of them, the same frames as day by day, days without data empty,
other days untouched.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.frames import SCHEMAS

GENERATE = ("prompts", "completions", "comparisons")
FEEDBACK = ("votes", "preference_pairs", "reflection_log", "drift_report")
N_DAYS = 14
VOTED = (0, 1, 2, 5, 9, 10)  # days of the fortnight on which people voted
SMALL = {
    "ops": {
        "prompts": {"config": {"n": 6}},
        "completions": {"config": {"max_new_tokens": 12}},
        "comparisons": {"config": {"pairs_per_prompt": 2, "repeat_share": 0.2}},
    }
}


@pytest.fixture(scope="module")
def fortnight(grown: Any, branch: Callable[..., Any]) -> Any:
    """Two weeks after the grown project's three: collected in one run, voted on but for the gaps,
    reported in one run.
    """
    project = branch(grown)
    days = [project.day(3 + i) for i in range(N_DAYS)]
    project.run("collection", days[0], days[-1], config=SMALL)
    for n in VOTED:
        project.vote(days[n])
    project.run("feedback", days[0], days[-1])
    return project


def written(project: Any) -> dict[str, int]:
    folder = Path(project.settings.frames)
    return {
        str(p.relative_to(folder).with_suffix("")): p.stat().st_mtime_ns
        for p in folder.rglob("*.parquet")
    }


def test_two_weeks_are_one_run_from_prompts_to_comparisons_and_one_from_votes_to_report(
    fortnight: Any,
) -> None:
    runs = [
        run for run in fortnight.instance.get_runs() if run.job_name in ("collection", "feedback")
    ]
    assert sorted(run.job_name for run in runs) == ["collection", "feedback"]
    for stage in (*GENERATE, *FEEDBACK):
        assert fortnight.files.days(stage) == [fortnight.day(i) for i in range(3 + N_DAYS)]


def test_every_day_of_the_range_counts_as_made(fortnight: Any) -> None:
    import dagster as dg

    for stage in (*GENERATE, *FEEDBACK):
        assert fortnight.instance.get_materialized_partitions(dg.AssetKey(stage)) == {
            fortnight.day(3 + i) for i in range(N_DAYS)
        }


def test_days_without_votes_are_empty_and_reported_as_insufficient(fortnight: Any) -> None:
    for n in range(N_DAYS):
        day = fortnight.day(3 + n)
        votes, pairs, report = (
            fortnight.files.read_frame(s, day)
            for s in ("votes", "preference_pairs", "drift_report")
        )
        assert votes.empty is pairs.empty is (n not in VOTED)
        assert list(votes.columns) == list(SCHEMAS["votes"].columns)
        log = fortnight.files.read_frame("reflection_log", day)
        assert log["vote_id"].isna().all() == (n not in VOTED)
        assert len(log) > 0  # predictions wait for their votes
        if n not in VOTED:
            assert set(report["verdict"]) == {"insufficient"}


def test_a_range_gives_the_frames_of_day_by_day(
    fortnight: Any, grown: Any, branch: Callable[..., Any]
) -> None:
    single = branch(grown)
    for n in range(3):
        single.run("collection", single.day(3 + n), config=SMALL)
        single.vote(single.day(3 + n))
        single.run("feedback", single.day(3 + n))
        for stage in (*GENERATE, *FEEDBACK):
            ours, theirs = (p.files.read_frame(stage, p.day(3 + n)) for p in (single, fortnight))
            moving = [c for c in ("latency_ms", "received_at") if c in ours.columns]
            pd.testing.assert_frame_equal(
                ours.drop(columns=moving), theirs.drop(columns=moving), obj=f"{stage} of day {n}"
            )


def test_a_range_rewrites_its_own_days_only(fortnight: Any) -> None:
    before = written(fortnight)
    fortnight.run("feedback", fortnight.day(10), fortnight.day(14))
    after = written(fortnight)
    assert {name for name in after if after[name] != before[name]} == {
        f"{s}/{fortnight.day(i)}" for s in FEEDBACK for i in range(10, 15)
    }


def test_days_whose_prompts_were_never_made_are_empty_in_a_range(fortnight: Any) -> None:
    first, last = fortnight.day(40), fortnight.day(47)
    config = {"ops": {"prompts": SMALL["ops"]["prompts"]}}
    fortnight.materialise(["prompts"], fortnight.day(40), fortnight.day(42), config=config)
    fortnight.materialise(["prompts"], fortnight.day(45), fortnight.day(47), config=config)
    fortnight.materialise(["completions", "comparisons"], first, last)
    assert {
        i
        for i in range(40, 48)
        if fortnight.files.read_frame("completions", fortnight.day(i)).empty
    } == {43, 44}
    assert {
        i
        for i in range(40, 48)
        if fortnight.files.read_frame("comparisons", fortnight.day(i)).empty
    } == {43, 44}


def test_a_lost_file_inside_a_range_is_named_and_making_the_day_again_mends_it(
    fortnight: Any,
) -> None:
    lost = Path(fortnight.files.path("votes", fortnight.day(12)))
    lost.unlink()
    before = written(fortnight)
    result = fortnight.materialise(
        ["preference_pairs"], fortnight.day(11), fortnight.day(13), ok=False
    )
    message = fortnight.errors(result)
    assert "MissingPartition" in message
    assert fortnight.day(12) in message
    assert "Materialise votes for those days again" in message
    assert written(fortnight) == before
    fortnight.materialise(["votes"], fortnight.day(12))
    fortnight.materialise(["preference_pairs"], fortnight.day(11), fortnight.day(13))
