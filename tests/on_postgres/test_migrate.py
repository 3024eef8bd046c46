"""A home moves to a Postgres server, is backed up from there and restored, and is joined."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError, StoreError
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store, integrity
from tests.postgres import QUOTED_PASSWORD, PostgresServer
from tests.unit.cli.test_backup import rlhf, rows
from tests.used_home import DAY, N, edit, used_home, votes, weights_of


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return used_home(tmp_path_factory.mktemp("used"))


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(used, tmp_path / "home"))


@pytest.fixture
def prefix(postgres: PostgresServer) -> Iterator[str]:
    yield "moved"
    for name in ("moved", "second"):
        for kind in ("store", "dagster", "mlflow"):
            postgres.drop_database(f"{name}_{kind}")


@pytest.fixture
def moved(home: Path, postgres: PostgresServer, prefix: str) -> Path:
    done = rlhf(home, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix)
    assert done.exit_code == 0, done.output
    assert "Dagster's history of runs stays" in " ".join(done.output.split())
    assert QUOTED_PASSWORD not in done.output
    return home


def new_vote(store: Store) -> NewVote:
    late = votes(store.comparisons.for_days([DAY]))[0]
    return late.model_copy(update={"annotator_id": "b", "idempotency_key": "b"})


def rows_there(url: str) -> dict[str, int]:
    engine = create_engine(url)
    tables = MetaData()
    with engine.connect() as connection:
        tables.reflect(connection)
        n_rows = {t.name: len(connection.execute(select(t)).all()) for t in tables.sorted_tables}
    engine.dispose()
    return n_rows


def test_moved_home_has_every_row_and_continues(
    moved: Path, used: Path, postgres: PostgresServer
) -> None:
    for kind, file in (("store", "store.db"), ("mlflow", "mlflow/mlflow.db")):
        there = rows_there(postgres.database_url(f"moved_{kind}"))
        here = {table: len(table_rows) for table, table_rows in rows(used / file).items()}
        assert there == {table: n for table, n in here.items() if not table.startswith("sqlite_")}
    settings = Settings.read({"RLHF_HOME": str(moved)}, moved)
    with Workspace(settings).store as store, Store.of_home(Settings(home=used)) as before:
        assert store.votes.log().equals(before.votes.log())
        with store.database.read_transaction() as connection:
            assert integrity.find_orphans(connection) == []
        late = votes(store.comparisons.for_days([DAY]))[0]
        vote = store.votes.cast(
            late.model_copy(update={"annotator_id": "b", "idempotency_key": "b"})
        )
        assert vote.seq == 2 * N + 1
    assert rlhf(moved, "check").exit_code == 0, rlhf(moved, "check").output
    assert "champion" in rlhf(moved, "models", "list").output


def test_sqlite_files_of_a_moved_home_refuse_new_votes(moved: Path) -> None:
    with Store.of_home(Settings(home=moved)) as left:
        vote = new_vote(left)
        with pytest.raises(StoreError, match=r"was moved to .*moved_store.*rows are there now"):
            left.votes.cast(vote)


def test_move_is_refused_into_rows_and_from_a_server(
    moved: Path, used: Path, tmp_path: Path, postgres: PostgresServer
) -> None:
    with pytest.raises(ConfigurationError, match="does not keep its rows in its own SQLite files"):
        rlhf(moved, "migrate", "--to", postgres.url)
    other = Path(shutil.copytree(used, tmp_path / "other"))
    with pytest.raises(ConfigurationError, match=r"holds rows already\. Nothing was moved"):
        rlhf(other, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX="moved")
    assert rlhf(other, "check").exit_code == 0


def test_move_that_fails_leaves_the_home_as_it_was(
    home: Path, postgres: PostgresServer, prefix: str
) -> None:
    edit(home, "UPDATE comparisons SET prompt = 'a' || char(0) || 'b'")
    before = (home / "project.json").read_bytes()
    with pytest.raises((StoreError, ValueError), match="NUL"):
        rlhf(home, "migrate", "--to", postgres.url, RLHF_DATABASE_PREFIX=prefix)
    assert (home / "project.json").read_bytes() == before
    with Store.of_home(Settings(home=home)) as store:
        store.votes.cast(new_vote(store))


def test_backup_of_a_server_is_restored_into_another_prefix(
    moved: Path, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # client programs of the server's own version
    monkeypatch.setenv("PATH", f"{postgres.binaries}{os.pathsep}{os.environ['PATH']}")
    done = rlhf(moved, "backup", str(tmp_path / "backup"))
    assert done.exit_code == 0, done.output
    second = {"RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": "second"}
    restored = rlhf(tmp_path / "second", "restore", str(tmp_path / "backup"), **second)
    assert restored.exit_code == 0, restored.output
    store, copy = (
        rows_there(postgres.database_url(f"{name}_store")) for name in ("moved", "second")
    )
    assert store == copy
    assert rlhf(tmp_path / "second", "check").exit_code == 0
    weights = weights_of(tmp_path / "second")
    assert weights.read_bytes() == weights_of(moved).read_bytes()
    with pytest.raises(ConfigurationError, match=r"taken of Postgres.*set RLHF_SERVER_URL"):
        rlhf(tmp_path / "third", "restore", str(tmp_path / "backup"))


def test_second_machine_joins(moved: Path, tmp_path: Path, postgres: PostgresServer) -> None:
    server = {"RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": "moved"}
    joined = Path(shutil.copytree(moved, tmp_path / "joined"))
    (joined / "project.json").unlink()
    (joined / "store.db").unlink()
    with pytest.raises(ConfigurationError, match=r"belong to another home.*rlhf init --join"):
        rlhf(joined, "init", **server)
    assert rlhf(joined, "init", "--join", **server).exit_code == 0
    assert "champion" in rlhf(joined, "models", "list").output
    with pytest.raises(StoreError, match="belong to rlhf demo, not to rlhf other"):
        rlhf(tmp_path / "c", "init", "--join", RLHF_PROJECT="other", **server)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((QUOTED_PASSWORD, "w0ng"), "refused name or password.*Correct them in the URL"),
        (("postgresql://", "mysql://"), "write postgresql://user:password@host:port"),
        (("postgresql://", ""), "write postgresql://user:password@host:port"),
    ],
)
def test_url_that_cannot_be_used_is_named_with_its_cure(
    home: Path, postgres: PostgresServer, change: tuple[str, str], message: str
) -> None:
    result = CliRunner().invoke(
        app, ["migrate", "--to", postgres.url.replace(*change)], env={"RLHF_HOME": str(home)}
    )
    assert isinstance(result.exception, (StoreError, ConfigurationError))
    assert "w0ng" not in str(result.exception)
    assert re.search(message, str(result.exception))
