"""`rlhf check`, `backup`, `restore` and `migrate` on a real home: sound, put aside, put back
elsewhere, moved to Postgres with equal numbers, and every refusal.
"""

import hashlib
import io
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import Result
from dagster._daemon.types import DaemonHeartbeat
from sqlalchemy import text
from typer.testing import CliRunner

from driver.__main__ import main as run_driver
from rlhf_pipeline.cli import app, driver, home_activity
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.config import DAGSTER_URL, HomeFacts, Settings
from rlhf_pipeline.errors import ArtefactError, ConfigurationError, StoreError
from rlhf_pipeline.records import NewVote, utc_now
from rlhf_pipeline.store import Store, database_copy
from rlhf_pipeline.votes.counting import counting
from tests.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("store", "dagster", "mlflow")


@pytest.fixture(scope="session")
def used(make_project: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a day of everything: runs, votes, models, a runless event, a sensor's cursor.
    Read only: copy it.
    """
    project = make_project(persistent=True, completion_backend="template")
    day = project.day(0)
    project.collect(day, n=6)
    project.vote(day)
    project.run("feedback", day)
    project.tick("votes")
    project.instance.report_runless_asset_event(
        dg.AssetMaterialization("votes_inbox", partition=day, metadata={"n": 1})
    )
    project.store.close()
    return project.settings.home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of the used home."""
    shutil.copytree(used, tmp_path / "home", ignore=shutil.ignore_patterns("cache"))
    database_copy.relocate(
        f"sqlite:///{tmp_path / 'home' / 'mlflow' / 'mlflow.db'}",
        f"{used.as_uri()}/",
        f"{(tmp_path / 'home').as_uri()}/",
    )
    return tmp_path / "home"


@pytest.fixture
def prefix(postgres: PostgresServer) -> Iterator[str]:
    yield "moved"
    for kind in KINDS:
        postgres.drop_database(f"moved_{kind}")


@pytest.fixture
def dagster_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's tasks run in this process, which has imported it, not each in one of its own."""

    def ask(task: str, environ: dict[str, str], *_: Any) -> list[dict[str, Any]]:
        Path(environ["DAGSTER_HOME"]).mkdir(parents=True, exist_ok=True)
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()) as output,
        ):
            for name, value in environ.items():
                patch.setenv(name, value)
            try:
                assert run_driver([task]) == 0
            finally:
                logging.disable(logging.NOTSET)
        return [json.loads(line) for line in output.getvalue().splitlines()]

    monkeypatch.setattr(driver, "read_facts", ask)


def rlhf(home: Path, *arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(
        app,
        arguments,
        env={"RLHF_HOME": str(home), "COLUMNS": "200", **environ},
        catch_exceptions=False,
    )


def facts_of(home: Path) -> HomeFacts:
    facts = HomeFacts.load(home)
    assert facts is not None
    return facts


def settings_of(home: Path) -> Settings:
    return Settings.read({"RLHF_HOME": str(home)}, home)


def numbers(home: Path) -> dict[str, object]:
    """What a person would compare: votes, links, runs, events, days made, models."""
    settings = settings_of(home)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in settings.dagster_environ.items():
            patch.setenv(key, value)
        with (
            Workspace(settings).store as store,
            dg.DagsterInstance.from_config(str(home / "dagster")) as instance,
        ):
            runs = instance.get_run_records()
            days = {
                key.to_user_string(): sorted(instance.get_materialized_partitions(key))
                for key in instance.get_asset_keys()
            }
            logs = [
                (
                    r.dagster_run.run_id,
                    [e.timestamp for e in instance.all_logs(r.dagster_run.run_id)],
                )
                for r in runs
            ]
            return {
                "votes": store.votes.count(),
                "links": store.audit.verify(),
                "snapshot": counting(store.votes.log(["2026-01-01"]))["vote_id"].tolist(),
                "runs": [
                    (
                        r.dagster_run.run_id,
                        r.dagster_run.status.value,
                        r.create_timestamp.timestamp(),
                        r.end_time,
                    )
                    for r in runs
                ],
                "logs": logs,
                "days": days,
                "models": [
                    m.name + str(m.version) for m in Workspace(settings).registry.list_models()
                ],
                "tracked": len(Workspace(settings).registry.latest_runs(100)),
            }


def late_vote(comparison_id: str) -> NewVote:
    return NewVote(
        comparison_id=comparison_id,
        annotator_id="ann",
        annotator_kind="simulated",
        choice="a",
        voted_at=utc_now(),
        origin="cli",
        idempotency_key="late",
    )


def test_a_sound_home_is_reported_as_sound(home: Path) -> None:
    result = rlhf(home, "check")
    assert result.exit_code == 0, result.output
    for word in ("audit chain", "foreign keys", "files of days", "free disk", "champion policy"):
        assert word in result.output
    assert "trouble" not in result.output


@pytest.mark.usefixtures("dagster_in_process")
def test_every_damage_is_found_and_ends_with_one(home: Path) -> None:
    day = settings_of(home).start_day.isoformat()
    next((home / "frames" / "votes").glob("*.parquet")).unlink()
    with closing(sqlite3.connect(home / "store.db")) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("DROP TRIGGER audit_refuse_update")
        connection.execute("UPDATE audit SET actor = 'eve' WHERE seq = 1")
        connection.execute(
            "DELETE FROM comparisons WHERE comparison_id IN (SELECT comparison_id FROM votes LIMIT "
            "1)"
        )
        connection.commit()
    result = rlhf(home, "check")
    assert result.exit_code == 1
    assert "broken at seq 1" in result.output
    assert "refer to missing comparisons" in result.output
    assert f"votes has lost {day}" in result.output


def test_a_backup_is_put_back_elsewhere_with_equal_numbers(home: Path, tmp_path: Path) -> None:
    before = numbers(home)
    (home / "prompts").mkdir(exist_ok=True)
    (home / "prompts" / "imported.jsonl").write_text("{}\n")
    assert rlhf(home, "backup", str(tmp_path / "backup")).exit_code == 0
    assert "password" not in (tmp_path / "backup" / "project.json").read_text()
    shutil.rmtree(home)  # the paths of before lead nowhere now
    restored = tmp_path / "elsewhere"
    result = rlhf(restored, "restore", str(tmp_path / "backup"))
    assert result.exit_code == 0, result.output
    assert numbers(restored) == before
    assert (restored / "prompts" / "imported.jsonl").read_text() == "{}\n"
    # and MLflow finds the models where they lie now
    assert rlhf(restored, "check").exit_code == 0


@pytest.mark.usefixtures("dagster_in_process")
def test_a_backup_is_taken_while_votes_are_cast(home: Path, tmp_path: Path) -> None:
    with Workspace(settings_of(home)).store as store, store.database.write_transaction():
        assert rlhf(home, "backup", str(tmp_path / "backup")).exit_code == 0


@pytest.mark.usefixtures("dagster_in_process")
def test_a_damaged_backup_and_a_full_home_are_refused(home: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    rlhf(home, "backup", str(backup))
    with pytest.raises(ConfigurationError, match="is not empty"):
        rlhf(home, "backup", str(backup))
    with pytest.raises(ConfigurationError, match=r"hold data.*--replace"):
        rlhf(home, "restore", str(backup))
    before = numbers(home)
    assert rlhf(home, "restore", str(backup), "--replace").exit_code == 0
    assert numbers(home) == before
    assert next(home.glob("replaced-*/store.db")).exists()

    frame = next((backup / "frames").rglob("*.parquet"))
    frame.write_bytes(frame.read_bytes()[:-10])
    with pytest.raises(ArtefactError, match=r"damaged: .*parquet \(truncated\)"):
        rlhf(tmp_path / "new", "restore", str(backup))
    assert not (tmp_path / "new" / "store.db").exists()
    (backup / "manifest.json").unlink()
    with pytest.raises(ConfigurationError, match=r"it has no manifest\.json"):
        rlhf(tmp_path / "new", "restore", str(backup))


@pytest.mark.usefixtures("dagster_in_process")
def test_an_interrupted_backup_is_none_and_may_be_repeated(home: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    (backup / "UNFINISHED").write_text("")
    with pytest.raises(ConfigurationError, match="interrupted before it was complete"):
        rlhf(tmp_path / "new", "restore", str(backup))
    assert rlhf(home, "backup", str(backup)).exit_code == 0


@pytest.mark.usefixtures("dagster_in_process")
def test_nothing_is_moved_while_a_run_or_the_daemon_is_at_work(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_activity, "DAEMON_BEATS_S", 0.1)
    move = ("migrate", "--to", "postgresql://nobody@127.0.0.1:9")
    with Workspace(settings_of(home)).store as store:
        store.heartbeats.beat("run", pid=1, host="h", job="feedback")
        with pytest.raises(ConfigurationError, match=r"1 runs are under way \(feedback\)"):
            rlhf(home, *move)
        store.heartbeats.clear("run")
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() + 3600, "SENSOR", "here", []))
    with pytest.raises(ConfigurationError, match=r"daemon works in .* Stop `rlhf dev`"):
        rlhf(home, *move)
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3600, "SENSOR", "here", []))
    with pytest.raises(StoreError, match="the server does not answer"):
        rlhf(home, *move)
    assert facts_of(home).server_url is None


@pytest.mark.usefixtures("dagster_in_process")
def test_a_server_project_is_not_replaced_during_a_run_or_with_a_daemon(
    home: Path,
    tmp_path: Path,
    postgres: PostgresServer,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_activity, "DAEMON_BEATS_S", 0.1)
    assert rlhf(home, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix).exit_code == 0
    backup = tmp_path / "backup"
    assert rlhf(home, "backup", str(backup)).exit_code == 0
    before = numbers(home)
    server = {"RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": prefix}
    elsewhere = tmp_path / "on another machine"  # nothing there knows that the databases are in use
    restores = ((home, {}), (elsewhere, server))

    with Workspace(settings_of(home)).store as store:
        store.heartbeats.beat("run", pid=1, host="h", job="feedback")
        for where, environ in restores:
            with pytest.raises(ConfigurationError, match=r"1 runs are under way \(feedback\)"):
                rlhf(where, "restore", str(backup), "--replace", **environ)
        store.heartbeats.clear("run")

    monkeypatch.setenv(DAGSTER_URL, settings_of(home).dagster_environ[DAGSTER_URL])
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() + 3600, "SENSOR", "here", []))
    for where, environ in restores:
        with pytest.raises(
            ConfigurationError, match=r"daemon works in the databases of .* Stop `rlhf dev`"
        ):
            rlhf(where, "restore", str(backup), "--replace", **environ)
    assert numbers(home) == before
    assert not elsewhere.exists() or not any(elsewhere.iterdir())

    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 3600, "SENSOR", "here", []))
    result = rlhf(home, "restore", str(backup), "--replace")
    assert result.exit_code == 0, result.output
    assert numbers(home) == before


@pytest.mark.usefixtures("dagster_in_process")
def test_a_restore_takes_the_databases_of_its_own_home_and_no_other(
    home: Path, tmp_path: Path, postgres: PostgresServer, prefix: str
) -> None:
    backup = tmp_path / "backup"
    server = {"RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": prefix}
    assert rlhf(home, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix).exit_code == 0
    assert rlhf(home, "backup", str(backup)).exit_code == 0
    before, home_id = numbers(home), facts_of(home).home_id
    assert home_id

    # On a second machine, or after the home was lost: the backup says whose the databases are.
    second = tmp_path / "second"
    with pytest.raises(ConfigurationError, match="hold data"):
        rlhf(second, "restore", str(backup), **server)
    assert rlhf(second, "restore", str(backup), "--replace", **server).exit_code == 0
    assert facts_of(second).home_id == home_id
    assert numbers(second) == before

    # A backup from before homes had ids.
    older = Path(shutil.copytree(backup, tmp_path / "older"))
    without_id(older)
    with pytest.raises(
        StoreError, match=r"belong to another home of default/demo.*rlhf init --join"
    ):
        rlhf(tmp_path / "third", "restore", str(older), "--replace", **server)
    assert not (tmp_path / "third").exists()
    assert rlhf(second, "restore", str(older), "--replace").exit_code == 0
    assert facts_of(second).home_id == home_id
    # Killed after what was there had been set aside, and repeated.
    (second / "project.json").unlink()
    assert rlhf(second, "restore", str(older), "--replace", **server).exit_code == 0
    assert facts_of(second).home_id == home_id
    fresh = {"RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": "fresh"}
    try:
        assert rlhf(tmp_path / "third", "restore", str(older), **fresh).exit_code == 0
        assert facts_of(tmp_path / "third").home_id not in (None, home_id)
        assert numbers(tmp_path / "third") == before
    finally:
        for kind in KINDS:
            postgres.drop_database(f"fresh_{kind}")


def without_id(backup: Path) -> None:
    """A backup as it was made before homes had ids."""
    facts_of(backup).model_copy(update={"home_id": None}).write(backup)
    content = (backup / "project.json").read_bytes()
    manifest = json.loads((backup / "manifest.json").read_text())
    manifest["files"]["project.json"] = [len(content), hashlib.sha256(content).hexdigest()]
    (backup / "manifest.json").write_text(json.dumps(manifest))


def test_a_replaced_home_is_checked_for_its_own_runs(home: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    assert rlhf(home, "backup", str(backup)).exit_code == 0
    other = tmp_path / "other"  # of a project that the backup does not know
    assert (
        rlhf(
            other, "import", "prompts", str(prompts_file(tmp_path)), "--project", "other"
        ).exit_code
        == 0
    )
    with Workspace(settings_of(other)).store as store:
        store.heartbeats.beat("run", pid=1, host="h", job="learning")
    with pytest.raises(ConfigurationError, match=r"1 runs are under way \(learning\)"):
        rlhf(other, "restore", str(backup), "--replace")


def prompts_file(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text('{"prompt": "Why is the sky blue?"}\n', encoding="utf-8")
    return file


def test_a_password_that_would_be_cut_is_refused_without_showing_it(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--to .*percent-encode") as refused:
        rlhf(home, "migrate", "--to", "postgresql://ann:hush/hash@db:5432")
    assert not any(part in str(refused.value) for part in ("hush", "hash"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://h", r"--to begins with mysql:.*write postgresql://"),
        ("", "No server is named|--to begins with no scheme"),
    ],
)
def test_a_server_that_is_none_is_refused(home: Path, url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        rlhf(home, "migrate", "--to", url)


def killed_half_way(home: Path, url: str, store_url: str) -> None:
    """A move that is killed as soon as the votes have arrived: MLflow and Dagster have not."""
    environ = os.environ | {"RLHF_HOME": str(home), "RLHF_DATABASE_PREFIX": "moved"}
    command = [str(Path(sys.executable).parent / "rlhf"), "migrate", "--to", url]
    moving = subprocess.Popen(
        command,
        env=environ,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (
        database_copy.has_tables(store_url)
        and database_copy.n_rows(store_url, {"votes"}).get("votes")
    ):
        assert moving.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(moving.pid, signal.SIGKILL)
    moving.wait()


def _assert_planner_knows_counts(postgres: PostgresServer, prefix: str) -> None:
    for kind, table in {"store": "votes", "dagster": "event_logs", "mlflow": "runs"}.items():
        url = postgres.database_url(f"{prefix}_{kind}")
        engine = database_copy.engine_of(url)
        with engine.connect() as connection:
            counted = connection.execute(
                text("SELECT reltuples FROM pg_class WHERE relname = :name"), {"name": table}
            ).scalar_one()
        engine.dispose()
        assert counted == database_copy.n_rows(url, {table})[table] > 0, f"{kind}.{table}"


def test_one_command_moves_a_home_to_postgres_with_equal_numbers(
    home: Path,
    used: Path,
    tmp_path: Path,
    postgres: PostgresServer,
    prefix: str,
    request: pytest.FixtureRequest,
) -> None:
    before = numbers(home)
    killed_half_way(home, postgres.url, postgres.database_url(f"{prefix}_store"))
    assert facts_of(home).server_url is None
    assert numbers(home) == before
    result = rlhf(home, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix)
    assert result.exit_code == 0, result.output
    request.getfixturevalue("dagster_in_process")  # the move had a process of its own
    assert "store.votes" in result.output
    assert "dagster.event_logs" in result.output
    assert numbers(home) == before
    _assert_planner_knows_counts(postgres, prefix)
    assert facts_of(home).server_url is not None
    assert "rlhf_pipeline" not in (home / "dagster" / "dagster.yaml").read_text()

    assert rlhf(home, "check").exit_code == 0
    again = rlhf(home, "migrate", "--to", postgres.url)
    assert "nothing to move" in again.output
    with pytest.raises(ConfigurationError, match=r"already\. To change servers"):
        rlhf(home, "migrate", "--to", "postgresql://elsewhere")
    # Another copy of the project does not overwrite what lies there.
    copy = Path(shutil.copytree(used, tmp_path / "copy"))
    with pytest.raises(StoreError, match=r"holds tables already.*Nothing was moved"):
        rlhf(copy, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix)

    # A process from before the move cannot write where nobody reads any more.
    with Store.open(f"sqlite:///{home}/store.db", organization="default", project="demo") as old:
        comparison = counting(old.votes.log([settings_of(home).start_day.isoformat()]))[
            "comparison_id"
        ].iloc[0]
        with pytest.raises(StoreError, match=r"moved to postgresql.*Restart this process"):
            old.votes.cast(late_vote(comparison))

    # Dagster's numbering goes on after the moved rows.
    settings = settings_of(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DAGSTER_URL, settings.dagster_environ[DAGSTER_URL])
        with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
            instance.report_runless_asset_event(
                dg.AssetMaterialization("votes_inbox", partition="2026-01-02")
            )
            assert "2026-01-02" in instance.get_materialized_partitions(dg.AssetKey("votes_inbox"))

    # And the backup of a home on Postgres goes to another server's databases.
    backup = tmp_path / "backup"
    moved = numbers(home)
    assert rlhf(home, "backup", str(backup)).exit_code == 0
    assert (
        json.loads((backup / "manifest.json").read_text())["databases"]["store"]["kind"]
        == "postgres"
    )
    with pytest.raises(ConfigurationError, match=r"this home uses sqlite\. Set RLHF_SERVER_URL"):
        rlhf(tmp_path / "new", "restore", str(backup))
    try:
        result = rlhf(
            tmp_path / "new",
            "restore",
            str(backup),
            RLHF_SERVER_URL=postgres.url,
            RLHF_DATABASE_PREFIX="restored",
        )
        assert result.exit_code == 0, result.output
        assert numbers(tmp_path / "new") == moved
        assert rlhf(tmp_path / "new", "check").exit_code == 0
    finally:
        for kind in KINDS:
            postgres.drop_database(f"restored_{kind}")
