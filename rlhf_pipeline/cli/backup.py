"""`rlhf backup` and `rlhf restore`: databases and files of a home as a folder, and back."""

import hashlib
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import psutil
import typer
from pydantic import Field, ValidationError

from rlhf_pipeline import __version__
from rlhf_pipeline.cli.check import find_faults
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise, server_databases, write_facts
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.core.config import HOME_FACTS, RESTORING, HomeFacts, Settings
from rlhf_pipeline.core.errors import ArtefactError, ConfigurationError
from rlhf_pipeline.core.files import translate_write_errors, write_atomically
from rlhf_pipeline.core.records import Record, utc_now
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store.database_copy import (
    copy_sqlite,
    dump_postgres,
    has_tables,
    load_postgres,
)
from rlhf_pipeline.store.server import KINDS

MANIFEST = "manifest.json"
# everything else can be made again; project.json first: its mark may not be ahead of the store
KEPT = (
    HOME_FACTS,
    "store.db",
    "mlflow",
    "dagster/history",
    "dagster/schedules",
    "frames",
    "models",
    "prompts",
    "annotator_salt",
    "demo_state.json",
)
# copied with the databases, or not needed
BESIDE_DATABASES = (
    "*-wal",
    "*-shm",
    "*-journal",
    "*.lock",
    "*.tmp",
)
Folder = Annotated[Path, typer.Argument(help="Folder of the backup.", metavar="FOLDER")]


class Manifest(Record):
    """The content of a backup. A folder without it is not a backup."""

    made_at: datetime
    home: str
    project: str
    version: str
    files: dict[str, str] = Field(description="SHA-256 by path below the backup")
    damage: tuple[str, ...] = Field(description="what was missing or damaged in the home")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Raises ConfigurationError for a folder without a finished backup."""
        try:
            return cls.model_validate_json((folder / MANIFEST).read_bytes())
        except (ValidationError, OSError) as cause:
            raise ConfigurationError(
                f"{folder} is not a finished backup: its {MANIFEST} cannot be read ({cause}). Name "
                "a folder that `rlhf backup` finished."
            ) from cause


def backup(folder: Folder) -> None:
    """Copy everything that cannot be made again into a new FOLDER, even while the project is in
    use, and check the copy; with exit code 1 where something is missing or damaged.
    """
    settings, folder = Settings.read(), folder.absolute()
    Workspace(settings).require_initialised()
    _refuse_nested(folder, settings.home)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(
            f"{folder} is not empty. Name a new folder: a backup never overwrites anything."
        )
    with translate_write_errors(folder), progress_bar("backup") as progress:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in KEPT:
            _copy(settings.home / name, folder / name)
        for kind, url in _server_urls(settings).items():
            dump_postgres(url, folder / f"{kind}.dump")
        copied = settings.model_copy(update={"home": folder})
        damage = [
            f"{what}: {fault}" for what, faults in find_faults(copied, progress) for fault in faults
        ]
        facts = HomeFacts.load(folder) or HomeFacts.of(settings)
        # a backup holds no password
        facts.model_copy(update={"server_url": None, "database_prefix": None}).write(folder)
        manifest = Manifest(
            made_at=utc_now(),
            home=str(settings.home),
            project=facts.project,
            version=__version__,
            files=_hash_files(folder),
            damage=tuple(damage),
        )
        write_atomically(folder / MANIFEST, manifest.model_dump_json(indent=1).encode())
    echo(f"{folder}: {_summarise(folder, manifest)}")
    if settings.frames_url is not None:
        echo("The frames are in an object store and not in it; they can be materialised again.")
    _report_damage(manifest)


def restore(
    folder: Folder,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Overwrite a home that holds data; its files are set aside."
        ),
    ] = False,
) -> None:
    """Verify a backup and put it into RLHF_HOME; refused where data is present."""
    folder, settings = folder.absolute(), Settings.read(restoring=True)
    manifest = Manifest.load(folder)
    settings = settings.model_copy(update={"project": manifest.project})
    home, urls = settings.home, _server_urls(settings)
    _refuse_nested(folder, home)
    if bool(urls) != any(folder.glob("*.dump")):
        raise ConfigurationError(
            f"The backup {folder} was taken of {'SQLite' if urls else 'Postgres'}. To restore it, "
            f"{'unset RLHF_SERVER_URL' if urls else 'set RLHF_SERVER_URL to a server'}; a home on "
            "SQLite moves to a server by `rlhf migrate --to URL`."
        )
    missing = [f"{kind}.dump" for kind in urls if not (folder / f"{kind}.dump").is_file()]
    if missing:
        raise ConfigurationError(
            f"The backup {folder} lacks {', '.join(missing)}. Nothing was restored: name a backup "
            "of a home that has all its databases on a server, or set the same URLs of databases "
            "as in the home that was backed up."
        )
    if not replace and ((home / HOME_FACTS).exists() or any(map(has_tables, urls.values()))):
        raise ConfigurationError(
            f"{home} or its databases hold data. Name an empty RLHF_HOME, or overwrite with "
            "--replace."
        )
    refuse_while_used(settings)
    _verify(folder, manifest)
    _set_aside(home)
    write_atomically(home / RESTORING, b"The restore into this folder is not complete.\n")
    if settings.server_url is not None:
        server_databases(settings, settings.server_url).make()
    with translate_write_errors(home):
        for kind, url in urls.items():
            load_postgres(url, folder / f"{kind}.dump")
        for name in KEPT:
            _copy(folder / name, home / name)
    facts = HomeFacts.load(home)
    assert facts is not None  # every backup holds them
    config = settings.config or facts.config
    if config is not None and not config.is_file():
        echo(
            f"{config}, the settings of the backed up home, is not on this machine: defaults "
            "apply. To name another file: RLHF_CONFIG=FILE rlhf init."
        )
        config = None
    write_facts(
        settings.model_copy(update={"config": config}), facts.model_copy(update={"config": None})
    )
    (home / RESTORING).unlink()
    workspace = Workspace(settings)
    initialise(workspace, join=settings.server_url is not None)
    workspace.store.close()
    echo(f"{home}: {_summarise(folder, manifest)}, as of {manifest.made_at:%Y-%m-%d %H:%M} UTC")
    _report_damage(manifest)


def refuse_while_used(settings: Settings) -> None:
    """Raises ConfigurationError while another process has a file of the home open, or, on a server,
    a connection to its databases.
    """
    used = {
        f"{process.name()} ({process.pid})"
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _has_open_file(process, settings.home.resolve())
    }
    if settings.server_url is not None:
        used |= set(server_databases(settings, settings.server_url).find_used())
    if used:
        raise ConfigurationError(
            f"{settings.home} is in use: {', '.join(sorted(used))}. Stop `rlhf serve`, `rlhf dev`, "
            "the daemon and all runs, then try again."
        )


def _has_open_file(process: psutil.Process, home: Path) -> bool:
    try:
        return any(Path(file.path).is_relative_to(home) for file in process.open_files())
    except psutil.Error:  # another user's, or gone meanwhile
        return False


def _server_urls(settings: Settings) -> dict[str, str]:
    """The databases of the home that are on a server."""
    urls = (settings.store_url, settings.dagster_storage, settings.tracking_uri)
    return {
        kind: url
        for kind, url in zip(KINDS, urls, strict=True)
        if url is not None and url.startswith("postgres")
    }


def _refuse_nested(folder: Path, home: Path) -> None:
    """Raises ConfigurationError where the backup and the home contain each other."""
    backup, original = folder.resolve(), home.resolve()
    if backup.is_relative_to(original) or original.is_relative_to(backup):
        raise ConfigurationError(
            f"{folder} is inside {home}, or contains it. Name a separate folder, ideally on "
            "another disk."
        )


def _copy(source: Path, target: Path) -> None:
    """A file or a folder; databases as SQLite copies them while they are in use. Links that lead
    nowhere are left out.
    """
    if source.is_dir():
        shutil.copytree(source, target, ignore=_left_out, copy_function=_copy_file)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(source, target)


def _left_out(folder: str, names: list[str]) -> set[str]:
    beside = shutil.ignore_patterns(*BESIDE_DATABASES)(folder, names)
    return beside | {name for name in names if not Path(folder, name).exists()}


def _copy_file(source: str | Path, target: str | Path) -> None:
    if Path(source).suffix == ".db":
        copy_sqlite(Path(source), Path(target))
    else:
        shutil.copy2(source, target)


def _hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path below `folder`."""
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        hashes[str(path.relative_to(folder))] = digest
    return hashes


def _verify(folder: Path, manifest: Manifest) -> None:
    hashes = _hash_files(folder)
    wrong = [name for name, digest in manifest.files.items() if hashes.get(name) != digest]
    if wrong:
        raise ArtefactError(
            f"The backup {folder} is damaged: {', '.join(wrong[:5])}{' …' if wrong[5:] else ''} "
            "changed since, or missing. Nothing was restored; take another backup."
        )


def _set_aside(home: Path) -> None:
    """Move the home's files away instead of deleting them, so that a restore can be undone."""
    paths = [path for path in home.glob("*") if not path.name.startswith("replaced-")]
    aside = home / f"replaced-{time.strftime('%Y%m%d-%H%M%S')}"
    with translate_write_errors(aside):
        for path in paths:
            aside.mkdir(exist_ok=True)
            path.rename(aside / path.name)


def _summarise(folder: Path, manifest: Manifest) -> str:
    size = sum((folder / name).stat().st_size for name in manifest.files)
    return f"{format_count(len(manifest.files), 'file')}, {size / 1e6:,.1f} MB"


def _report_damage(manifest: Manifest) -> None:
    """Raises Exit with code 1 where the home was damaged when it was backed up."""
    for fault in manifest.damage:
        echo(f"damaged when it was backed up: {fault}", err=True)
    if manifest.damage:
        raise typer.Exit(1)
