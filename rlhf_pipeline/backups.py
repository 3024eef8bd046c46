"""Backs a home up into a folder and restores it: databases, files with hashes, a manifest last."""

import hashlib
import importlib.metadata
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePath
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator

from rlhf_pipeline.config import HOME_FACTS, RESTORING, HomeFacts
from rlhf_pipeline.errors import ArtefactError, ConfigurationError
from rlhf_pipeline.files import translate_write_errors, write_atomically
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Record, utc_now
from rlhf_pipeline.store import database_copy, database_dump, migrations
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.file_hashes import FileHashes

MANIFEST = "manifest.json"
DATABASE_FILES = "databases"  # folder of the backup
UNFINISHED = "UNFINISHED"  # a file that stands there until the manifest does
BACKED_UP_PATHS = (
    "frames",
    "models",
    "mlflow/artifacts",
    "prompts",
    "annotator_salt",
    "audit_anchors.jsonl",
    "demo_state.json",
)  # beside databases and facts; everything else can be made again
# of a home without a server
SQLITE = {"store": "store.db", "mlflow": "mlflow/mlflow.db", "dagster": "dagster"}
DAGSTER_FILES = ("history/**/*.db", "schedules/*.db")
CHUNK = 1 << 20

# by name (store, mlflow, dagster); None where the files are in the home
Urls = Mapping[str, str | None]
MakeTables = Mapping[str, Callable[[str], None]]  # functions that make a database's tables by URL


class DatabaseBackup(Record):
    """SQLite: one file or many; Postgres: one file per table. `rows` by table, or by
    `file:table` if there are several files.
    """

    kind: Literal["sqlite", "postgres"]
    version: str | None = Field(default=None, description="of the store's tables")
    rows: dict[str, int] = {}
    tables: tuple[database_dump.DumpedTable, ...] = ()


class Manifest(Record):
    """The content of a backup. A folder without it is not a backup."""

    format: Literal[1] = 1
    made_at: datetime
    home: str
    organization: str
    project: str
    versions: dict[str, str]
    databases: dict[str, DatabaseBackup]
    files: dict[str, tuple[int, str]] = Field(
        description="size and SHA-256 by path below the backup"
    )
    replaced: tuple[str, ...] = Field(
        default=(),
        description="recorded files written during the backup: its store has their old hashes",
    )

    @model_validator(mode="after")
    def _refuse_unknown_places(self) -> Self:
        for path in map(PurePath, self.files):
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{path} leads out of the backup")
            if (
                path.parts[0] == DATABASE_FILES
                and path.parts[1].removesuffix(".db") not in self.databases
            ):
                raise ValueError(f"no database of {path} is listed")
        return self

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Raises ConfigurationError for a folder without a finished backup."""
        path = folder / MANIFEST
        if not path.exists():
            why = (
                "it was interrupted before it was complete"
                if (folder / UNFINISHED).exists()
                else f"it has no {MANIFEST}"
            )
            raise ConfigurationError(
                f"{folder} is not a backup: {why}. Name a folder that `rlhf backup` finished."
            )
        try:
            return cls.model_validate_json(path.read_bytes())
        except (ValidationError, OSError) as cause:
            raise ConfigurationError(
                f"{path} cannot be read: {cause}. Take another backup."
            ) from cause

    @property
    def n_rows(self) -> int:
        return sum(sum(database.rows.values()) for database in self.databases.values())


def back_up(
    home: Path, facts: HomeFacts, urls: Urls, folder: Path, *, progress: Progress = ignore_progress
) -> Manifest:
    """Everything of `home` that cannot be made again, while it is in use; each database as of one
    moment, files after them.

    Raises ConfigurationError for a folder that holds something else, ArtefactError and StoreError
    where disk or database refuse.
    """
    _prepare_folder(folder, home)
    began_at = utc_now()
    databases = {
        name: _dump(name, home, url, folder / DATABASE_FILES, progress)
        for name, url in urls.items()
    }
    # a backup holds no password
    plain = facts.model_copy(update={"server_url": None, "database_prefix": None})
    plain.write(folder)
    paths = list(_list_kept_files(home))
    for done, path in enumerate(paths):
        _copy(home / path, folder / path)
        progress(done + 1, len(paths), str(path))
    files = {
        str(path): _size_and_hash(folder / path)
        for path in sorted(_list_files(folder))
        if path.name not in (UNFINISHED, MANIFEST)
    }
    manifest = Manifest(
        made_at=utc_now(),
        home=str(home),
        organization=facts.organization,
        project=facts.project,
        databases=databases,
        files=files,
        replaced=_list_replaced_files(began_at, home, facts, urls),
        versions={
            name: importlib.metadata.version(name)
            for name in ("rlhf-pipeline", "mlflow", "dagster", "alembic")
        },
    )
    write_atomically(folder / MANIFEST, (manifest.model_dump_json(indent=1) + "\n").encode())
    (folder / UNFINISHED).unlink()
    return manifest


def verify(folder: Path, manifest: Manifest, *, progress: Progress = ignore_progress) -> None:
    """Raises ArtefactError naming every file that is missing or was changed since the backup."""
    wrong = []
    for done, (path, known) in enumerate(manifest.files.items()):
        try:
            found = _size_and_hash(folder / path)
        except OSError as cause:
            wrong.append(f"{path} ({cause.strerror})")
        else:
            if found != known:
                wrong.append(f"{path} ({'truncated' if found[0] < known[0] else 'changed'})")
        progress(done + 1, len(manifest.files), path)
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ArtefactError(
            f"The backup {folder} is damaged: {', '.join(wrong[:5])}{more}. Nothing was restored; "
            "take another backup."
        )


def holds_data(home: Path, urls: Urls) -> bool:
    """Whether a restore would overwrite anything."""
    at_home = any((home / name).exists() for name in (HOME_FACTS, *SQLITE.values(), "frames"))
    return at_home or any(
        url is not None and not database_dump.is_sqlite(url) and database_copy.has_tables(url)
        for url in urls.values()
    )


def restore(
    folder: Path,
    home: Path,
    urls: Urls,
    make_tables: MakeTables,
    *,
    replace: bool = False,
    progress: Progress = ignore_progress,
) -> Manifest:
    """Put a verified backup into `home` and its databases. With `replace`, present files move to
    `<home>/replaced-<time>`.

    MLflow's paths are changed where the home moved. Raises ConfigurationError, with nothing
    changed, for a home that holds data, and for SQLite's files where a server is configured or the
    other way round.
    """
    manifest = Manifest.load(folder)
    if home.exists() and not home.is_dir():
        raise ConfigurationError(f"RLHF_HOME {home} is a file. Name a folder.")
    for name, database in manifest.databases.items():
        url = urls.get(name)
        here = "sqlite" if url is None or database_dump.is_sqlite(url) else "postgres"
        if here != database.kind:
            way = (
                "Unset RLHF_SERVER_URL, restore, then `rlhf migrate --to URL`."
                if here == "postgres"
                else "Set RLHF_SERVER_URL."
            )
            raise ConfigurationError(
                f"The backup {folder} contains the {name} database of {database.kind}, but this "
                f"home "
                f"uses {here}. {way}"
            )
    if holds_data(home, urls) and not replace:
        raise ConfigurationError(
            f"{home} or its databases hold data. Name an empty RLHF_HOME, or overwrite with "
            "--replace."
        )
    verify(folder, manifest, progress=progress)
    _set_aside(home, keep=folder)
    write_atomically(home / RESTORING, b"The restore into this folder is not complete.\n")
    for name, database in manifest.databases.items():
        url = urls.get(name)
        if database.kind == "postgres" and url is not None:
            if database_copy.has_tables(url):
                database_copy.drop_all_tables(url)
            _make_tables(name, url, database, make_tables)
            loaded = [
                table for table in database.tables if table.table not in database_copy.VERSIONS
            ]
            database_dump.load_postgres(
                url, folder / DATABASE_FILES / name, loaded, progress=progress
            )
    names = [Path(path) for path in manifest.files if path != HOME_FACTS]
    for done, path in enumerate(names):
        target = _target_of(path, home, manifest)
        if target is not None:
            _copy(folder / path, target)
        progress(done + 1, len(names), str(path))
    if manifest.home != str(home):
        mlflow = urls.get("mlflow") or f"sqlite:///{home / SQLITE['mlflow']}"
        if database_copy.has_tables(mlflow):  # a home that registered no model has none
            database_copy.relocate(mlflow, f"{Path(manifest.home).as_uri()}/", f"{home.as_uri()}/")
    return manifest


def write_facts(
    folder: Path,
    home: Path,
    *,
    home_id: str | None = None,
    server_url: SecretStr | None = None,
    database_prefix: str | None = None,
    config: Path | None = None,
) -> None:
    """The last step of a restore: from here on the home is a project again."""
    facts = HomeFacts.load(folder)
    assert facts is not None  # the manifest names it
    overrides = {
        "home_id": home_id,
        "server_url": server_url,
        "database_prefix": database_prefix,
        "home": None,
        "config": config or (None if lost_config(folder) else facts.config),
    }
    facts.model_copy(update=overrides).write(home)
    (home / RESTORING).unlink(missing_ok=True)


def lost_config(folder: Path) -> Path | None:
    """The settings file that the backed up home recorded, where it is not on this machine."""
    facts = HomeFacts.load(folder)
    return (
        facts.config
        if facts is not None and facts.config is not None and not facts.config.is_file()
        else None
    )


def record_replaced(home: Path, manifest: Manifest, hashes: FileHashes) -> None:
    """Record the hashes of files that were written after the store had been copied."""
    hashes.forget(manifest.replaced)
    for name in manifest.replaced:
        if (home / name).is_file():
            with hashes.record_replacement({name: (home / name).read_bytes()}):
                pass


def _prepare_folder(folder: Path, home: Path) -> None:
    within = any(
        folder.resolve().is_relative_to((home / name).resolve()) for name in BACKED_UP_PATHS
    )
    if within or home.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(
            f"{folder} is inside {home}'s backed-up folders, or contains the home. Name a separate "
            "folder, ideally on another disk."
        )
    _refuse_linked_folders(home)
    if folder.exists() and any(folder.iterdir()):
        if not (folder / UNFINISHED).exists():
            raise ConfigurationError(
                f"{folder} is not empty. Name a new folder: a backup never overwrites anything."
            )
        shutil.rmtree(folder)
    with translate_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        (folder / UNFINISHED).write_text("The backup in this folder is not complete.\n")


def _refuse_linked_folders(home: Path) -> None:
    """Raises ConfigurationError for links to folders below `frames`, `mlflow/artifacts` and the
    like, which a copy would silently leave out. A link in place of one of these folders is
    followed.
    """
    for name in BACKED_UP_PATHS:
        for path in (home / name).rglob("*"):
            if path.is_symlink() and path.is_dir():
                raise ConfigurationError(
                    f"{path} links to another folder, which a backup does not follow. Move the "
                    "folder itself there."
                )


def _dump(
    name: str, home: Path, url: str | None, folder: Path, progress: Progress
) -> DatabaseBackup:
    if url is not None and not database_dump.is_sqlite(url):
        tables = tuple(database_dump.dump_postgres(url, folder / name, progress=progress))
        version = _store_version(url) if name == "store" else None
        return DatabaseBackup(
            kind="postgres",
            version=version,
            tables=tables,
            rows={table.table: table.n_rows for table in tables},
        )
    if name == "dagster":
        return DatabaseBackup(
            kind="sqlite", rows=_dump_dagster(home / "dagster", folder / "dagster", progress)
        )
    file = home / SQLITE[name] if url is None else database_dump.sqlite_file(url)
    if not file.exists():
        return DatabaseBackup(kind="sqlite")
    rows = database_dump.copy_sqlite(file, folder / f"{name}.db")
    progress(1, 1, file.name)
    version = _store_version(f"sqlite:///{file}") if name == "store" else None
    return DatabaseBackup(kind="sqlite", version=version, rows=rows)


def _dump_dagster(source: Path, target: Path, progress: Progress) -> dict[str, int]:
    files = sorted(path for pattern in DAGSTER_FILES for path in source.glob(pattern))
    rows: dict[str, int] = {}
    for done, file in enumerate(files):
        path = file.relative_to(source)
        found = database_dump.copy_sqlite(file, target / path)
        rows |= {f"{path}:{table}": n for table, n in found.items()}
        progress(done + 1, len(files), f"dagster/{path}")
    return rows


def _list_replaced_files(
    moment: datetime, home: Path, facts: HomeFacts, urls: Urls
) -> tuple[str, ...]:
    url = urls["store"] or f"sqlite:///{home / SQLITE['store']}"
    if database_dump.is_sqlite(url) and not database_dump.sqlite_file(url).exists():
        return ()
    store = Database(url, facts.organization, facts.project)
    try:
        if migrations.current_revision(store) != migrations.HEAD:
            return ()
        return tuple(
            sorted({known.path for known in FileHashes(store).all() if known.written_at >= moment})
        )
    finally:
        store.close()


def _store_version(url: str) -> str | None:
    database = Database(url, "any", "any")
    try:
        return migrations.current_revision(database)
    finally:
        database.close()


def _make_tables(name: str, url: str, database: DatabaseBackup, make_tables: MakeTables) -> None:
    if name != "store":
        make_tables[name](url)
        return
    store = Database(url, "any", "any")
    try:
        if database.version not in (None, migrations.HEAD):
            raise migrations.refusal("of the backup", database.version)
        migrations.upgrade(store)
    finally:
        store.close()


def _target_of(path: Path, home: Path, manifest: Manifest) -> Path | None:
    """The place of a file of the backup; None for what was loaded into Postgres already."""
    if path.parts[0] != DATABASE_FILES:
        return home / path
    name = path.parts[1].removesuffix(".db")
    if manifest.databases[name].kind == "postgres":
        return None
    return home / SQLITE[name] / Path(*path.parts[2:]) if name == "dagster" else home / SQLITE[name]


def _set_aside(home: Path, *, keep: Path) -> None:
    """Move the home's files away instead of deleting them, so that a restore can be undone."""
    there = home.iterdir() if home.exists() else ()
    held = [
        path
        for path in there
        if not path.name.startswith("replaced-")
        and not keep.resolve().is_relative_to(path.resolve())
    ]
    if held:
        aside = home / f"replaced-{time.strftime('%Y%m%d-%H%M%S')}"
        with translate_write_errors(aside):
            aside.mkdir()
            for path in held:
                path.rename(aside / path.name)


def _list_kept_files(home: Path) -> Iterator[Path]:
    for name in BACKED_UP_PATHS:
        place = home / name
        if place.is_dir():
            yield from (
                path.relative_to(home)
                for path in sorted(place.rglob("*"))
                if path.is_file() and path.suffix != ".tmp"
            )
        if place.is_file():
            yield Path(name)


def _list_files(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _copy(source: Path, target: Path) -> None:
    with translate_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.part")
        shutil.copyfile(source, partial)
        shutil.copystat(source, partial)
        os.replace(partial, target)


def _size_and_hash(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def summary(manifest: Manifest) -> str:
    """One line for people."""
    size = sum(size for size, _ in manifest.files.values())
    return (
        f"{manifest.n_rows:,} rows of {len(manifest.databases)} databases and "
        f"{len(manifest.files)} files, {size / 1e6:,.1f} MB"
    )
