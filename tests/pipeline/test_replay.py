"""The replay of an import: who predicted what knowing what, when a change is found, and that no
kill and no repetition shows.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.driver.replay import (
    describe_decisions,
    describe_unwatched_days,
    replay_days,
)
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.driver.session import fail_dead_runs
from rlhf_pipeline.application.sensors.replay import Replay, end_of_day
from rlhf_pipeline.application.sensors.runs import STEP_TAG
from rlhf_pipeline.feedback.votes import judged_comparison_ids
from rlhf_pipeline.feedback.votes.counting import counting_votes
from tests.pipeline import imported

N = 80  # comparisons of a day
FEEDBACK = ("votes", "reflection_log", "drift_report")
NEVER = 1_000_000


class Killed(BaseException):
    """The end of the process at this point, as far as files and databases can tell."""


class FragileRunner(Runner):
    """Runs that may be killed before or after the n-th of them, or see one fail."""

    killed_before = killed_after = failing = 0
    n_runs = 0

    def run(self, job: str, day: str, **arguments: Any) -> None:
        self.n_runs += 1
        if self.n_runs == self.killed_before:
            raise Killed
        if self.n_runs == self.failing:
            arguments["run_config"]["ops"]["votes"] = {"config": {"up_to_seq": -5}}
        super().run(job, day, **arguments)
        if self.n_runs == self.killed_after:
            raise Killed


def runner_of(project: Any, **moments: int) -> Runner:
    runner = FragileRunner(project.settings, project.defs, project.instance, project.store)
    for name, number in moments.items():
        setattr(runner, name, number)
    fail_dead_runs(project.instance, project.store, timedelta(seconds=60))
    return runner


def replay(project: Any, **moments: int) -> list[str]:
    """The days that one call of `rlhf replay` goes through."""
    return list(replay_days(runner_of(project, **moments)))


def small_import(project: Any, n_days: int, *, n: int = 12, first: int = 0) -> None:
    """Days of a few votes each: enough to report, too few to learn from."""
    cast = []
    for d in range(first, first + n_days):
        frame = imported.comparisons(n, name=f"d{d}")
        imported.publish(project.store, frame)
        cast += imported.votes(frame, project.day(d), seed=d)
    imported.import_votes(project.store, cast)


def runs_by_step(project: Any) -> dict[str, int]:
    """How many runs each step took, by `<day>:<seq>:<step>`."""
    runs = project.instance.get_runs(dg.RunsFilter())
    return dict(
        Counter(
            run.tags[STEP_TAG].partition(":")[2].partition(":")[2]
            for run in runs
            if STEP_TAG in run.tags
        )
    )


def made(project: Any) -> dict[str, Any]:
    """What is left of a replay, without what differs from run to run."""
    store, files = project.store, project.files
    return {
        "waiting": store.replays.pending_days(),
        "days": {stage: files.days(stage) for stage in FEEDBACK},
        "rows": {
            stage: [len(files.read_frame(stage, day)) for day in files.days(stage)]
            for stage in FEEDBACK
        },
        "predictions": store.predictions.count(),
        "models": [v.data_seq for v in project.registry.list_versions("reward_model")],
        "decisions": [(d.action, d.state, d.decided_at) for d in store.decisions.all()],
    }


@pytest.fixture(scope="module")
def history(make_project: Callable[..., Any]) -> Any:
    """Four replayed days: one to learn from, one predicted well, one on which taste turns round,
    one after it. Read only.

    On the second day some comparisons of the first are judged again by others; on the last some
    votes have no time.
    """
    project = make_project(completion_backend="template", annotators="human", min_new_pairs=N)
    frames = [imported.comparisons(N, name=f"d{d}") for d in range(4)]
    tastes = (imported.GENTLE, imported.GENTLE, imported.HARSH, imported.HARSH)
    cast = []
    for d, (frame, taste) in enumerate(zip(frames, tastes, strict=True)):
        imported.publish(project.store, frame)
        cast += imported.votes(frame, project.day(d), likes=taste, seed=d)
    cast += imported.votes(
        frames[1].iloc[:20], project.day(2), likes=imported.HARSH, annotators=2, seed=9, by="again"
    )
    undated = imported.comparisons(6, name="undated")
    imported.publish(project.store, undated)
    cast += [
        v.model_copy(update={"voted_at": None})
        for v in imported.votes(undated, project.day(0), seed=8)
    ]
    imported.import_votes(project.store, cast)
    assert replay(project) == [project.day(d) for d in range(4)]
    return project


def test_days_before_the_first_model_are_named_as_unwatched(
    history: Any, make_project: Callable[..., Any]
) -> None:
    days = [history.day(d) for d in range(4)]
    note = describe_unwatched_days(history.settings, history.store, days)
    assert note.startswith(f"Until {days[0]} (1 of 4 days) no reward model predicted the votes")
    assert f"needs {N} voted comparisons" in note
    assert describe_unwatched_days(history.settings, history.store, days[1:]) == ""
    project = make_project(annotators="human", min_new_pairs=N)
    small_import(project, 1)
    assert "12 of 80 voted comparisons" in describe_unwatched_days(
        project.settings, project.store, [project.day(0)]
    )


def seqs(project: Any, d: int) -> int:
    return int(project.store.votes.last_imported_seq(project.day(d)))


def test_predictions_come_from_models_without_its_votes(history: Any) -> None:
    data_seq = {v.label: v.data_seq for v in history.registry.list_versions("reward_model")}
    predictions = history.store.predictions.for_days([history.day(d) for d in range(4)])
    assert set(predictions["reward_model"]) >= {"demo.reward_model@1"}
    first_vote = (
        counting_votes(
            history.store.votes.log(comparison_ids=predictions["comparison_id"].tolist())
        )
        .groupby("comparison_id")["seq"]
        .min()
    )
    assert len(predictions) == 3 * N
    for row in predictions.to_dict("records"):
        assert data_seq[row["reward_model"]] < first_vote[row["comparison_id"]]
    assert set(history.files.read_frame("reflection_log", history.day(0))["vote_id"]) == set()


def test_models_learn_only_from_earlier_votes(history: Any) -> None:
    learnt = [v.data_seq for v in history.registry.list_versions("reward_model")]
    ends = [seqs(history, d) for d in range(4)]
    assert learnt[0] == ends[0]
    assert learnt[1] <= ends[2]
    assert history.store.votes.max_seq() > ends[3]  # undated votes, cast last, are in none of them


def test_files_of_later_days_do_not_change_the_fitted_model(
    history: Any, branch: Callable[..., Any]
) -> None:
    """The leak that must be impossible: all days' pairs lie there, those beyond the seq are as good
    as not.
    """
    project = branch(history)
    project.materialise(["preference_pairs"])
    all_pairs = project.files.read_frame("preference_pairs")
    assert all_pairs["max_seq"].max() > seqs(project, 0)
    first = project.registry.list_versions("reward_model")[0]
    limit = {"up_to_seq": seqs(project, 0)}
    project.run(
        "learning",
        config={
            "ops": {
                stage: {"config": limit}
                for stage in ("preference_pairs", "annotator_model", "reward_model", "calibration")
            }
        },
    )
    again = project.registry.list_versions("reward_model")[-1]
    assert again.version > first.version
    assert (again.data_hash, again.data_seq) == (first.data_hash, first.data_seq)
    pairs = project.files.read_frame("preference_pairs")
    assert pairs["max_seq"].max() == first.data_seq
    assert pairs["day"].max() == project.day(0)
    log = project.files.read_days("votes", project.files.days("votes"))
    known = counting_votes(log[log["seq"] <= limit["up_to_seq"]])
    labels = project.files.read_frame("annotator_model")
    frame = project.store.comparisons.with_ids(judged_comparison_ids(known))
    assert labels["max_seq"].max() <= limit["up_to_seq"]
    is_train = known["comparison_id"].isin(frame.loc[frame["split"] != "test", "comparison_id"])
    assert 0 < is_train.sum() < len(known)
    assert labels["n_votes"].sum() == (known.loc[is_train, "choice"] != "skip").sum()


def test_change_of_taste_is_found_on_its_day_and_only_refits(history: Any) -> None:
    verdicts = []
    for d in range(4):
        report = history.files.read_frame("drift_report", history.day(d))
        verdicts.append(report.loc[report["space"] == "overall", "verdict"].iloc[0])
    assert verdicts[0] == "insufficient"
    assert verdicts[1] != "drift"
    assert verdicts[2] == "drift"
    fired = next(d for d in history.store.decisions.all() if d.action == "fire")
    assert fired.decided_at == end_of_day(history.day(2))
    assert any("fire (succeeded)" in s for s in describe_decisions(history.store, history.day(2)))
    assert describe_decisions(history.store, history.day(0)) == []
    assert fired.state == "succeeded"
    assert seqs(history, 1) - 20 < fired.change_seq < seqs(history, 2)
    refit = history.instance.get_run_by_id(fired.run_id)
    assert refit.job_name == "learning"
    for stage in ("annotator_model", "reward_model"):
        assert refit.run_config["ops"][stage]["config"] == {"up_to_seq": seqs(history, 2)}
    assert [change.change_seq for change in history.store.taste_changes.all()] == [fired.change_seq]
    assert "retraining" not in {run.job_name for run in history.instance.get_runs()}
    assert history.store.gates.all() == []
    event = history.instance.get_latest_materialization_event(dg.AssetKey("retraining_decision"))
    assert event.asset_materialization.metadata["decision"].value == max(
        decision.decision_id for decision in history.store.decisions.all()
    )


def test_late_votes_remake_their_day_with_old_predictions(
    history: Any, branch: Callable[..., Any]
) -> None:
    project, day = branch(history, refit_after_pairs=NEVER), history.day(1)
    before = {d: project.files.read_frame("votes", project.day(d)) for d in range(4)}
    predicted = project.store.predictions.for_days([day])
    known, new = imported.comparisons(10, name="d1"), imported.comparisons(10, name="late")
    imported.publish(project.store, new)
    late = [
        *imported.votes(known, day, by="late", seed=5),
        *imported.votes(new, day, by="late", seed=6),
    ]
    imported.import_votes(project.store, late)
    runner = runner_of(project)
    assert list(replay_days(runner)) == [day]
    after = {d: project.files.read_frame("votes", project.day(d)) for d in range(4)}
    assert len(after[1]) == len(before[1]) + 60
    assert all(after[d].equals(before[d]) for d in (0, 2, 3))
    assert project.store.predictions.for_days([day]).equals(predicted)
    rows = project.files.read_frame("reflection_log", day)
    assert set(known["comparison_id"]) <= set(
        rows.loc[rows["annotator_id"].str.startswith("late", na=False), "comparison_id"]
    )
    # The champion has learnt from the turn of taste on the next day: no prediction of it is one of
    # this morning.
    assert not set(new["comparison_id"]) & set(rows["comparison_id"])
    run = project.registry.latest_runs(1, stage="reflection_log")[0]
    assert (run.metrics["n_replayed"], run.metrics["n_left_out"]) == (0, 10)


@pytest.fixture(scope="module")
def unbroken(make_project: Callable[..., Any]) -> dict[str, Any]:
    """What is left of two small days in which nothing happens."""
    project = make_project(completion_backend="template", min_new_pairs=NEVER)
    small_import(project, 2)
    replay(project)
    return made(project)


@pytest.mark.parametrize("moment", [{"killed_before": 1}, {"killed_after": 1}], ids=str)
def test_killed_replay_resumes_without_duplicates(
    make_project: Callable[..., Any], unbroken: dict[str, Any], moment: dict[str, int]
) -> None:
    project = make_project(completion_backend="template", min_new_pairs=NEVER)
    small_import(project, 2)
    with pytest.raises(Killed):
        replay(project, **moment)
    pending = project.store.replays.pending_days()
    assert pending
    assert replay(project) == pending
    assert made(project) == unbroken
    assert set(runs_by_step(project).values()) == {1}


def test_replay_sensor_gives_up_after_three_attempts(
    make_project: Callable[..., Any],
) -> None:
    project = make_project(completion_backend="template", min_new_pairs=NEVER)
    small_import(project, 2)
    broken = {"ops": {"votes": {"config": {"up_to_seq": -5}}}}
    for attempt in (1, 2, 3):
        request = project.tick("replay").run_requests[0]
        assert request.run_key.endswith(f":feedback:{attempt}")
        project.run(
            "feedback",
            project.day(0),
            ok=False,
            tags={**request.tags, "dagster/run_key": request.run_key},
            config=broken,
        )
    data = project.tick("replay")
    assert not data.run_requests
    assert f"The replay stopped at {project.day(0)}: feedback failed 3 times" in data.skip_message
    assert "`rlhf replay`" in data.skip_message
    assert replay(project) == [project.day(0), project.day(1)]


def test_sensor_and_command_share_replay_steps(make_project: Callable[..., Any]) -> None:
    project = make_project(completion_backend="template", min_new_pairs=NEVER)
    small_import(project, 1)
    request = project.tick("replay").run_requests[0]
    tags = {**request.tags, "dagster/run_key": request.run_key, "dagster/partition": project.day(0)}
    run = project.instance.create_run_for_job(project.defs.resolve_job_def("feedback"), tags=tags)
    assert f"feedback goes on in run {run.run_id[:8]}" in project.tick("replay").skip_message
    waiting = Replay(project.settings, project.instance, project.store, max_attempts=None).advance()
    assert "feedback goes on in run" in str(waiting)
    project.instance.report_run_failed(run)
    assert project.tick("replay").run_requests[0].run_key.endswith(":feedback:2")


def test_other_sensors_wait_for_the_replay_and_skip_its_days(
    make_project: Callable[..., Any],
) -> None:
    project = make_project(completion_backend="template", min_new_pairs=10, quiet_minutes=0)
    small_import(project, 2)
    project.store.replays.mark_done(project.day(0))
    data = project.tick("votes")
    # nobody replays it: it is like any other day
    assert [r.partition_key for r in data.run_requests] == [project.day(0)]
    project.run_request(data.run_requests[0], "votes")
    data = project.tick("votes")
    assert not data.run_requests
    assert "1 of them for their replay" in data.skip_message
    for sensor in ("learning", "retraining"):
        assert (
            f"1 imported days wait for their replay, {project.day(1)} is next"
            in project.tick(sensor).skip_message
        )
    assert project.files.days("votes") == [project.day(0)]
    quiet = Replay(
        project.settings.model_copy(update={"min_new_pairs": NEVER}),
        project.instance,
        project.store,
    )
    project.run_request(quiet.advance(), "feedback")
    assert quiet.advance() is None
    assert not project.tick("votes").run_requests
    assert len(project.tick("learning").run_requests) == 1


def test_replay_waits_for_an_unfinished_import(make_project: Callable[..., Any]) -> None:
    project = make_project(completion_backend="template", min_new_pairs=NEVER)
    number = project.store.imports.start("votes", "votes.csv", {})
    small_import(project, 1)
    assert "The import of votes.csv" in project.tick("replay").skip_message
    project.store.imports.finish(number, {})
    assert len(project.tick("replay").run_requests) == 1
