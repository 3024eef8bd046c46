"""Days of only ties, only skips or one annotator, days made out of order, and machines in odd time
zones: no crash, no invented figure.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote

FEEDBACK = ("votes", "reflection_log", "drift_report")


@pytest.fixture(scope="module")
def collected(grown: Any, branch: Callable[..., Any]) -> Any:
    """Three days after the grown project's three, predicted by its reward model, without votes."""
    project = branch(grown)
    small = {
        "prompts": {"n": 8},
        "completions": {"max_new_tokens": 12},
        "comparisons": {"pairs_per_prompt": 3},
    }
    project.run(
        "collection",
        project.day(3),
        project.day(5),
        config={"ops": {name: {"config": op_config} for name, op_config in small.items()}},
    )
    return project


def cast(
    project: Any,
    day: str,
    choices: Sequence[Choice],
    *,
    n_annotators: int = 3,
    at: timedelta = timedelta(hours=9),
) -> None:
    """Every comparison of the day gets a vote of each annotator; choices in turn."""
    moment = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC) + at
    ids = project.files.read_frame("comparisons", day)["comparison_id"]
    votes = [
        NewVote(
            comparison_id=c,
            annotator_id=f"odd-{a}",
            annotator_kind=AnnotatorKind.SIMULATED,
            choice=choices[(n + a) % len(choices)],
            voted_at=moment,
            origin="simulation",
            idempotency_key=f"{c}-{a}-{day}",
        )
        for n, c in enumerate(ids)
        for a in range(n_annotators)
    ]
    project.store.votes.cast_many(votes)


def figures(result: Any) -> dict[str, dict[str, float]]:
    """Numbers of every materialisation, by asset."""
    return {
        event.materialization.asset_key.to_user_string(): {
            name: value.value
            for name, value in event.materialization.metadata.items()
            if isinstance(value.value, int | float)
        }
        for event in result.get_asset_materialization_events()
    }


def test_days_with_too_few_votes_have_finite_figures(
    collected: Any, branch: Callable[..., Any]
) -> None:
    project, days = branch(collected), (collected.day(3), collected.day(4))
    cast(project, days[0], [Choice.TIE, Choice.BOTH_BAD])
    cast(project, days[1], [Choice.SKIP])
    results = figures(project.run("feedback", *days))
    assert all(math.isfinite(number) for asset in results.values() for number in asset.values())
    for day in days:
        report = project.files.read_frame("drift_report", day)
        unjudged = report[report["n_current"] == 0]
        assert set(unjudged["verdict"]) == {"insufficient"}, report.to_string()
        assert "drift" not in set(report["verdict"])
    results = figures(
        project.run("learning", config={"ops": {"calibration": {"config": {"min_pairs": 20}}}})
    )
    assert not set(days) & set(project.files.read_frame("preference_pairs")["day"])
    assert all(math.isfinite(number) for asset in results.values() for number in asset.values())
    of_one_annotator(project, collected.day(5))


def of_one_annotator(project: Any, day: str) -> None:
    """They have no agreement and no ceiling."""
    cast(project, day, [Choice.A, Choice.B, Choice.B], n_annotators=1)
    results = figures(project.run("feedback", day))
    assert results["votes"]["n_annotators"] == 1
    assert not {"raw_agreement", "noise_ceiling"} & results["votes"].keys()
    pairs = figures(project.materialise(["preference_pairs"]))["preference_pairs"]
    assert day in set(project.files.read_frame("preference_pairs")["day"])
    assert all(math.isfinite(number) for number in pairs.values())
    assert all(math.isfinite(number) for asset in results.values() for number in asset.values())
