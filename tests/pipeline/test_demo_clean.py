"""`make demo-clean`: a home goes with its databases, on a Postgres server too; nobody else's do,
nor what people voted or imported.
"""

import re
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
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.frames import COMPARISONS, check_frame
from rlhf_pipeline.records import NewVote, utc_now
from rlhf_pipeline.store import Store, database_copy
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
    workspace = Workspace(
        Settings(
            home=tmp_path / "a home", server_url=SecretStr(postgres.url), database_prefix=prefix
        )
    )
    claim(workspace)
    workspace.store.close()
    return workspace.settings.home


@pytest.fixture(params=["SQLite", "Postgres"])
def claimed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A demo's home before its first day, on either."""
    if request.param == "Postgres":
        return request.getfixturevalue("home")
    workspace = Workspace(Settings(home=tmp_path / "a home"))
    claim(workspace)
    workspace.store.close()
    return workspace.settings.home


def fill(home: Path, **cells: str) -> Store:
    """One comparison in the home's store, which is still open."""
    texts = (
        "comparison_id",
        "prompt_id",
        "prompt",
        "completion_a_id",
        "completion_b_id",
        "completion_a",
        "completion_b",
    )
    row = {name: name for name in (*texts, "model_version_a", "model_version_b")}
    row |= {
        "day": "2026-01-01",
        "category": "factual",
        "repeat_of": None,
        "position": 0,
        "seed": 7,
        **cells,
    }
    store = Workspace(Settings.read({"RLHF_HOME": str(home)}, home)).store
    store.comparisons.publish(check_frame(pd.DataFrame([row]), COMPARISONS), published_at=utc_now())
    return store


def vote(home: Path, kind: str) -> None:
    with fill(home) as store:
        store.votes.cast(
            NewVote(
                comparison_id="comparison_id",
                annotator_id="ann",
                annotator_kind=kind,
                choice="a",
                voted_at=utc_now(),
                origin="page",
                idempotency_key="1",
            )
        )


def there(postgres: PostgresServer, prefix: str) -> list[str]:
    """Kinds of the databases that hold tables."""
    return [
        kind
        for kind in KINDS
        if database_copy.has_tables(postgres.database_url(f"{prefix}_{kind}"))
    ]


def clean(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "demo-clean", f"RLHF_HOME={home}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_databases_go_with_the_home(home: Path, postgres: PostgresServer, prefix: str) -> None:
    assert there(postgres, prefix) == ["store"]
    done = clean(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{prefix}_store" in done.stdout
    assert not home.exists()
    assert there(postgres, prefix) == []
    assert QUOTED_PASSWORD not in done.stdout + done.stderr


def test_nothing_is_deleted_while_a_client_is_connected(
    home: Path, postgres: PostgresServer, prefix: str
) -> None:
    engine = database_copy.engine_of(postgres.database_url(f"{prefix}_store"))
    with engine.connect():
        done = clean(home)
    engine.dispose()
    assert done.returncode != 0
    assert "Stop the daemon" in done.stderr
    assert home.exists()
    assert there(postgres, prefix) == ["store"]


def test_votes_of_people_are_not_deleted(claimed: Path) -> None:
    vote(claimed, "human")
    done = clean(claimed)
    assert done.returncode != 0
    assert re.search(
        r"human votes, which cannot be made again: nothing deleted.*rlhf backup",
        done.stderr,
    )
    with Workspace(Settings.read({"RLHF_HOME": str(claimed)}, claimed)).store as store:
        assert store.votes.count() == 1


def test_imported_comparisons_are_not_deleted(claimed: Path) -> None:
    fill(claimed, source="a file").close()
    with pytest.raises(
        ConfigurationError,
        match=r"hold.* imported comparisons, which.*nothing deleted.*rlhf backup",
    ):
        CliRunner().invoke(
            app, ["demo", "--clean"], env={"RLHF_HOME": str(claimed)}, catch_exceptions=False
        )
    assert claimed.exists()


def test_simulated_votes_are(claimed: Path) -> None:
    vote(claimed, "simulated")
    assert clean(claimed).returncode == 0
    assert not claimed.exists()


def test_a_store_that_cannot_be_asked_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("damaged, perhaps with votes")
    (tmp_path / "demo_state.json").write_text("{}")
    with pytest.raises(
        ConfigurationError, match=r"Cannot read whether .*: nothing deleted.*delete .* yourself"
    ):
        CliRunner().invoke(
            app, ["demo", "--clean"], env={"RLHF_HOME": str(tmp_path)}, catch_exceptions=False
        )
    assert (tmp_path / "store.db").exists()


def test_files_that_the_demo_did_not_make_are_kept(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    with pytest.raises(ConfigurationError, match=r"was not made by the demo: nothing deleted"):
        CliRunner().invoke(
            app, ["demo", "--clean"], env={"RLHF_HOME": str(tmp_path)}, catch_exceptions=False
        )
    assert (tmp_path / "precious").exists()
