"""A home is backed up, restored and checked whole; what is missing or damaged is named."""

import datetime
import hashlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.home import COLUMNS, Home, write_csv
from tests.once import build_once

N_VOTES = 200
WORDS = ("good", "bad", "sky", "stone", "river", "light", "dark", "slow", "kind", "rude", "true")


def live(home: Home) -> None:
    """A day of everything: collected comparisons, imported votes, a reward model."""
    home.environ["RLHF_COMPLETION_BACKEND"] = "template"
    home.run("run", "collection", "--set", "prompts.n=6")
    draw, day = random.Random(1), datetime.datetime.now(datetime.UTC).date()
    texts = [[" ".join(draw.choices(WORDS, k=12)) for _ in "ab"] for _ in range(N_VOTES)]
    comparisons = [(f"c{i}", f"prompt {i}", a, b) for i, (a, b) in enumerate(texts)]
    votes = [
        (f"c{i}", f"ann{i % 5}", "a" if taste(a) > taste(b) else "b", f"{day}T00:00:{i % 60:02}Z")
        for i, (a, b) in enumerate(texts)
    ]
    folder = home.path.parent
    home.take(write_csv(folder / "c.csv", COLUMNS, comparisons))
    header = ("source_pair_id", "annotator_id", "choice", "voted_at")
    home.take(write_csv(folder / "v.csv", header, votes))
    home.run("votes", "prepare")
    home.run("reward", "train")


def taste(text: str) -> int:
    return text.count("kind") + text.count("good") - text.count("rude")


@pytest.fixture(scope="session")
def lived(initialised: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a day of everything. Read only."""

    def build(folder: Path) -> None:
        folder.mkdir()
        live(Home(shutil.copytree(initialised, folder / "home")))

    return build_once(tmp_path_factory, "acceptance_lived", build) / "home"


@pytest.fixture
def used(lived: Path, tmp_path: Path) -> Home:
    """A home with a day of everything, of this test."""
    return Home(shutil.copytree(lived, tmp_path / "home"))


def digests(home: Home) -> dict[str, str]:
    """Of the files that a user cannot make again: frames, models and their registry's files."""
    return {
        path.relative_to(home.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("frames", "models", "mlflow/artifacts")
        for path in sorted((home.path / folder).rglob("*"))
        if path.is_file()
    }


def the_only(paths: object) -> Path:
    [path] = list(paths)  # type: ignore[call-overload]
    return Path(path)


def frame(home: Home, stage: str) -> Path:
    return the_only((home.path / "frames" / stage).glob("*.parquet"))


def model(home: Home) -> Path:
    """The weights of the registered reward model."""
    return the_only((home.path / "mlflow" / "artifacts").rglob("model.safetensors"))


def flip(path: Path) -> None:
    """Change one bit of a file, in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)


def removed_frame(home: Home) -> tuple[str, ...]:
    """Break the home; what the check calls it."""
    path = frame(home, "prompts")
    path.unlink()
    return "prompts", path.stem


def damaged_model_file(home: Home) -> tuple[str, ...]:
    flip(model(home))
    return ("reward_model@1",)


def test_a_sound_home_passes_the_check(used: Home) -> None:
    printed = used.run("check")
    assert frame(used, "prompts").stem not in printed, "only what is damaged is named"
    used.run("audit", "verify")


def test_a_restored_backup_equals_the_home(used: Home, tmp_path: Path) -> None:
    used.run("backup", tmp_path / "backup")
    shutil.move(used.path, tmp_path / "lost")
    used.run("restore", tmp_path / "backup")
    lost = Home(tmp_path / "lost")
    assert digests(used) == digests(lost) != {}
    assert used.export("votes") == lost.export("votes")
    assert len(used.export("votes")) == N_VOTES
    assert used.export("comparisons") == lost.export("comparisons")
    assert used.run("models", "list") == lost.run("models", "list")
    used.run("check")


def test_restore_does_not_replace_a_home_with_data(used: Home, tmp_path: Path) -> None:
    used.run("backup", tmp_path / "backup")
    before = digests(used)
    used.run("restore", tmp_path / "backup", code=1)
    assert digests(used) == before
    assert len(used.export("votes")) == N_VOTES


@pytest.mark.parametrize("damage", [removed_frame, damaged_model_file])
def test_check_names_removed_and_damaged_files(
    used: Home, damage: Callable[[Home], tuple[str, ...]]
) -> None:
    named = damage(used)
    printed = used.run("check", code=1)
    assert [name for name in named if name not in printed] == []


def test_the_check_names_a_damaged_database(used: Home) -> None:
    with closing(sqlite3.connect(used.path / "store.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store = used.path / "store.db"
    content = bytearray(store.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = random.Random(1).randbytes(8192)
    store.write_bytes(content)
    assert "store.db" in used.run("check", code=1)


def test_a_changed_vote_is_named(used: Home) -> None:
    with closing(sqlite3.connect(used.path / "store.db")) as database:
        sql = "SELECT vote_id FROM votes ORDER BY seq LIMIT 1 OFFSET 100"
        [[vote_id]] = database.execute(sql)
        # As somebody with the file would: triggers that forbid it are dropped first.
        guards = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for [name] in guards.fetchall():
            database.execute(f'DROP TRIGGER "{name}"')
        changed = database.execute(
            "UPDATE votes SET choice = CASE choice WHEN 'a' THEN 'b' ELSE 'a' END "
            "WHERE vote_id = ?",
            [vote_id],
        )
        assert changed.rowcount == 1
        database.commit()
    assert vote_id in used.run("audit", "verify", code=1)
    used.run("check", code=1)


def test_a_damaged_backup_is_named_when_it_is_restored(used: Home, tmp_path: Path) -> None:
    used.run("backup", tmp_path / "backup")
    weights = the_only((tmp_path / "backup" / "mlflow").rglob("model.safetensors"))
    flip(weights)
    other = Home(tmp_path / "other")
    assert weights.name in other.run("restore", tmp_path / "backup", code=1)


def test_an_older_copy_of_the_store_is_refused(used: Home, initialised: Path) -> None:
    """Votes must not vanish in silence: the home knows how many there were."""
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (used.path / name).unlink(missing_ok=True)
    shutil.copy(initialised / "store.db", used.path / "store.db")
    assert "rlhf restore" in used.run("status", code=1)
    assert "rlhf restore" in used.run("check", code=1)
