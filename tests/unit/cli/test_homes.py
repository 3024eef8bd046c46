"""What a home knows of itself, and whose it is: written by every `rlhf init`, found out for homes
that are older.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import Store, homes
from tests.postgres import QUOTED_PASSWORD, PostgresServer


def prepared(home: Path, **settings: object) -> Settings:
    """A home without models, which is all that `rlhf import` needs."""
    chosen = Settings(home=home, **settings)
    prepare(Workspace(chosen))
    return chosen


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[dict[str, object]]:
    yield {"server_url": SecretStr(postgres.url), "database_prefix": "shared"}
    for kind in ("store", "dagster", "mlflow"):
        postgres.drop_database(f"shared_{kind}")


def test_a_home_on_sqlite_knows_its_project(tmp_path):
    prepared(tmp_path, project="mine")
    facts = HomeFacts.load(tmp_path)
    assert facts is not None
    assert facts == HomeFacts(project="mine")
    prepared(tmp_path, project="mine")
    assert HomeFacts.load(tmp_path) == facts
    assert "storage:" not in (tmp_path / "dagster" / "dagster.yaml").read_text()


def test_a_home_on_a_server_remembers_it_and_shows_no_password(tmp_path, postgres: PostgresServer):
    server = {"server_url": SecretStr(postgres.url), "database_prefix": "homes"}
    try:
        prepared(tmp_path, **server)
        config = (tmp_path / "dagster" / "dagster.yaml").read_text()
        assert "env: RLHF_DAGSTER_URL" in config
        assert QUOTED_PASSWORD not in config
        later = Settings.read({"RLHF_HOME": str(tmp_path)}, tmp_path)
        with Workspace(later).store as store:
            assert store.votes.count() == 0
            assert "homes_store" in store.database.where
    finally:
        for kind in ("store", "dagster", "mlflow"):
            postgres.drop_database(f"homes_{kind}")


def test_home_on_sqlite_does_not_open_the_databases_of_a_server(tmp_path, server):
    """Its environment names the server, but it was never initialised there."""
    prepared(tmp_path / "a", **server)
    prepared(tmp_path / "b")
    for act in (lambda: prepared(tmp_path / "b", **server), lambda: opened(tmp_path / "b", server)):
        with pytest.raises(ConfigurationError, match=r"its rows in SQLite.*rlhf migrate --to"):
            act()
    with opened(tmp_path / "a", server) as store:
        assert store.votes.count() == 0


def test_older_server_database_is_not_blamed_on_a_sqlite_log(tmp_path, server):
    prepared(tmp_path, **server)
    HomeFacts.change(tmp_path, audit_seq=10**6)
    with pytest.raises(ConfigurationError, match=r"lost rows.*older copy.*rlhf restore") as raised:
        homes.refuse_broken(Settings(home=tmp_path, **server))
    assert "wal" not in str(raised.value)


def opened(home: Path, server: dict[str, object]) -> Store:
    return Workspace(Settings(home=home, **server)).store
