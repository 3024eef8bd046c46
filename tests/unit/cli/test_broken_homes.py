"""A home that lost its store, its registry or its facts is refused by every command, with the
cure.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.demo import claim
from rlhf_pipeline.core.config import HOME_FACTS, HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import homes
from rlhf_pipeline.web.app import create_app
from tests.learnt_home import NOON, comparisons
from tests.unit.cli.conftest import Rlhf

# What opens a home in another way each: the store, a run, models, the pages, a new project.
COMMANDS = (("users", "list"), ("run", "collection"), ("models", "list"), ("serve",), ("init",))


def lose_store(home: Path) -> None:
    for path in home.glob("store.db*"):
        path.unlink()


def lose_registry(home: Path) -> None:
    for path in (home / "mlflow").glob("mlflow.db*"):
        path.unlink()


def lose_facts(home: Path) -> None:
    (home / HOME_FACTS).unlink()


def lose_facts_and_store(home: Path) -> None:
    lose_facts(home)
    lose_store(home)


LOSSES: list[tuple[Callable[[Path], None], str]] = [
    (lose_store, r"The store of .* is missing.*rlhf restore"),
    (lose_registry, r"MLflow's database of .* is missing.*rlhf restore"),
    (lose_facts, r"its project.json is gone.*rlhf init"),
    (lose_facts_and_store, r"its project.json and store.db are gone.*rlhf restore"),
]


@pytest.fixture
def home(initialised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(initialised, tmp_path / "home"))


def names(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


@pytest.mark.parametrize(
    ("lose", "refusal"), LOSSES, ids=lambda value: getattr(value, "__name__", "")
)
def test_broken_home_is_refused(
    rlhf: Rlhf, home: Path, lose: Callable[[Path], None], refusal: str
) -> None:
    lose(home)
    left = names(home)
    for command in COMMANDS:
        if (command, lose) != (("init",), lose_facts):  # which writes them anew
            with pytest.raises(ConfigurationError, match=refusal):
                rlhf(*command, home=home)
    with pytest.raises(ConfigurationError, match=refusal):
        create_app(Settings(home=home))
    assert names(home) <= left


@pytest.mark.parametrize("url", ["databricks", "http://127.0.0.1:9"])
def test_remote_registry_is_not_queried(home: Path, url: str) -> None:
    homes.refuse_broken(Settings(home=home, mlflow_url=url))


def test_init_rewrites_missing_facts_from_the_store(rlhf: Rlhf, home: Path) -> None:
    workspace = Workspace(Settings(home=home))
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    homes.record_end(workspace.settings, workspace.store.database)
    HomeFacts.change(home, start_day=NOON.date())
    workspace.store.close()
    before = HomeFacts.load(home)
    assert before is not None
    assert before.audit_seq > 0
    lose_facts(home)
    assert rlhf("init", home=home).exit_code == 0
    after = HomeFacts.load(home)
    assert after is not None
    assert after == before
    assert rlhf("models", "list", home=home).exit_code == 0


def test_missing_log_is_skipped_while_databases_are_made_private(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch(0o644)
    (tmp_path / "store.db-wal").symlink_to(tmp_path / "gone")
    homes.keep_private(tmp_path)
    assert (tmp_path / "store.db").stat().st_mode & 0o077 == 0


def test_new_folder_passes(tmp_path: Path) -> None:
    homes.refuse_broken(Settings(home=tmp_path / "new"))
    (tmp_path / "prompts").mkdir()
    homes.refuse_broken(Settings(home=tmp_path))
    assert names(tmp_path) == {"prompts"}


def test_home_of_another_user_is_refused(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"belongs to user .*runs as 12345.*sudo -u"):
        homes.refuse_foreign(home, uid=12345)


def test_demo_without_its_state_is_refused(home: Path) -> None:
    workspace = Workspace(Settings(home=home))
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    with pytest.raises(
        ConfigurationError, match=r"holds 3 comparisons, but demo_state.json.* is missing.*backup"
    ):
        claim(workspace)
    assert not workspace.settings.demo_state.exists()
