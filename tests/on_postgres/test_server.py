"""The databases on a Postgres server: made once, by whoever may, for one project, and every refusal
said without the password.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store, database_copy, homes
from rlhf_pipeline.store.server import ServerDatabases
from tests.postgres import QUOTED_PASSWORD, PostgresServer


@pytest.fixture
def prefix(postgres: PostgresServer, request: pytest.FixtureRequest):
    """Of names that no other test uses; its databases are dropped afterwards."""
    name = f"t{abs(hash(request.node.nodeid)):x}"[:20]
    yield name
    for database in databases(postgres.url, name).names:
        postgres.drop_database(database)


def databases(url: str, prefix: str, project: str = "org's: 100%/demo") -> ServerDatabases:
    return ServerDatabases(url, prefix, project)


def test_three_databases_are_created_once(postgres, prefix):
    mine = databases(postgres.url, prefix)
    assert mine.make() == [f"{prefix}_store", f"{prefix}_dagster", f"{prefix}_mlflow"]
    assert mine.make() == []


def test_concurrent_creation_succeeds(postgres, prefix):
    with ThreadPoolExecutor(4) as pool:
        names_made = list(pool.map(lambda _: databases(postgres.url, prefix).make(), range(4)))
    assert sorted(len(names) for names in names_made) == [0, 0, 0, 3]


def test_postgres_sorts_text_like_sqlite(postgres, prefix):
    databases(postgres.url, prefix).make()
    url = postgres.database_url(f"{prefix}_store")
    with database_copy.open_engine(url) as engine, engine.connect() as connection:
        assert connection.execute(text("SELECT 'a' > 'B' AND 'é' > 'z'")).scalar_one()


def test_databases_of_another_project_are_not_shared(postgres, prefix):
    databases(postgres.url, prefix).make()
    with pytest.raises(StoreError, match=r"belong to rlhf org's: 100%/demo.*RLHF_DATABASE_PREFIX"):
        databases(postgres.url, prefix, "other").make()


def test_a_user_without_createdb_gets_instructions(postgres, prefix):
    postgres.execute(f"CREATE ROLE {prefix} LOGIN PASSWORD 'x'")
    humble = f"postgresql://{prefix}:x@127.0.0.1:{postgres.port}"
    with pytest.raises(StoreError, match=r"permission denied to create database.*CREATEDB"):
        databases(humble, prefix).make()
    databases(postgres.url, prefix).make()
    assert databases(humble, prefix).make() == []  # made by somebody else: that will do
    postgres.execute(f"DROP ROLE {prefix}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((QUOTED_PASSWORD, "w0ng"), "password authentication failed.*Correct them in the URL"),
        (("rlhf:", "nobody:"), "password authentication failed"),
        ((f":{QUOTED_PASSWORD}", ""), "no password supplied"),
        (("127.0.0.1", "no.such.host.invalid"), "does not answer"),
    ],
)
def test_refusing_server_is_named_without_the_password(postgres, change, why):
    url = postgres.url.replace(*change)
    with pytest.raises(StoreError, match=why) as refusal:
        databases(url, "never").make()
    assert QUOTED_PASSWORD not in str(refusal.value)
    assert "w0ng" not in str(refusal.value)


def test_an_unreachable_server_is_reported():
    with pytest.raises(StoreError, match=r"rlhf:\*\*\*@127\.0\.0\.1:9.*does not answer"):
        databases("postgresql://rlhf:hush@127.0.0.1:9", "never").make()


def test_a_store_without_its_database_asks_to_be_initialised(postgres):
    with (
        Store.open(postgres.database_url("nothing_here")) as store,
        pytest.raises(StoreError, match=r"does not exist.*`rlhf init` makes"),
    ):
        store.votes.count()


def test_bare_url_uses_the_installed_driver(postgres, migrated_postgres_url):
    bare = migrated_postgres_url.replace("+psycopg2", "")
    with Store.open(bare) as store:
        assert store.votes.count() == 0


def test_test_server_files_are_outside_the_checkout(postgres):
    assert not postgres.folder.is_relative_to(Path(__file__).parents[3])


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("rlhf:wrong", "refused name or password"),
        ("nobody:wrong", "refused name or password"),
        (f"rlhf:{QUOTED_PASSWORD}", "create it with `createdb`"),
    ],
)
def test_refusing_database_is_named_at_once(postgres, tmp_path, user, why):
    url = f"postgresql://{user}@127.0.0.1:{postgres.port}/missing"
    began = time.monotonic()
    with Store.open(url) as store, pytest.raises(StoreError, match=why) as refused:
        store.migrate()
    assert user not in str(refused.value)
    settings = Settings.read({"RLHF_MLFLOW_URL": url}, tmp_path)
    with pytest.raises(StoreError, match=f"of MLflow.*{why}"):
        homes.refuse_broken(settings)
    assert time.monotonic() - began < 10
