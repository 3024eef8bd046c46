"""`rlhf check` names what is missing or damaged, with its cure, and changes nothing."""

import hashlib
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.check import find_faults
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import Store
from tests.used_home import DAY, damage_page, edit, flip, used_home, votes


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return used_home(tmp_path_factory.mktemp("checked"))


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of it, whose paths did not follow yet."""
    return Path(shutil.copytree(used, tmp_path / "home"))


def tree(home: Path) -> dict[str, str]:
    return {
        str(p.relative_to(home)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in home.rglob("*")
        if not p.name.endswith("-shm")  # memory that readers of a log share
    }


def settings_of(home: Path) -> Settings:
    return Settings.read({"RLHF_HOME": str(home)}, home)


def faults(home: Path) -> str:
    return " ".join(
        f"{what}: {fault}"
        for what, descriptions in find_faults(settings_of(home))
        for fault in descriptions
    )


def check(home: Path) -> Result:
    environ = {"RLHF_HOME": str(home), "COLUMNS": "200"}
    return CliRunner().invoke(app, ["check"], env=environ, catch_exceptions=False)


def test_check_of_a_sound_home_changes_nothing(home: Path) -> None:
    before = tree(home)
    result = check(home)
    assert result.exit_code == 0, result.output
    assert "sound" in result.output
    assert tree(home) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def empty_store(path: Path) -> None:
    """A valid file of SQLite without tables."""
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("VACUUM")


FRAME = f"frames/votes/{DAY}.parquet"
DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "flipped page": (FRAME, lambda path: flip(path, 60), "Cannot read"),
    "cut frame": (FRAME, cut, "Materialise votes again"),
    "folder": (FRAME, lambda path: (path.unlink(), path.mkdir()), "Move it away"),
    "record": ("frames/candidate_model.json", lambda path: path.write_text("{}"), "Materialise"),
    "window": (
        "models/reference/demo.policy-1/embeddings.npy",
        lambda path: flip(path, -3),
        "was changed since it was written",
    ),
    "store": ("store.db", damage_page, "is damaged"),
    "mlflow": ("mlflow/mlflow.db", damage_page, "is damaged"),
    "emptied store": ("store.db", empty_store, "has no tables. Restore"),
    "annotator model": (
        "frames/annotator_model/all_votes.parquet",
        lambda path: (path.parent.mkdir(), path.write_bytes(b"PAR1")),
        "Materialise annotator_model again",
    ),
    "lost store": ("store.db", Path.unlink, "is missing"),
    "lost registry": ("mlflow/mlflow.db", Path.unlink, "is missing"),
    "lost project": ("project.json", Path.unlink, "is missing"),
}


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_named(
    home: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    damage(home / name)
    report = faults(home)
    assert (home / name).name in report or (home / name).parent.name in report
    assert message in report
    assert check(home).exit_code == 1


class FastClock:
    """Runs two years ahead."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=730)


def test_votes_from_a_fast_clock_are_named(home: Path) -> None:
    settings = settings_of(home)
    with Store.open(settings.store_url, clock=FastClock()) as store:
        published = store.comparisons.for_days([DAY])
        late = votes(published)[0].model_copy(
            update={"annotator_id": "bob", "idempotency_key": "late", "voted_at": FastClock().now()}
        )
        vote = store.votes.cast(late)
    report = faults(home)
    assert f"1 vote with a time in the future (seq {vote.seq})" in report
    assert "page Data quality" in report


def test_store_of_another_commit_is_refused(home: Path) -> None:
    edit(home, "UPDATE alembic_version SET version_num = '0020'")
    assert "has the tables of another commit (schema 0020" in faults(home)
