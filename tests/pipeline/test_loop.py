"""Days of the loop in one process: what each stage leaves, what a late vote touches, what the votes
sensor asks for.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from dagster._daemon.sensor import fetch_existing_runs

from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.core.errors import PipelineError, StoreError
from rlhf_pipeline.core.frames import SCHEMAS
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    CalibrationReport,
    Choice,
    ModelVersion,
    NewVote,
)
from tests.unclear_change import unclear_rise

DAILY = (
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
)
FEEDBACK = ("votes", "reflection_log", "drift_report")
LEARNING = ("preference_pairs", "annotator_model", "reward_model", "calibration")


def cast(
    project: Any,
    comparison_ids: Sequence[str],
    day: str,
    *,
    by: str = "late",
    choice: Choice = Choice.A,
    times: int = 1,
) -> None:
    """Votes of `times` annotators on each comparison, on `day`."""
    noon = datetime.combine(date.fromisoformat(day), time(12), UTC)
    project.store.votes.cast_many(
        [
            NewVote(
                comparison_id=c,
                annotator_id=f"{by}-{i}",
                annotator_kind=AnnotatorKind.SIMULATED,
                choice=choice,
                strength=2,
                voted_at=noon + timedelta(seconds=n),
                origin="simulation",
                idempotency_key=f"{by}-{i}:{c}:{day}",
            )
            for n, c in enumerate(comparison_ids)
            for i in range(times)
        ]
    )


def contents(project: Any) -> dict[Path, tuple[int, bytes]]:
    """When each frame was written, and its bytes."""
    folder = Path(project.settings.frames)
    return {
        p.relative_to(folder): (p.stat().st_mtime_ns, p.read_bytes())
        for p in sorted(folder.rglob("*.parquet"))
    }


def rewritten(before: dict[Path, Any], after: dict[Path, Any]) -> set[str]:
    return {str(path.with_suffix("")) for path in after if before.get(path) != after[path]}


def drain(project: Any) -> None:
    """Tick the votes sensor until it has nothing new to ask for, and run what it asks."""
    while requests := project.tick("votes").run_requests:
        for request in requests:
            project.run_request(request, "votes")


def test_every_stage_leaves_a_typed_frame_for_every_day(grown: Any) -> None:
    for stage in DAILY:
        assert grown.files.days(stage) == [grown.day(i) for i in range(3)]
        for day in grown.files.days(stage):
            frame = grown.files.read_frame(stage, day)
            assert list(frame.columns) == list(SCHEMAS[stage].columns)
            assert set(frame["day"]) == {day} or (stage == "reflection_log" and frame.empty)
    assert len(grown.files.read_frame("prompts", grown.day(0))) == 30
    assert grown.files.read_record("reward_model", ModelVersion).label == grown.judge
    assert grown.files.read_record("calibration", CalibrationReport).reward_model == grown.judge


def test_materialisations_have_a_headline_and_link_to_their_mlflow_run(grown: Any) -> None:
    runs = {run.run_id: run for run in grown.registry.latest_runs(limit=100)}
    for stage in (*DAILY, *LEARNING):
        event = grown.instance.get_latest_materialization_event(dg.AssetKey(stage))
        fields = event.asset_materialization.metadata
        assert fields["headline"].value, stage
        run = runs[fields["mlflow_run"].value.partition("?")[0].rpartition("/")[2]]
        assert run.tags["dagster.run_id"] == event.run_id
        assert run.tags["dagster.asset"] == stage
        assert run.tags["dagster.partition"] == (event.asset_materialization.partition or "-")
        assert run.tags["data_hash"] == fields["data_hash"].value
        assert run.tags["mlflow.source.git.commit"]
        if stage in DAILY:
            frame = grown.files.read_frame(stage, event.asset_materialization.partition)
            assert fields["dagster/row_count"].value == len(frame) > 0
            assert fields["preview"].value.startswith("|")
    pictures = ("annotators", "loss_curve", "reliability_diagram")
    for stage, figure in zip(LEARNING[1:], pictures, strict=True):
        event = grown.instance.get_latest_materialization_event(dg.AssetKey(stage))
        assert "data:image/png;base64," in event.asset_materialization.metadata[figure].value


def test_predictions_are_written_before_their_votes(grown: Any) -> None:
    rows = grown.files.read_frame("reflection_log", grown.day(2)).dropna(subset=["vote_id"])
    assert len(rows) > 300
    assert (rows["predicted_at"] < rows["voted_at"]).all()
    votes = grown.files.read_frame("votes", grown.day(2)).set_index("vote_id")
    assert (
        rows["predicted_at"].to_numpy() < votes.loc[rows["vote_id"], "received_at"].to_numpy()
    ).all()


def test_reflection_log_has_every_prediction_and_vote(grown: Any) -> None:
    day = grown.day(2)
    predictions, votes, rows = (
        grown.store.predictions.for_days([day]),
        *(grown.files.read_frame(s, day) for s in ("votes", "reflection_log")),
    )
    assert len(predictions) == len(grown.files.read_frame("comparisons", day)) > 0
    assert set(rows["comparison_id"]) == set(predictions["comparison_id"])
    assert sorted(rows["vote_id"].dropna()) == sorted(votes["vote_id"])
    for column in (
        "reward_model",
        "calibrator",
        "data_hash",
        "features_hash",
        "p_raw",
        "p_calibrated",
    ):
        assert rows[column].notna().all(), column
    assert set(rows["reward_model"]) == {grown.judge}


def test_models_are_judged_on_unseen_votes(grown: Any) -> None:
    rows = grown.files.read_frame("reflection_log", grown.day(2)).dropna(subset=["seq"])
    assert rows["seq"].min() > grown.registry.get("reward_model", "champion").data_seq


def test_frozen_evaluation_prompts_are_never_drawn(grown: Any) -> None:
    from rlhf_pipeline.improve.evaluation import frozen_prompt_ids, frozen_prompts

    prompts = grown.files.read_days("prompts", grown.files.days("prompts"))
    assert not set(prompts["prompt_id"]) & frozen_prompt_ids(frozen_prompts())


def test_the_same_snapshot_gives_byte_equal_frames(grown: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(grown), grown.day(2)
    seq = int(project.store.votes.log([day])["seq"].max())
    before = {stage: Path(project.files.path(stage, day)).read_bytes() for stage in FEEDBACK}
    ids = project.files.read_frame("comparisons", day)["comparison_id"].tolist()
    cast(project, ids[:40], day, times=3)
    read = {"config": {"up_to_seq": seq}}
    project.run("feedback", day, config={"ops": {"votes": read, "drift_report": read}})
    assert {
        stage: Path(project.files.path(stage, day)).read_bytes() for stage in FEEDBACK
    } == before
    project.run("feedback", day)
    assert (
        len(project.files.read_frame("votes", day))
        == len(grown.files.read_frame("votes", day)) + 120
    )


def test_recollected_day_is_unchanged(grown: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(grown), grown.day(1)
    n = project.store.comparisons.count()
    before = {
        s: project.files.read_frame(s, day) for s in ("prompts", "completions", "comparisons")
    }
    project.collect(day)
    for stage, frame in before.items():
        pd.testing.assert_frame_equal(project.files.read_frame(stage, day), frame)
    assert project.store.comparisons.count() == n


def test_recollection_keeps_published_comparisons(grown: Any, branch: Callable[..., Any]) -> None:
    project, day = branch(grown), grown.day(1)
    n, before = project.store.comparisons.count(), project.files.read_frame("comparisons", day)
    project.collect(day, comparisons={"seed": 99, "pairs_per_prompt": 2})
    assert project.store.comparisons.count() == n
    after = project.files.read_frame("comparisons", day)
    assert set(after["comparison_id"]) == set(before["comparison_id"])


def test_late_votes_change_only_their_day(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    drain(project)
    ids = project.files.read_frame("comparisons", project.day(0))["comparison_id"].tolist()
    before = contents(project)
    cast(project, ids[:30], project.day(0), times=2)
    data = project.tick("votes")
    assert [r.partition_key for r in data.run_requests] == [project.day(0)]
    assert [e.partition for e in data.asset_events] == [project.day(0)]
    project.run_request(data.run_requests[0], "votes")
    changed = rewritten(before, contents(project))
    assert changed == {f"{stage}/{project.day(0)}" for stage in FEEDBACK}
    assert (
        len(project.files.read_frame("votes", project.day(0)))
        == len(grown.files.read_frame("votes", project.day(0))) + 60
    )


def test_vote_is_logged_on_its_own_day(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    published = grown.day(2)
    later = grown.day(3)
    project.materialise(["preference_pairs"])
    pairs = project.files.read_frame("preference_pairs")
    n_pairs, pairs = len(pairs), pairs[pairs["day"] == published]
    unanimous = pairs[
        (pairs["chosen_side"] == "a") & (pairs["n_votes"] == 3) & (pairs["agreement"] == 1)
    ]
    turned, unchanged = unanimous["comparison_id"].iloc[0], unanimous["comparison_id"].iloc[1]
    before = contents(project)
    cast(project, [turned], later, choice=Choice.B, times=5)
    cast(project, [unchanged], later, choice=Choice.A, times=1)
    project.run("feedback", later)
    assert rewritten(before, contents(project)) == {f"{stage}/{later}" for stage in FEEDBACK}
    project.materialise(["preference_pairs"])
    later_pairs = project.files.read_frame("preference_pairs").set_index("comparison_id")
    assert len(later_pairs) == n_pairs
    assert later_pairs.loc[turned, ["n_votes", "chosen_side"]].tolist() == [8, "b"]
    assert later_pairs.loc[turned, "agreement"] == pytest.approx(5 / 8)
    assert later_pairs.loc[unchanged, ["n_votes", "chosen_side"]].tolist() == [4, "a"]
    rows = project.files.read_frame("reflection_log", later)
    assert sorted(rows["comparison_id"]) == sorted([turned] * 5 + [unchanged])
    assert set(rows["day"]) == {later}
    assert rows["vote_id"].notna().all()
    assert (rows["predicted_at"] < rows["voted_at"]).all()


def test_day_with_late_votes_keeps_its_predictions(grown: Any, branch: Callable[..., Any]) -> None:
    """A vote of tomorrow on today's comparison must not take the prediction out of today's log."""
    project = branch(grown)
    published = grown.day(2)
    later = grown.day(3)
    voted = project.files.read_frame("comparisons", published)["comparison_id"].iloc[0]
    cast(project, [voted], later)
    project.run("feedback", later)
    project.run("feedback", published)
    pd.testing.assert_frame_equal(
        project.files.read_frame("reflection_log", published),
        grown.files.read_frame("reflection_log", published),
    )


def test_fifty_votes_or_quiet_minutes_make_a_day_due(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    drain(project)
    ids = project.files.read_frame("comparisons", project.day(1))["comparison_id"].tolist()
    cast(project, ids[:49], project.day(1))
    data = project.tick("votes")
    assert not data.run_requests
    assert [e.partition for e in data.asset_events] == [project.day(1)]
    assert not project.tick("votes").asset_events  # reported once
    cast(project, ids[49:50], project.day(1))
    requests = project.tick("votes").run_requests
    assert [r.partition_key for r in requests] == [project.day(1)]
    assert requests[0].run_config == {
        "ops": {"votes": {"config": {"up_to_seq": project.store.votes.max_seq()}}}
    }
    assert not project.tick("votes").run_requests
    impatient = branch(project, quiet_minutes=0)
    impatient.cursors = dict(project.cursors)
    cast(impatient, ids[50:51], impatient.day(1))
    assert [r.partition_key for r in impatient.tick("votes").run_requests] == [project.day(1)]


def test_reset_cursor_requests_no_finished_run(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    drain(project)  # days 0 to 2 in one run
    ids = project.files.read_frame("comparisons", project.day(1))["comparison_id"].tolist()
    cast(project, ids[:50], project.day(1))
    drain(project)  # day 1 alone
    project.cursors.clear()
    assert not project.tick("votes").run_requests
    cast(project, ids[50:100], project.day(1))
    project.cursors.clear()
    assert [r.partition_key for r in project.tick("votes").run_requests] == [project.day(1)]


def test_import_requests_one_run_per_range_of_days(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    drain(project)
    ids = project.files.read_frame("comparisons", project.day(0))["comparison_id"].tolist()[:50]
    days = [project.day(i) for i in (*range(4, 24), *range(30, 35), 40)]
    for n, day in enumerate(days):
        cast(project, ids, day, by=f"imported-{n}")
    requests = project.tick("votes").run_requests
    spans = [
        (
            r.tags.get("dagster/asset_partition_range_start"),
            r.tags.get("dagster/asset_partition_range_end"),
        )
        for r in requests
    ]
    assert spans == [(days[0], days[19]), (days[20], days[24]), (None, None)]
    assert requests[2].partition_key == days[25]
    assert len({r.run_key for r in requests}) == 3
    assert not project.tick("votes").run_requests


@pytest.mark.parametrize("n_days", [1, 2])
def test_failed_command_run_is_requested_again_by_a_daemon(
    grown: Any, branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, n_days: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("The database is gone.")

    project = branch(grown)
    drain(project)
    ids = project.files.read_frame("comparisons", project.day(0))["comparison_id"].tolist()[:50]
    for day in range(4, 4 + n_days):
        cast(project, ids, project.day(day), by=f"day-{day}")
    (request,) = project.tick("votes", keep_cursor=False).run_requests
    runner = Runner(project.settings, project.defs, project.instance, project.store)
    monkeypatch.setattr(type(project.store.votes), "log", fail)
    with pytest.raises(PipelineError, match="The database is gone"):
        runner.run_request(request, "votes", project.day(4))
    assert project.tick("votes").run_requests == [request]
    daemons = SimpleNamespace(name="votes")
    skipped = fetch_existing_runs(project.instance, daemons, [request])  # type: ignore[arg-type]
    assert skipped == {}


def test_learning_sensor_requests_once_per_interval(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown, min_new_pairs=100)
    assert not project.tick("learning").run_requests  # 5000 are needed for a refit
    eager = branch(grown, refit_after_pairs=100)
    with_a_change = branch(grown, refit_after_pairs=100)
    store = with_a_change.store
    store.events.add([unclear_rise(store.votes.max_seq(), with_a_change.judge)])
    assert "cause not clear yet" in with_a_change.tick("learning").skip_message
    requests = eager.tick("learning").run_requests
    assert len(requests) == 1
    eager.run_request(
        requests[0], "learning", config={"ops": {"calibration": {"config": {"min_pairs": 20}}}}
    )
    assert not eager.tick("learning").run_requests
    history = eager.registry.list_versions("reward_model")
    assert len(history) == 2
    assert history[1].parent == history[0].label  # warm start from the champion
    eager.champions.promote("reward_model", history[0], reason="the first was better", actor="test")
    eager.run("recalibration")
    report = eager.files.read_record("calibration", CalibrationReport)
    assert report.reward_model == history[0].label == eager.judge, "not the latest fitted"
