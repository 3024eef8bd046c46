"""One small day and a reward model, with store, history and MLflow on a Postgres server named
by one URL.
"""

from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import DAGSTER_URL, Settings
from tests.postgres import QUOTED_PASSWORD, PostgresServer


@pytest.fixture
def prefix(postgres: PostgresServer) -> Iterator[str]:
    yield "small"
    for kind in ("store", "dagster", "mlflow"):
        postgres.drop_database(f"small_{kind}")


def test_day_runs_on_one_postgres_server(
    make_project: Callable, postgres: PostgresServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"server_url": SecretStr(postgres.url), "database_prefix": prefix}
    monkeypatch.setenv(DAGSTER_URL, Settings(**where).dagster_environ[DAGSTER_URL])
    project = make_project(persistent=True, completion_backend="template", **where)
    day = project.day(0)
    project.collect(day, n=24)
    project.vote(day)
    project.run("feedback", day)
    project.run("learning", config={"ops": {"calibration": {"config": {"min_pairs": 10}}}})

    home = project.settings.home
    assert project.store.votes.count() > 0
    assert project.store.audit.verify() > 0
    assert project.instance.get_runs_count() == 4
    assert project.registry.get("reward_model", "champion") is not None
    assert len(project.registry.latest_runs(50)) >= 3
    assert "postgresql" in project.store.database.where
    assert [str(path) for path in home.rglob("*.db")] == []
    # What Dagster's UI shows of its own configuration.
    assert (
        QUOTED_PASSWORD
        not in (home / "dagster" / "dagster.yaml").read_text() + project.instance.info_str()
    )
    # A later command in this home needs no URL.
    assert Settings.read({"RLHF_HOME": str(home)}, home).store_url == project.settings.store_url
