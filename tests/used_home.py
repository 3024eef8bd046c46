"""A home with two days of votes, a promoted policy, a report, a record and a reference window."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    Interval,
    ModelVersion,
    NewVote,
)
from rlhf_pipeline.store import homes
from rlhf_pipeline.watch.drift.reference import COLUMNS, Window

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
N = 20


def comparisons(day: str) -> pd.DataFrame:
    constant = {
        "day": day,
        "completion_a": "yes",
        "completion_b": "no",
        "model_version_a": "demo.policy@1",
        "model_version_b": "demo.policy@1",
        "category": "factual",
        "repeat_of": None,
        "seed": 7,
    }
    ids = {
        "comparison_id": "c",
        "prompt_id": "p",
        "prompt": "Why ",
        "completion_a_id": "x",
        "completion_b_id": "y",
    }
    rows = [
        constant | {name: f"{mark}{day}-{i}" for name, mark in ids.items()} | {"position": i}
        for i in range(N)
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(frame: pd.DataFrame) -> list[NewVote]:
    return [
        NewVote(
            comparison_id=c,
            annotator_id="ann",
            annotator_kind="human",
            choice="a",
            voted_at=NOON,
            origin="cli",
            idempotency_key=f"k-{c}",
        )
        for c in frame["comparison_id"]
    ]


def add_day(workspace: Workspace, day: str) -> None:
    frame = comparisons(day)
    workspace.store.comparisons.publish(frame, published_at=NOON)
    workspace.store.votes.cast_many(
        [vote.model_copy(update={"voted_at": pd.Timestamp(day, tz="UTC")}) for vote in votes(frame)]
    )
    workspace.files.write_frame("comparisons", frame, day)
    workspace.files.write_frame("votes", workspace.store.votes.log([day]), day)


def register(workspace: Workspace, folder: Path) -> ModelVersion:
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "model.safetensors").write_bytes(b"weights" * 100)
    with workspace.registry.run("first policy") as run:
        version = workspace.registry.register("policy", folder / "policy", run=run, data_seq=N)
    workspace.champions.promote("policy", version, reason="first", actor="test")
    return version


def report() -> CalibrationReport:
    number = Interval(value=0.1, low=0.0, high=0.2, n=9)
    metrics = CalibrationMetrics(
        n=9,
        accuracy=number,
        binned_gap=number,
        brier=number,
        log_loss=number,
        ece=number,
        slope=None,
    )
    return CalibrationReport(
        reward_model="demo.reward_model@1",
        method="temperature",
        params={},
        raw=metrics,
        calibrated=metrics,
        candidates={"none": 0.7},
        data_hash="d",
        n_fit=9,
        fitted_at=NOON,
    )


def used_home(folder: Path) -> Path:
    """Made below `folder`, as it is when a run has ended."""
    workspace = Workspace(Settings(home=folder / "home"))
    initialise(workspace)
    for day in (DAY, NEXT_DAY):
        add_day(workspace, day)
    version = register(workspace, folder)
    for factor in (1.5, 2.5):
        workspace.store.calibrations.add(report(), {"kind": "temperature", "temperature": factor})
    workspace.store.taste_changes.add(N, cause="new guidelines", actor="ann")
    workspace.files.write_record("candidate_model", version)
    row = {name: ["x" if kind == "string" else 1] for name, kind in COLUMNS.items()}
    window = Window(version.label, pd.DataFrame(row).astype(COLUMNS), np.array([[0.5]]))
    window.save(workspace.champions.reference_folder(version))
    homes.record_end(workspace.settings, workspace.store.database)
    workspace.store.close()
    return workspace.settings.home


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 16
    path.write_bytes(content)


def damage_page(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:  # a page in the log would be read from there
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 3 + 8] = b"\xff" * 8
    path.write_bytes(content)


def weights_of(home: Path) -> Path:
    return next((home / "mlflow" / "artifacts").rglob("model.safetensors"))


def edit(home: Path, *statements: str) -> None:
    """Change the store past its rules."""
    with closing(sqlite3.connect(home / "store.db")) as connection, connection:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (trigger,) in connection.execute(triggers).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)
