"""`rlhf check` finds what is damaged, lost or contradicts the rest, and changes nothing."""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.storage_check import Finding, find_faults
from rlhf_pipeline.cli.storage_check.databases import check_store
from rlhf_pipeline.cli.storage_check.files import check_files
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.frames import COMPARISONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.protocols import ignore_progress
from rlhf_pipeline.records import (
    BrierParts,
    CalibrationMetrics,
    CalibrationReport,
    Interval,
    ModelVersion,
    NewVote,
)
from rlhf_pipeline.store import Store, integrity

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


def votes(shown: pd.DataFrame) -> list[NewVote]:
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
        for c in shown["comparison_id"]
    ]


def add_day(workspace: Workspace, day: str) -> None:
    shown = comparisons(day)
    workspace.store.comparisons.publish(shown, published_at=NOON)
    workspace.store.votes.cast_many(
        [vote.model_copy(update={"voted_at": pd.Timestamp(day, tz="UTC")}) for vote in votes(shown)]
    )
    workspace.files.write_frame("comparisons", shown, day)
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
        ece_equal_width=number,
        ece_equal_mass=number,
        brier=number,
        log_loss=number,
        ece_debiased=number,
        slope=None,
        brier_parts=BrierParts(
            reliability=number, resolution=number, uncertainty=0.25, within_bins=0.0
        ),
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


@pytest.fixture(scope="session")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two days of votes, a promoted policy, a report, a record and a reference
    window.
    """
    folder = tmp_path_factory.mktemp("checked")
    workspace = Workspace(Settings(home=folder / "home"))
    prepare(workspace)
    for day in (DAY, NEXT_DAY):
        add_day(workspace, day)
    version = register(workspace, folder)
    for factor in (1.5, 2.5):
        workspace.store.calibrations.add(report(), {"kind": "temperature", "temperature": factor})
    workspace.store.taste_changes.add(N, cause="new guidelines", actor="ann")
    workspace.files.write({workspace.files.report_path(DAY): b"<p>stable</p>"})
    workspace.files.write_record("candidate_model", version)
    window = Window(version.label, pd.DataFrame({"n": [1]}), pd.DataFrame([[0.5]]).to_numpy())
    workspace.champions.save_reference_window(version, window)
    workspace.store.close()
    return workspace.settings.home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(used, tmp_path / "home")
    point_mlflow(tmp_path / "home", used, tmp_path / "home")
    return tmp_path / "home"


LOCATIONS = (("runs", "artifact_uri"), ("experiments", "artifact_location"))


def point_mlflow(
    home: Path, old: Path, new: Path, locations: tuple[tuple[str, str], ...] = LOCATIONS
) -> None:
    """MLflow keeps whole paths."""
    with closing(sqlite3.connect(home / "mlflow" / "mlflow.db")) as database, database:
        for table, column in locations:
            database.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (str(old), str(new))
            )


def tree(home: Path) -> dict[str, str]:
    return {
        str(p.relative_to(home)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in home.rglob("*")
    }


def faults(home: Path) -> str:
    return " ".join(
        f"{one.what}: {one.found}"
        for one in find_faults(Settings.read({"RLHF_HOME": str(home)}, home))
        if not one.is_sound
    )


def store_of(home: Path) -> tuple[Settings, Store]:
    settings = Settings.read({"RLHF_HOME": str(home)}, home)
    return settings, Store.open_read_only(
        settings.store_url, organization=settings.organization, project=settings.project
    )


def file_lines(home: Path, made: dict[str, list[str]] | None = None) -> list[Finding]:
    """The part that reads files: it needs no MLflow, whose opening takes a second."""
    settings, store = store_of(home)
    with store:
        return list(check_files(settings, store, made or {}, ignore_progress))


def file_faults(home: Path, made: dict[str, list[str]] | None = None) -> str:
    return " ".join(one.found for one in file_lines(home, made) if not one.is_sound)


def hashes_line(home: Path) -> str:
    (said,) = [one.found for one in file_lines(home) if one.what == "hashes of files"]
    return said


def check(home: Path) -> Result:
    return CliRunner().invoke(
        app,
        ["check"],
        env={"RLHF_HOME": str(home), "COLUMNS": "200"},
        catch_exceptions=False,
    )


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 16
    path.write_bytes(content)


def test_sound_home_is_called_sound_and_stays_as_it_was(home: Path) -> None:
    before = tree(home)
    result = check(home)
    assert result.exit_code == 0, result.output
    assert "trouble" not in result.output
    assert tree(home) == before


def test_log_left_by_a_killed_process_stays_as_it_was(home: Path, tmp_path: Path) -> None:
    """But for the memory that readers share (-shm), which SQLite makes where a log lies."""
    killed = Path(shutil.copytree(home, tmp_path / "killed", dirs_exist_ok=True))
    with closing(sqlite3.connect(home / "store.db")) as writer:
        writer.execute("PRAGMA user_version = 1")
        writer.commit()
        for name in ("store.db", "store.db-wal"):
            shutil.copy(home / name, killed / name)
    point_mlflow(killed, home, killed)
    before = tree(killed)
    assert (killed / "store.db-wal").stat().st_size > 0
    result = check(killed)
    assert result.exit_code == 0, result.output
    after = tree(killed)
    after.pop("store.db-shm", None)
    assert after == before


def test_store_that_is_missing_is_a_fault_and_is_not_made(home: Path) -> None:
    (home / "store.db").unlink()
    before = tree(home)
    with pytest.raises(ConfigurationError, match=r"store\.db does not exist|is missing"):
        check(home)
    assert tree(home) == before


def test_emptied_store_is_a_fault_and_init_is_not_advised(home: Path) -> None:
    (home / "store.db").write_bytes(b"")
    before = tree(home)
    said = faults(home)
    assert "holds no tables, although this home was set up" in said
    assert "rlhf restore" in said
    assert tree(home) == before


def test_votes_that_only_a_frame_holds_are_not_to_be_materialised_again(home: Path) -> None:
    """As after an older store was put back: materialised again, the frame would lose them too."""
    newer = pd.read_parquet(home / "frames" / "votes" / f"{DAY}.parquet")
    newer = pd.concat([newer, newer[-1:].assign(vote_id="lost", seq=newer["seq"].max() + 1)])
    settings, store = store_of(home)
    store.close()
    workspace = Workspace(settings)
    workspace.files.write_frame("votes", newer, DAY)
    workspace.store.close()
    said = file_faults(home)
    assert "1 of them unknown to the store" in said
    assert "do not materialise it again" in said
    assert "Materialise it again" not in said


def test_new_store_in_an_old_home_contradicts_its_files(home: Path) -> None:
    (home / "store.db").unlink()
    with Store.open(
        f"sqlite:///{home / 'store.db'}", organization="default", project="demo"
    ) as store:
        store.migrate()
    said = faults(home)
    assert f"holds {N} votes, {N} of them unknown to the store" in said
    assert f"holds {N} comparisons, {N} of them unknown to the store" in said
    assert "MLflow says demo.policy@1, the store recorded the promotion of none" in said
    assert f"demo.policy@1 rests on votes up to {N}, but the store ends at 0" in said


def test_store_of_another_commit_is_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0020'")
    assert "has the tables of another commit (schema 0020" in faults(home)


def test_changed_vote_breaks_the_audit_chain(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection:
        connection.execute("DROP TRIGGER votes_refuse_update")
        connection.execute("UPDATE votes SET choice = 'b' WHERE seq = 3")
        connection.commit()
    settings, store = store_of(home)
    with store:
        (chain,) = [one for one in check_store(settings, store) if one.what == "audit chain"]
    assert "The audit chain of default/demo is broken" in chain.found
    assert f"votes/{DAY}.parquet holds {N} votes, 1 of them unknown to the store" in file_faults(
        home
    )


def test_changed_text_of_a_published_comparison_is_found(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection:
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'comparisons'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(
            "UPDATE comparisons SET completion_a = 'yet' WHERE comparison_id = ?", (f"c{DAY}-3",)
        )
        connection.commit()
    assert (
        f"comparisons/{DAY}.parquet holds {N} comparisons, 1 of them unknown to the store"
        in file_faults(home)
    )


def test_damaged_page_of_the_store_is_found(home: Path) -> None:
    content = bytearray((home / "store.db").read_bytes())
    content[4096 * 3 : 4096 * 3 + 8] = b"\xff" * 8
    (home / "store.db").write_bytes(content)
    said = faults(home)
    assert "pages of the store:" in said
    assert "rlhf restore" in said


def test_missing_mlflow_database_is_a_fault_and_is_not_made(home: Path) -> None:
    for file in (home / "mlflow").glob("mlflow.db*"):
        file.unlink()
    before = tree(home)
    said = faults(home)
    assert "mlflow.db is missing, although models were registered" in said
    assert tree(home) == before


@pytest.mark.parametrize("damage", ["emptied", "another file", "damaged page"])
def test_damaged_mlflow_database_is_a_fault(home: Path, damage: str) -> None:
    file = home / "mlflow" / "mlflow.db"
    page = bytearray(file.read_bytes())
    page[4096 * 3 : 4096 * 3 + 8] = b"\xff" * 8
    file.write_bytes(
        {"emptied": b"", "another file": b"no database" * 1000, "damaged page": bytes(page)}[damage]
    )
    said = faults(home)
    assert said.startswith("MLflow: ")
    assert f"{file} {'holds no tables' if damage == 'emptied' else 'is damaged: '}" in said
    assert "Restore the last backup" in said


def test_flipped_bit_in_a_champions_weights_is_found(home: Path) -> None:
    flip(next((home / "mlflow" / "artifacts").rglob("model.safetensors")), 20)
    assert "but demo.policy@1 was registered" in faults(home)


def test_missing_files_of_a_champion_are_found(home: Path) -> None:
    shutil.rmtree(next((home / "mlflow" / "artifacts").rglob("model.safetensors")).parent)
    assert "The files of demo.policy@1 are missing" in faults(home)


def test_deleted_run_of_a_champion_is_found(home: Path) -> None:
    with closing(sqlite3.connect(home / "mlflow" / "mlflow.db")) as database, database:
        database.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    said = faults(home)
    assert "The MLflow run of demo.policy@1 is deleted" in said
    assert "mlflow runs restore --run-id" in said


def test_models_outside_the_home_are_a_fault(used: Path, home: Path) -> None:
    point_mlflow(home, home, used, LOCATIONS[:1])
    said = faults(home)
    assert "outside the home" in said
    assert str(used) in said


def test_copied_home_whose_paths_did_not_follow_yet_is_sound(used: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(used, copied)
    assert faults(copied) == ""


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "flipped page": (
        f"frames/votes/{DAY}.parquet",
        lambda path: flip(path, 60),
        "was changed since it was written",
    ),
    "flipped footer": (
        f"frames/votes/{DAY}.parquet",
        lambda path: flip(path, -200),
        "was changed since it was written",
    ),
    "cut frame": (
        f"frames/votes/{DAY}.parquet",
        lambda path: path.write_bytes(path.read_bytes()[:500]),
        "was changed",
    ),
    "empty frame": (
        f"frames/votes/{DAY}.parquet",
        lambda path: path.write_bytes(b""),
        "was changed",
    ),
    "missing frame": (f"frames/votes/{DAY}.parquet", Path.unlink, "is missing"),
    "folder": (
        f"frames/votes/{DAY}.parquet",
        lambda path: (path.unlink(), path.mkdir()),
        "Move it away",
    ),
    "report": (
        f"frames/reports/drift_{DAY}.html",
        lambda path: path.write_text("<p>drift</p>"),
        "was changed",
    ),
    "record": ("frames/candidate_model.json", lambda path: path.write_text("{}"), "was changed"),
    "window": (
        "models/reference/demo.policy-1/embeddings.npy",
        lambda path: flip(path, -3),
        "was changed",
    ),
}


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_named(
    home: Path, name: str, damage: Callable[[Path], object], said: str
) -> None:
    assert file_faults(home) == ""
    damage(home / name)
    found = file_faults(home)
    assert str(home / name) in found
    assert said in found


@pytest.mark.parametrize("stage", ["votes", "comparisons"])
def test_halved_frame_that_was_never_recorded_contradicts_the_store(home: Path, stage: str) -> None:
    """As in a home of an older version: half the rows, written by somebody else."""
    forget_hashes(home)
    path = home / "frames" / stage / f"{DAY}.parquet"
    whole = pq.read_table(path)
    pq.write_table(whole.take([*range(0, N, 2), N - 1]), path)
    assert (
        f"{path} holds {N // 2 + 1} {stage}, 0 of them unknown to the store, and lacks "
        f"{N // 2 - 1} of the store's" in file_faults(home)
    )


def test_files_of_an_older_version_are_counted_and_no_fault(home: Path) -> None:
    forget_hashes(home)
    assert file_faults(home) == ""
    assert hashes_line(home) == "0 as written, 5 not recorded"


def test_frame_that_was_written_past_the_records_is_a_fault(home: Path) -> None:
    path = Artefacts(home / "frames").write_frame(
        "preference_pairs", PREFERENCE_PAIRS.empty_frame()
    )
    assert f"{path} has no recorded hash" in file_faults(home)


def test_a_frame_older_than_the_first_hash_is_not_a_fault(home: Path) -> None:
    path = Artefacts(home / "frames").write_frame(
        "preference_pairs", PREFERENCE_PAIRS.empty_frame()
    )
    os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    assert file_faults(home) == ""
    assert "1 not recorded" in hashes_line(home)


def test_frame_that_leads_outside_its_folder_is_a_fault(home: Path, tmp_path: Path) -> None:
    path = home / "frames" / "votes" / f"{DAY}.parquet"
    os.replace(path, tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    assert f"{path} leads outside {home / 'frames'}" in file_faults(home)


def test_frames_folder_on_another_disk_is_sound(home: Path, tmp_path: Path) -> None:
    os.replace(home / "frames", tmp_path / "disk")
    (home / "frames").symlink_to(tmp_path / "disk")
    assert file_faults(home) == ""


def test_day_that_lost_its_file_is_named(home: Path) -> None:
    forget_hashes(home)
    (home / "frames" / "votes" / f"{DAY}.parquet").unlink()
    assert (
        file_faults(home, {"votes": [DAY, NEXT_DAY], "votes_inbox": [DAY]})
        == f"votes has lost {DAY}: materialise again."
    )


def test_write_that_did_not_end_is_counted_and_no_fault(home: Path) -> None:
    settings = Settings.read({"RLHF_HOME": str(home)}, home)
    with Workspace(settings).store as store:
        writing = store.file_hashes.record_replacement({f"frames/votes/{DAY}.parquet": b"new"})
        writing.__enter__()
    assert file_faults(home) == ""
    assert "1 with a write that did not end" in hashes_line(home)


def test_changed_calibrator_is_found(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection:
        connection.execute("UPDATE calibrations SET calibrator = replace(calibrator, '1.5', '3.5')")
        connection.commit()
    _, store = store_of(home)
    with store:
        assert integrity.find_changed_calibrators(store.database) == [
            "The calibration 1 of demo.reward_model@1 was changed in the store."
        ]


def test_changed_taste_change_is_found(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection:
        connection.execute("UPDATE taste_changes SET change_seq = 1")
        connection.commit()
    settings, store = store_of(home)
    with store:
        (said,) = [one for one in check_store(settings, store) if not one.is_sound]
    assert said.what == "taste changes"
    assert "The taste change 1 was changed in the store." in said.found


def test_missing_facts_of_the_home_are_a_fault(home: Path) -> None:
    (home / "project.json").unlink()
    (home / "store.db").unlink()  # so that nothing else is read
    assert "project.json is missing" in faults(home)


def forget_hashes(home: Path) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection:
        connection.execute("DELETE FROM files")
        connection.commit()
