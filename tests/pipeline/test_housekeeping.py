"""Job `housekeeping` deletes what `retention:` no longer keeps, and only that."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest

from rlhf_pipeline.application.jobs.housekeeping import Retention
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import RetentionParams, Settings
from rlhf_pipeline.core.object_stores import put
from rlhf_pipeline.core.records import DriftEvent, TriggerDecision, TriggerEvidence
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import ServedAnswer, Store
from rlhf_pipeline.watch.alerts.messages import build_test_message

NOW = datetime.now(UTC)
KEPT = RetentionParams(
    run_days=30,
    tick_days=20,
    skipped_tick_days=2,
    message_days=60,
    answer_days=50,
    checkpoint_days=30,
    cache_days=40,
    model_versions=1,
)
SUCCESS, STARTED = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.STARTED


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@dataclass
class Home:
    settings: Settings
    store: Store
    registry: Registry
    instance: dg.DagsterInstance

    @cached_property
    def retention(self) -> Retention:
        return Retention(self.settings, self.store, self.registry, self.instance, NOW)

    def run(self, days: float, status: dg.DagsterRunStatus = SUCCESS, **tags: str) -> str:
        run = dg.DagsterRun(
            job_name="feedback", run_id=dg.DagsterRun(job_name="x").run_id, status=status, tags=tags
        )
        self.instance.run_storage.add_historical_run(run, days_ago(days))
        self.instance.report_engine_event("it ran", run)
        self.write(
            self.settings.home / "dagster" / "storage" / run.run_id / "compute_logs" / "x.out",
            days,
        )
        return run.run_id

    def write(self, path: Path, days: float) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        for touched in (path, path.parent):
            os.utime(touched, (days_ago(days).timestamp(),) * 2)
        return path

    def version(self, number: int, data_hash: str | None = None) -> None:
        folder = self.settings.home / f"model-{number}"
        self.write(folder / "weights", 0)
        (folder / "weights").write_text(str(number))
        with self.registry.run("train", run_key=str(number)) as run:
            self.registry.register(
                "policy", folder, run=run, metrics={"n": number}, data_hash=data_hash
            )
        shutil.rmtree(folder)

    def promote(self, number: int) -> None:
        version = self.registry.get("policy", number)
        assert version is not None
        champions = Champions(self.store, self.registry, self.settings.cache)
        champions.promote("policy", version, reason="won", actor="test")

    def deliver(self, days: float) -> None:
        message = build_test_message("log", days_ago(days), project="demo")
        self.store.alert_messages.add([message])
        self.store.alert_messages.mark_delivered(message.message_id, days_ago(days))

    def answer(self, days: float) -> None:
        answer = ServedAnswer(
            answer_id=f"answer_{days}", version="demo.policy@1", created_at=days_ago(days),
            latency_s=1.0,
        )  # fmt: skip
        self.store.answers.add(answer)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Databases that are migrated once: that takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    with Workspace(Settings(home=folder)).store as store:
        store.migrate()
    (folder / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        instance.get_runs_count()
    (folder / "mlflow").mkdir()
    Registry(
        f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}", folder / "none", "nobody"
    ).tracking.open()
    return folder


@pytest.fixture
def home(tmp_path: Path, template: Path) -> Iterator[Home]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    workspace = Workspace(Settings(home=tmp_path, retention=KEPT))
    prepare(workspace)
    with (
        workspace.store as store,
        dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance,
    ):
        yield Home(workspace.settings, store, workspace.registry, instance)


@pytest.fixture
def full(home: Home) -> Home:
    """Of every kind something to delete and something to keep."""
    home.run(31)
    home.run(29)
    home.run(400, STARTED)
    for days in (61, 59):
        home.deliver(days)
    for days in (51, 49):
        home.answer(days)
    root = home.settings.home
    dated = {
        "cache/embeddings/old.emb": 41,
        "cache/embeddings/young.emb": 39,
        "models/candidates/old/weights": 31,
        "models/candidates/young/weights": 29,
        "frames/retraining_set/old.parquet": 31,
        "frames/retraining_set/young.parquet": 29,
    }
    for path, days in dated.items():
        home.write(root / path, days)
    for number in (1, 2, 3):
        home.version(number)
    return home


EXPECTED = {
    "runs": 1,
    "alert messages": 1,
    "answers": 1,
    "embeddings": 1,
    "checkpoints": 1,
    "retraining sets": 1,
    "model files": 2,
}


def removed(registry: Registry) -> set[int]:
    """The policies without files."""
    return {m.version for m in registry.list_models("policy") if m.removed_at is not None}


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and ".db" not in path.name}


def test_due_files_are_deleted_once(full: Home) -> None:
    before = files(full.settings.home)
    assert full.retention.delete() == EXPECTED
    assert full.instance.get_runs_count() == 2
    gone = {path.name for path in before - files(full.settings.home)}
    assert gone == {"x.out", "weights", "old.parquet", "old.emb"}
    assert removed(full.registry) == {1, 2}
    assert full.retention.delete() == {}


def test_set_is_kept_with_the_policy_trained_on_it(home: Home) -> None:
    artefacts = Artefacts(home.settings.frames)
    for name in ("unused", "trained-on"):
        path = artefacts.path("retraining_set", name)
        put(path, b"rows")
        os.utime(path, (days_ago(31).timestamp(),) * 2)
    home.version(1, data_hash="trained-on")
    assert home.retention.delete() == {"retraining sets": 1}
    assert artefacts.days("retraining_set") == ["trained-on"]
    home.version(2)
    assert home.retention.delete() == {"model files": 1}
    assert home.retention.delete() == {"retraining sets": 1}


def fire_on_everything(evidence: TriggerEvidence) -> TriggerDecision:
    return TriggerDecision(
        action="fire",
        reasons=("test",),
        event_ids=tuple(e.event_id for e in evidence.open_events),
        decided_at=evidence.now,
    )


def test_run_of_a_decision_is_kept(home: Home) -> None:
    run_id = home.run(400)
    event = DriftEvent(
        kind="drift",
        model_version="m@1",
        detector="ddm",
        params_hash="p",
        stream="errors",
        seq=1,
        day=NOW.date(),
        evidence={},
    )
    home.store.events.add([event])
    fire = home.store.decisions.apply_rule(fire_on_everything, now=NOW, champion=None)
    assert fire is not None
    home.store.training_jobs.mark_submitted(fire.decision_id or 0, 1, run_id)
    assert home.retention.delete() == {}


def test_run_with_unfinished_completions_is_kept(home: Home) -> None:
    waiting, done = home.run(400), home.run(400)
    for origin, run_id in ((waiting, "waiting"), (done, "done")):
        home.store.generation.start(run_id, [], asset="completions", record="{}", origin=origin)
    home.store.generation.end("done")
    assert home.retention.delete() == {"runs": 1}
    assert home.instance.get_run_by_id(waiting) is not None


def test_no_file_is_deleted_during_another_run(full: Home) -> None:
    full.store.heartbeats.beat("other", pid=os.getpid(), host="here", job="retraining")
    assert full.retention.delete().keys() == {"runs", "alert messages", "answers"}
