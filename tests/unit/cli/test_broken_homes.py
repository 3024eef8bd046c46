"""A home that lost its store, its registry or its facts is refused by every command, with the
cure.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from enum import EnumType
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from rlhf_pipeline.cli import COMMANDS, load_command
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.demo import claim
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import HOME_FACTS, HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.store import homes
from rlhf_pipeline.web.app import create_app
from tests.learnt_home import NOON, comparisons
from tests.unit.cli.conftest import Rlhf

# Those that need no home, or put one back.
PASSED = (
    ("keys", "new"),
    ("keys", "seal"),
    ("lab", "run"),
    ("lab", "suite"),
    ("prompts", "sources"),
    ("backup",),
    ("check",),
    ("restore",),
)


def every_command() -> Iterator[tuple[str, ...]]:
    """Every command of `rlhf` but PASSED, with "1" for each number, text or file that it needs, and
    the first of each choice.
    """
    for path, command in itertools.chain.from_iterable(
        leaves(load_command(name), (name,)) for name in COMMANDS
    ):
        needed = [param for param in command.params if param.required]
        values = [
            [*param.opts[: param.param_type_name == "option"], value_for(param)] for param in needed
        ]
        if path not in PASSED:
            yield (*path, *itertools.chain.from_iterable(values))


def value_for(param: Any) -> str:
    annotation = param.type_descriptor.annotation
    kind = next(iter(get_args(annotation)), None) if get_origin(annotation) is list else annotation
    if isinstance(kind, EnumType):
        return str(next(iter(kind)).value)
    return str(get_args(annotation)[0]) if get_origin(annotation) is Literal else "1"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield path, command


def lose_store(home: Path) -> None:
    for path in home.glob("store.db*"):
        path.unlink()


def empty_store(home: Path) -> None:
    lose_store(home)
    (home / "store.db").touch()


def lose_registry(home: Path) -> None:
    for path in (home / "mlflow").glob("mlflow.db*"):
        path.unlink()


def empty_registry(home: Path) -> None:
    lose_registry(home)
    (home / "mlflow" / "mlflow.db").touch()


def lose_mlflow(home: Path) -> None:
    shutil.rmtree(home / "mlflow")


def lose_facts(home: Path) -> None:
    (home / HOME_FACTS).unlink()


def lose_facts_and_store(home: Path) -> None:
    lose_facts(home)
    lose_store(home)


LOSSES: list[tuple[Callable[[Path], None], str]] = [
    (lose_store, r"The store of .* is missing.*rlhf restore"),
    (empty_store, r"The store of .* is empty.*rlhf restore"),
    (lose_registry, r"MLflow's database of .* is missing.*rlhf restore"),
    (empty_registry, r"MLflow's database of .* is empty.*rlhf restore"),
    (lose_mlflow, r"MLflow's database of .* is missing.*rlhf restore"),
    (lose_facts, r"its project.json is gone.*rlhf init"),
    (lose_facts_and_store, r"its project.json and store.db are gone.*rlhf restore"),
]


@pytest.fixture
def home(initialised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "1").touch()  # a file that commands may be given
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(initialised, tmp_path / "home"))


def names(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


@pytest.mark.parametrize(
    ("lose", "refusal"), LOSSES, ids=lambda value: getattr(value, "__name__", "")
)
def test_broken_home_is_refused_by_every_command(
    rlhf: Rlhf, home: Path, lose: Callable[[Path], None], refusal: str
) -> None:
    lose(home)
    left = names(home)
    for command in every_command():
        if (command, lose) != (("init",), lose_facts):  # which writes them anew
            with pytest.raises(ConfigurationError, match=refusal):
                rlhf(*command, home=home)
    with pytest.raises(ConfigurationError, match=refusal):
        create_app(Settings(home=home))
    assert names(home) <= left


def test_store_that_ends_before_the_last_run_did_is_refused(rlhf: Rlhf, home: Path) -> None:
    """As where `store.db` was copied without its log, or the log was damaged."""
    workspace = Workspace(Settings(home=home))
    older = (home / "store.db").read_bytes()
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    assert (home / "store.db-wal").stat().st_size > 0
    homes.record_end(workspace.settings, workspace.store.database)
    assert (home / "store.db-wal").stat().st_size == 0
    workspace.store.close()
    assert rlhf("users", "list", home=home).exit_code == 0
    (home / "store.db").write_bytes(older)
    for command in every_command():
        with pytest.raises(ConfigurationError, match=r"lost rows: its audit chain.*rlhf restore"):
            rlhf(*command, home=home)


def test_store_that_never_promoted_the_champion_is_refused(rlhf: Rlhf, home: Path) -> None:
    (home / "store.db").unlink()
    Workspace(Settings(home=home)).store.migrate()
    HomeFacts.change(home, audit_seq=0)
    with pytest.raises(ConfigurationError, match=r"never promoted demo\.policy@1.*rlhf restore"):
        rlhf("users", "list", home=home)


@pytest.mark.parametrize("url", ["databricks", "http://127.0.0.1:9", "file:///srv/mlruns"])
def test_registry_behind_a_server_is_not_asked(home: Path, url: str) -> None:
    homes.refuse_broken(Settings(home=home, mlflow_url=url))


def test_init_writes_lost_facts_from_the_store(rlhf: Rlhf, home: Path) -> None:
    before = HomeFacts.load(home)
    assert before is not None
    lose_facts(home)
    assert rlhf("init", home=home).exit_code == 0
    after = HomeFacts.load(home)
    assert after is not None
    assert after == before
    assert rlhf("models", "list", home=home).exit_code == 0


def test_init_finds_the_first_imported_day_in_the_store(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, start_day=date(2026, 3, 1))
    prepare(Workspace(settings))
    Workspace(settings).store.comparisons.publish(comparisons(1), published_at=NOON)
    lose_facts(tmp_path)
    prepare(Workspace(settings))
    facts = HomeFacts.load(tmp_path)
    assert facts is not None
    assert facts.start_day == date(2026, 1, 2)


def test_a_complete_home_passes(rlhf: Rlhf, home: Path) -> None:
    assert rlhf("users", "list", home=home).exit_code == 0
    assert rlhf("init", home=home).exit_code == 0


def test_new_folder_passes(tmp_path: Path) -> None:
    homes.refuse_broken(Settings(home=tmp_path / "new"))
    (tmp_path / "prompts").mkdir()
    homes.refuse_broken(Settings(home=tmp_path))
    assert names(tmp_path) == {"prompts"}


def test_init_resumes_after_a_kill_at_any_step(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    (tmp_path / "store.db").touch()
    homes.refuse_broken(settings)
    Workspace(settings).store.migrate()
    homes.refuse_broken(settings)
    prepare(Workspace(settings))
    (tmp_path / "dagster" / "dagster.yaml").unlink()
    homes.refuse_broken(settings)
    prepare(Workspace(settings))
    assert (tmp_path / "dagster" / "dagster.yaml").exists()


def test_home_of_another_user_is_refused(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"belongs to user .*runs as 12345.*sudo -u"):
        homes.refuse_foreign(home, uid=12345)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_every_command_refuses_a_home_of_another_user(rlhf: Rlhf, home: Path) -> None:
    os.chown(home, 12345, 12345)
    for command in [*every_command(), ("demo", "--clean")]:
        with pytest.raises(ConfigurationError, match="belongs to user 12345"):
            rlhf(*command, home=home)


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that its owner, who this test is meanwhile, cannot write."""
    with tempfile.TemporaryDirectory() as folder:
        me = os.geteuid()
        Path(folder).chmod(0o500)
        if me == 0:  # who may write everywhere
            os.chown(folder, 12345, 12345)
            os.seteuid(12345)
        yield Path(folder)
        os.seteuid(me)
        Path(folder).chmod(0o700)


def test_home_that_cannot_be_written_is_refused(nobodys_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be written.*chmod u\+rwx"):
        homes.refuse_foreign(nobodys_folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_home_in_a_closed_folder_is_refused(tmp_path: Path, nobodys_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be opened: Permission denied"):
        homes.refuse_foreign(tmp_path / "home")


def test_demo_without_its_state_is_refused(home: Path) -> None:
    workspace = Workspace(Settings(home=home))
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    with pytest.raises(
        ConfigurationError, match=r"holds 3 comparisons, but demo_state.json.* is missing.*backup"
    ):
        claim(workspace)
    assert not workspace.settings.demo_state.exists()
