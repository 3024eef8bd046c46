"""`rlhf demo`: runs the loop for simulated days through the jobs and sensors that a team uses."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise, prepare
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.config import HomeFacts, Settings, build_database_url
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.files import write_atomically
from rlhf_pipeline.records import AnnotatorKind
from rlhf_pipeline.store import Store, database_copy, homes
from rlhf_pipeline.store.server import ServerDatabases


def demo(
    days: Annotated[
        int, typer.Option(min=1, max=60, help="Simulated days to add to the history.")
    ] = 6,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="Delete all state of the demo instead: its home and, on a Postgres server, its "
            "databases.",
        ),
    ] = False,
) -> None:
    """Run the loop for several days with simulated annotators whose taste changes; another call
    adds days.
    """
    if clean:
        delete(Workspace(Settings.read(initialising=True)))  # which may be broken
        return
    workspace = Workspace.from_environment(initialising=True)
    claim(workspace)
    initialise(workspace)
    workspace.store.close()
    load_driver(workspace.settings, RLHF_ANNOTATORS="simulated").demo(days)


def claim(workspace: Workspace) -> None:
    """Mark the home as the demo's. Raises ConfigurationError for a home with votes that are not
    simulated.
    """
    prepare(workspace)
    settings, store = workspace.settings, workspace.store
    others = _other_annotator_kinds(store)
    if others:
        raise ConfigurationError(
            f"Project {settings.project!r} in {settings.home} holds {' and '.join(others)} votes; "
            "the demo would mix simulated ones in. Name another folder, as in "
            "`make demo RLHF_HOME=var/demo`."
        )
    if not settings.demo_state.exists():
        n = store.comparisons.count()
        if n:
            raise ConfigurationError(
                f"{settings.home} holds {n:,} comparisons, but {settings.demo_state.name}, which "
                f"records the progress of the demo, is missing: the demo would overwrite its "
                f"days. Put "
                f"{settings.demo_state.name} back from a backup. To start over, name another "
                "folder or move this one away."
            )
        write_atomically(settings.demo_state, b"{}")


def delete(workspace: Workspace) -> None:
    """Delete the demo's home and its recorded databases on a server; a server that only a setting
    names is left alone.

    Raises ConfigurationError for a home that the demo did not make, and for one with people's votes
    or imports.
    """
    settings = workspace.settings
    homes.refuse_foreign(settings.home)
    facts = HomeFacts.load(settings.home)
    server = facts.server_url if facts else None
    store = settings.home / "store.db"
    if not settings.demo_state.exists() or (server is None and not store.exists()):
        raise ConfigurationError(
            f"{settings.home} was not made by the demo: nothing deleted. Check RLHF_HOME, or "
            "delete it yourself."
        )
    if store.exists():
        _refuse_irreplaceable(settings.home, f"sqlite:///{store}")
    if facts is not None and server is not None:
        prefix = facts.database_prefix or settings.database_prefix
        _refuse_irreplaceable(settings.home, build_database_url(server, f"{prefix}_store"))
        dropped = ServerDatabases(server.get_secret_value(), prefix, facts.project).drop()
        echo(f"dropped the databases {', '.join(dropped)}")
    shutil.rmtree(settings.home.resolve())
    if settings.home.is_symlink():
        settings.home.unlink()
    echo(
        f"{settings.home} deleted"
        + (f"; the frames in {settings.frames_url} were not deleted" if settings.frames_url else "")
    )


def _refuse_irreplaceable(home: Path, url: str) -> None:
    try:
        found = _find_irreplaceable(url)
    except StoreError as cause:
        raise ConfigurationError(
            f"Cannot read whether {home} holds votes of people: nothing deleted. {cause} Or "
            f"delete {home} and its databases yourself."
        ) from cause
    if found:
        raise ConfigurationError(
            f"{home} holds {' and '.join(found)}, which cannot be made again: nothing deleted. "
            f"Save them with `rlhf backup`, then delete {home} and its databases yourself."
        )


def _find_irreplaceable(url: str) -> list[str]:
    """Names what another demo could not make again: votes that are not simulated, and imports."""
    if not database_copy.has_tables(url):
        return []
    with Store.open(url) as store:
        kinds = _other_annotator_kinds(store)
        n_imported = store.comparisons.n_imported()
    return [f"{kind} votes" for kind in kinds] + [f"{n_imported:,} imported comparisons"] * (
        n_imported > 0
    )


def _other_annotator_kinds(store: Store) -> list[AnnotatorKind]:
    """Kinds of annotators with votes, except simulated ones."""
    return sorted(store.votes.annotator_kinds() - {AnnotatorKind.SIMULATED})
