"""Job `housekeeping`: a dry run deletes nothing and lists what the next run deletes."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)

from jobs.retention import Retention
from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ModelNotFound
from rlhf_pipeline.records import DriftEvent, TriggerDecision, TriggerEvidence
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store

NOW = datetime.now(UTC)
KEPT = {
    "keep_days": 30,
    "keep_tick_days": 20,
    "keep_skipped_tick_days": 2,
    "keep_message_days": 60,
    "keep_report_days": 50,
    "keep_cache_days": 40,
    "keep_model_versions": 1,
}
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

    def names(self, kind: str, *, dry_run: bool = True) -> list[str]:
        return [item.name for item in self.retention.retain(dry_run=dry_run) if item.kind == kind]

    def run(self, days: float, status: dg.DagsterRunStatus = SUCCESS, **tags: str) -> str:
        made = dg.DagsterRun(
            job_name="feedback", run_id=dg.DagsterRun(job_name="x").run_id, status=status, tags=tags
        )
        self.instance.run_storage.add_historical_run(made, days_ago(days))
        self.instance.report_engine_event("it ran", made)
        self.write(
            self.settings.home / "dagster" / "storage" / made.run_id / "compute_logs" / "x.out",
            days,
        )
        return made.run_id

    def write(self, path: Path, days: float) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        for written in (path, path.parent):
            os.utime(written, (days_ago(days).timestamp(),) * 2)
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

    def tick(self, days: float, status: TickStatus) -> None:
        location = RegisteredCodeLocationOrigin("rlhf_pipeline")
        origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "__repository__"), "votes")
        state = InstigatorState(
            origin,
            InstigatorType.SENSOR,
            InstigatorStatus.RUNNING,
            SensorInstigatorData(cursor=None),
        )
        if (
            self.instance.get_instigator_state(state.instigator_origin_id, state.selector_id)
            is None
        ):
            self.instance.add_instigator_state(state)
        self.instance.create_tick(
            TickData(
                instigator_origin_id=state.instigator_origin_id,
                instigator_name="votes",
                instigator_type=InstigatorType.SENSOR,
                status=status,
                timestamp=days_ago(days).timestamp(),
                selector_id=state.selector_id,
                run_ids=[] if status == TickStatus.SUCCESS else None,
            )
        )

    def deliver(self, days: float) -> None:
        message = build_test_message("log", project="demo", link="", now=days_ago(days))
        self.store.alert_messages.add([message])
        self.store.alert_messages.mark_delivered(message.message_id, days_ago(days))


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
    Registry(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}", folder / "none", "nobody").initialise()
    return folder


@pytest.fixture
def home(tmp_path: Path, template: Path) -> Iterator[Home]:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    workspace = Workspace(Settings(home=tmp_path, **KEPT))
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
    for days, status in (
        (3, TickStatus.SKIPPED),
        (1, TickStatus.SKIPPED),
        (21, TickStatus.SUCCESS),
        (19, TickStatus.SUCCESS),
    ):
        home.tick(days, status)
    for days in (61, 59):
        home.deliver(days)
    root = home.settings.home
    dated = {
        "frames/reports/drift_2026-01-01.html": 51,
        "frames/reports/drift_2026-01-02.html": 49,
        "cache/embeddings/old.emb": 41,
        "cache/embeddings/old.cut": 41,
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


EXPECTED = [
    ("ticks", 1),
    ("ticks", 1),
    ("alert messages", 1),
    ("reports", 1),
    ("embeddings", 1),
    ("training files", 1),
    ("retraining sets", 1),
    ("model files", 1),
    ("model files", 1),
]


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and ".db" not in path.name}


def test_a_version_promoted_during_the_clean_up_keeps_its_files(full: Home) -> None:
    def promote_first(done: int, total: int, note: str = "") -> None:
        if done == 1:
            full.registry.promote("policy", 1, reason="by hand", actor="test")

    full.retention.retain(progress=promote_first)
    champion = full.registry.get("policy", "champion")
    assert champion is not None
    assert champion.version == 1
    assert (full.registry.fetch_folder(champion, full.settings.home) / "weights").read_text() == "1"


def test_dry_run_deletes_nothing_and_lists_what_the_run_deletes(full: Home) -> None:
    before = files(full.settings.home)
    listed = full.retention.retain(dry_run=True)
    assert files(full.settings.home) == before
    assert full.instance.get_runs_count() == 2
    assert [(item.kind, item.n) for item in listed] == [("runs", 1), *EXPECTED]
    assert full.retention.retain() == listed
    assert full.instance.get_runs_count() == 1
    gone = {path.name for path in before - files(full.settings.home)}
    cached = {"old.emb", "old.cut"}
    assert gone == {"x.out", "drift_2026-01-01.html", "weights", "old.parquet"} | cached
    assert full.registry.removal_times("policy").keys() == {1, 2}


def test_second_run_finds_nothing_more(full: Home) -> None:
    assert full.retention.retain() != []
    assert full.retention.retain() == []


def test_deleted_report_is_no_longer_a_recorded_file(home: Home) -> None:
    """Else `check` would call it missing."""
    reports = Artefacts(home.settings.frames, home.store.file_hashes)
    path = reports.report_path("2026-01-01")
    reports.write({path: b"page"})
    os.utime(path, (0, 0))
    assert [file.path for file in home.store.file_hashes.all()] == [reports.name(path)]
    assert [item.kind for item in home.retention.retain()] == ["reports"]
    assert home.store.file_hashes.all() == []


def test_a_set_stays_as_long_as_the_files_of_a_policy_trained_on_it(home: Home) -> None:
    files = Artefacts(home.settings.frames, home.store.file_hashes)
    for name in ("unused", "trained-on"):
        path = files.path("retraining_set", name)
        files.write({path: b"rows"})
        os.utime(path, (days_ago(31).timestamp(),) * 2)
    home.version(1, data_hash="trained-on")
    assert home.names("retraining sets", dry_run=False) == ["unused"]
    assert [Path(file.path).stem for file in home.store.file_hashes.all()] == ["trained-on"]
    home.version(2)
    home.names("model files", dry_run=False)
    assert home.names("retraining sets", dry_run=False) == ["trained-on"]


def test_deleted_run_leaves_no_file_of_events_and_no_logs(home: Home) -> None:
    run_id = home.run(31)
    assert list(home.settings.home.rglob(f"*{run_id}*"))
    home.retention.retain()
    assert list(home.settings.home.rglob(f"*{run_id}*")) == []


def test_files_of_a_run_that_is_gone_are_deleted(home: Home) -> None:
    """As when `retain` was killed between the record and the files."""
    run_id, young = home.run(31), home.run(29)
    for gone in (run_id, young):
        home.instance.delete_run(gone)
    for path in home.settings.home.rglob(f"{run_id}.db"):
        os.utime(path, (days_ago(31).timestamp(),) * 2)
    assert home.names("runs", dry_run=False) == [f"files of the deleted run {run_id[:8]}"]
    assert list(home.settings.home.rglob(f"*{run_id}*")) == []
    assert list(home.settings.home.rglob(f"*{young}*")) != []


def test_run_that_has_not_ended_stays_however_old(home: Home) -> None:
    home.run(400, STARTED)
    assert home.names("runs") == []


def fire_on_everything(evidence: TriggerEvidence) -> TriggerDecision:
    return TriggerDecision(
        action="fire",
        reasons=("test",),
        event_ids=tuple(e.event_id for e in evidence.open_events),
        decided_at=evidence.now,
    )


def test_run_of_a_decision_stays(home: Home) -> None:
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
    fire = home.store.decisions.decide(fire_on_everything, now=NOW, champion=None)
    assert fire is not None
    home.store.decisions.mark_submitted(fire.decision_id or 0, 1, run_id)
    assert home.names("runs") == []


def test_run_whose_completions_are_unfinished_stays(home: Home) -> None:
    waiting, done = home.run(400), home.run(400)
    for origin, run_id in ((waiting, "waiting"), (done, "done")):
        home.store.generation.start(run_id, [], asset="completions", record="{}", origin=origin)
    home.store.generation.end("done")
    assert home.names("runs") == [f"feedback {done[:8]} of {days_ago(400):%Y-%m-%d}"]


def test_version_that_was_ever_champion_keeps_its_files(home: Home) -> None:
    for number in (1, 2, 3, 4):
        home.version(number)
    for champion in (1, 2, 4):
        home.store.promotions.record(home.registry.promote("policy", champion))
    home.version(5)
    home.version(6)
    assert home.names("model files", dry_run=False) == ["demo.policy@3", "demo.policy@5"]
    for number in (1, 2, 4, 6):
        found = home.registry.get("policy", number)
        assert found is not None
        assert home.registry.fetch_folder(found, home.settings.cache).is_dir()
    removed = home.registry.get("policy", 3)
    assert removed is not None
    with pytest.raises(ModelNotFound, match=r"removed the files of demo\.policy@3"):
        home.registry.fetch_folder(removed, home.settings.cache)


def test_version_promoted_while_others_are_removed_keeps_its_files(home: Home) -> None:
    for number in (1, 2, 3):
        home.version(number)

    def promote(n: int, total: int, note: str) -> None:
        if n == 1:
            home.registry.promote("policy", 2)

    removed = home.retention.retain(progress=promote)
    assert [item.name for item in removed if item.kind == "model files"] == ["demo.policy@1"]
    champion = home.registry.get("policy", "champion")
    assert champion is not None
    assert home.registry.fetch_folder(champion, home.settings.cache).is_dir()


def test_completions_unused_for_long_go(home: Home) -> None:
    home.store.completions_cache.put_many({"key": "a completion"})
    later = replace(home.retention, now=NOW + timedelta(days=41))
    listed = later.retain(dry_run=True)
    assert [(item.kind, item.n) for item in listed] == [("completions", 1)]
    assert home.store.completions_cache.get_many(["key"]) == {"key": "a completion"}
    assert later.retain() == listed
    assert home.store.completions_cache.get_many(["key"]) == {}


def test_no_file_is_deleted_while_another_run_is_under_way(full: Home) -> None:
    full.store.heartbeats.beat("other", pid=os.getpid(), host="here", job="retraining")
    listed = full.retention.retain(dry_run=True)
    assert {item.kind for item in listed} == {"runs", "ticks", "alert messages"}
