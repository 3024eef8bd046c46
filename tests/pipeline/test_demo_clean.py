"""`make demo-clean` on a home whose databases lie on a Postgres server: they go with the home, and nobody else's do."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.demo import claim
from rlhf_pipeline.config import HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.frames import COMPARISONS, check_frame
from rlhf_pipeline.records import NewVote, utc_now
from rlhf_pipeline.store import copying
from tests.postgres import QUOTED_PASSWORD, PostgresServer

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("store", "dagster", "mlflow")


@pytest.fixture
def prefix(postgres: PostgresServer) -> Iterator[str]:
    yield "demoed"
    for kind in KINDS:
        postgres.drop_database(f"demoed_{kind}")


@pytest.fixture
def home(tmp_path: Path, postgres: PostgresServer, prefix: str) -> Path:
    """A demo's home before its first day, with its databases on the server."""
    workspace = Workspace(Settings(home=tmp_path / "a home", server_url=SecretStr(postgres.url), database_prefix=prefix))
    claim(workspace)
    workspace.store.close()
    return workspace.settings.home


def there(postgres: PostgresServer, prefix: str) -> list[str]:
    """Kinds of the databases that hold tables."""
    return [kind for kind in KINDS if copying.has_tables(postgres.database_url(f"{prefix}_{kind}"))]


def clean(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "demo-clean", f"RLHF_HOME={home}"], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_databases_go_with_the_home(home: Path, postgres: PostgresServer, prefix: str) -> None:
    assert there(postgres, prefix) == ["store"]
    done = clean(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"dropped the databases {prefix}_store" in done.stdout
    assert not home.exists()
    assert there(postgres, prefix) == []
    assert QUOTED_PASSWORD not in done.stdout + done.stderr


def test_a_home_that_was_moved_loses_both(home: Path, postgres: PostgresServer, prefix: str) -> None:
    (home / "store.db").write_text("what the move left")
    assert clean(home).returncode == 0
    assert not home.exists()
    assert there(postgres, prefix) == []


def test_while_somebody_is_connected_nothing_goes(home: Path, postgres: PostgresServer, prefix: str) -> None:
    engine = copying.engine_of(postgres.database_url(f"{prefix}_store"))
    with engine.connect():
        done = clean(home)
    engine.dispose()
    assert done.returncode != 0
    assert "Stop the daemon" in done.stderr
    assert home.exists()
    assert there(postgres, prefix) == ["store"]


def test_votes_of_people_are_not_dropped(home: Path, postgres: PostgresServer, prefix: str) -> None:
    texts = ("comparison_id", "prompt_id", "prompt", "completion_a_id", "completion_b_id", "completion_a", "completion_b")
    row = {name: name for name in (*texts, "model_version_a", "model_version_b")}
    row |= {"day": "2026-01-01", "category": "factual", "position": 0, "seed": 7}
    with Workspace(Settings.read({"RLHF_HOME": str(home)}, home)).store as store:
        frame = check_frame(pd.DataFrame([row], columns=list(COMPARISONS.columns)), COMPARISONS)
        store.comparisons.publish(frame, published_at=utc_now())
        store.votes.cast(
            NewVote(comparison_id="comparison_id", annotator_id="ann", annotator_kind="human", choice="a", voted_at=utc_now(), origin="page",
                    idempotency_key="1")
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"hold human votes.*nothing deleted.*rlhf storage backup"):
        CliRunner().invoke(app, ["demo", "--clean"], env={"RLHF_HOME": str(home)}, catch_exceptions=False)
    assert home.exists()


def test_a_server_that_only_a_setting_names_is_left_alone(tmp_path: Path, home: Path, postgres: PostgresServer, prefix: str) -> None:
    other = tmp_path / "on sqlite"
    claim(Workspace(Settings(home=other)))
    environ = {"RLHF_HOME": str(other), "RLHF_SERVER_URL": postgres.url, "RLHF_DATABASE_PREFIX": prefix}
    CliRunner().invoke(app, ["demo", "--clean"], env=environ, catch_exceptions=False)
    assert not other.exists()
    assert there(postgres, prefix) == ["store"]


def test_another_projects_databases_stay(home: Path, postgres: PostgresServer, prefix: str) -> None:
    HomeFacts(organization="default", project="other", server_url=SecretStr(postgres.url), database_prefix=prefix).write(home)
    with pytest.raises(StoreError, match=r"bear no mark of default/other"):
        CliRunner().invoke(app, ["demo", "--clean"], env={"RLHF_HOME": str(home)}, catch_exceptions=False)
    assert home.exists()
    assert there(postgres, prefix) == ["store"]


def test_what_the_demo_did_not_make_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    with pytest.raises(ConfigurationError, match=r"was not made by the demo: nothing deleted"):
        CliRunner().invoke(app, ["demo", "--clean"], env={"RLHF_HOME": str(tmp_path)}, catch_exceptions=False)
    assert (tmp_path / "precious").exists()
