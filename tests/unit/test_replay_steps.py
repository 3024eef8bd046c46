"""The next step of a replay, read from runs and store alone: no run is executed here."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.driver.run import learn
from rlhf_pipeline.application.sensors.replay import Replay, end_of_day
from rlhf_pipeline.application.sensors.runs import STEP_TAG
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.records import Promotion, TriggerDecision
from rlhf_pipeline.store import Store
from tests.pipeline import imported
from tests.unclear_change import unclear_rise

Status = dg.DagsterRunStatus
N = 12  # voted comparisons: enough to learn from here


@dataclass
class ReplayedDay:
    """One imported day in a store, and the runs of its steps as Dagster records them."""

    store: Store
    instance: dg.DagsterInstance
    replay: Replay
    day: str

    def record(self, step: str, status: Status) -> None:
        seq = self.store.votes.last_imported_seq(self.day)
        tags = {STEP_TAG: f"replay:demo:{self.day}:{seq}:{step}"}
        run = dg.DagsterRun(job_name=step, run_id=str(uuid.uuid4()), status=status, tags=tags)
        self.instance.run_storage.add_historical_run(run, datetime.now(UTC))

    def promote(self) -> None:
        seq = self.store.votes.last_imported_seq(self.day)
        new = {
            "model_name": "demo.reward_model",
            "version": 1,
            "previous_version": None,
            "data_seq": seq,
        }
        self.store.promotions.record(Promotion(**new, reason="the first", actor="test"))


@pytest.fixture
def imported_day(tmp_path: Path) -> Iterator[ReplayedDay]:
    day = DAYS.get_first_partition_key() or ""
    settings = Settings(home=tmp_path, project="demo", min_new_pairs=N)
    frame = imported.comparisons(N, name="d0")
    with (
        Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store,
        dg.DagsterInstance.ephemeral() as instance,
    ):
        store.migrate()
        imported.publish(store, frame)
        imported.import_votes(store, imported.votes(frame, day))
        yield ReplayedDay(store, instance, Replay(settings, instance, store), day)


def test_replay_waits_for_learning_despite_a_champion(imported_day: ReplayedDay) -> None:
    """It promotes shortly before its run ends; the next day began then, beside a run that could
    still fail.
    """
    imported_day.record("feedback", Status.SUCCESS)
    imported_day.record("learning", Status.STARTED)
    imported_day.promote()
    step = imported_day.replay.advance()
    assert "learning goes on in run" in str(step)
    assert imported_day.store.replays.pending_days() == [imported_day.day]


def test_replayed_day_ends_without_a_fit_if_the_cause_is_unclear(
    imported_day: ReplayedDay,
) -> None:
    eager = imported_day.replay.settings.model_copy(update={"refit_after_pairs": 0})
    imported_day.replay = replace(imported_day.replay, settings=eager)
    imported_day.record("feedback", Status.SUCCESS)
    imported_day.promote()
    step = imported_day.replay.advance()
    assert isinstance(step, dg.RunRequest)
    assert step.job_name == "learning"  # due, were it not for the change
    seq = imported_day.store.votes.last_imported_seq(imported_day.day)
    imported_day.store.events.add([unclear_rise(seq)])
    assert imported_day.replay.advance() is None
    assert not imported_day.store.replays.pending_days()
    assert not imported_day.store.replays.unrequested_days()


def test_a_change_of_calibration_calibrates_the_champion_again(imported_day: ReplayedDay) -> None:
    imported_day.record("feedback", Status.SUCCESS)
    imported_day.promote()
    store, now = imported_day.store, end_of_day(imported_day.day)
    store.events.add([unclear_rise(1)])
    store.decisions.apply_rule(
        lambda evidence: TriggerDecision(
            action="fire",
            reasons=("calibration failed",),
            event_ids=(),
            decided_at=now,
            remedy="refit_calibrator",
        ),
        now=now,
        champion="demo.reward_model@1",
    )
    step = imported_day.replay.advance()
    assert isinstance(step, dg.RunRequest)
    assert step.job_name == "recalibration"
    assert step.run_config["ops"]["calibration"]["config"]["version"] == "champion"
    assert "reward_model" not in step.run_config["ops"]


class Unlearnable:
    """A home in which learning fails; keeps what it writes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lines: list[str] = []

    def run(self, job: str, day: str) -> None:
        raise PipelineError(f"{job} failed")

    def write(self, line: str) -> None:
        self.lines.append(line)


def test_failed_learning_names_the_days_without_a_replay(imported_day: ReplayedDay) -> None:
    home: Any = Unlearnable(imported_day.store)
    with pytest.raises(PipelineError):
        learn(home, "learning", imported_day.day)
    assert "`rlhf replay`" in home.lines[0]
