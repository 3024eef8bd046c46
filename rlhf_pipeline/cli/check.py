"""`rlhf check`: names what is missing or damaged in a home, with its cure; changes nothing."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import progress_bar, show
from rlhf_pipeline.core.artefacts import RECORDS, Artefacts
from rlhf_pipeline.core.config import HOME_FACTS, HomeFacts, Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.frames import SCHEMAS, frame_hash
from rlhf_pipeline.core.object_stores import list_names
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.feedback.datasets.pseudonyms import SALT_FILE, hash_salt
from rlhf_pipeline.learn.champions.champions import REFERENCE
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store, homes, integrity, migrations
from rlhf_pipeline.store.audit import SALT_RECORDED
from rlhf_pipeline.store.dagster_runs import DagsterRuns
from rlhf_pipeline.store.database_copy import find_damage, is_sqlite, sqlite_file
from rlhf_pipeline.store.registered_models import is_readable, list_models, read_champions
from rlhf_pipeline.watch.drift.reference import Window

# the checks, each under the name of what it looks at
Check = tuple[str, Callable[[], Sequence[str]]]


def check() -> None:
    """Read databases, models and frames; name what is missing, damaged or contradictory, with exit
    code 1.
    """
    settings = Settings.read()
    Workspace(settings).require_initialised()
    with progress_bar("check") as progress:
        parts = list(find_faults(settings, progress))
    rows = [{"what": what, "found": line} for what, faults in parts for line in faults or ["sound"]]
    show(rows, title=f"{settings.home}", empty="")
    if any(faults for _, faults in parts):
        raise typer.Exit(1)


def find_faults(
    settings: Settings, progress: Progress = ignore_progress
) -> Iterator[tuple[str, list[str]]]:
    """What was looked at and what is wrong with it, with its cure, part by part. A backup's folder
    is checked like a home.
    """
    yield "project", list(_check_project(settings))
    damaged = list(_check_pages(settings))
    yield "pages of SQLite files", damaged
    if damaged:
        return
    try:
        store = Store.open_read_only(settings.store_url)
        version = migrations.read_version(store.database)
    except PipelineError as error:
        yield "store", [str(error)]
        return
    with store:
        if version is None:
            yield "store", [f"{store.database.where} has no tables. {homes.RESTORE}."]
            return
        if version != migrations.HEAD:
            yield "store", [migrations.describe_other(store.database.where, version)]
            return
        files = Artefacts(settings.frames)
        checks: tuple[Check, ...] = (
            ("audit chain", lambda: _check_audit_chain(store)),
            ("rows of the store", lambda: _check_rows(settings, store)),
            ("models", lambda: list(_check_models(settings, store, progress))),
            ("days of frames", lambda: list(_check_days(settings, files))),
            ("frames", lambda: list(_check_frames(files, progress))),
            ("records", lambda: list(_check_records(files))),
            ("reference windows", lambda: list(_check_windows(settings))),
        )
        for what, find in checks:
            yield what, _attempt(find)


def _attempt(find: Callable[[], Sequence[str]]) -> list[str]:
    try:
        return list(find())
    except PipelineError as error:
        return [str(error)]


def _check_project(settings: Settings) -> Iterator[str]:
    facts = HomeFacts.load(settings.home)
    if facts is None:
        yield (
            f"{settings.home / HOME_FACTS} is missing. Restore it from a backup, or run "
            "`rlhf init`."
        )
    try:
        homes.refuse_broken(settings)
    except PipelineError as error:
        yield str(error)


def _check_pages(settings: Settings) -> Iterator[str]:
    urls = [url for url in (settings.store_url, settings.tracking_uri) if "sqlite:" in url]
    files = [sqlite_file(url) for url in urls if is_sqlite(url)]
    for file in [*files, *sorted((settings.home / "dagster").rglob("*.db"))]:
        if file.is_file() and (damage := find_damage(file)):
            yield f"{file} is damaged ({damage}). {homes.RESTORE}."


def _check_audit_chain(store: Store) -> list[str]:
    store.audit.verify()
    return []


def _check_rows(settings: Settings, store: Store) -> list[str]:
    with store.database.read_transaction() as connection:
        faults = [f"{fault} {homes.RESTORE}." for fault in integrity.find_orphans(connection)]
    if ahead := integrity.find_votes_after(store.database, datetime.now(UTC)):
        seqs = ", ".join(f"{seq:,}" for seq in ahead[:3])
        faults.append(
            f"{format_count(len(ahead), 'vote')} with a time in the future (seq {seqs}"
            f"{', …' if ahead[3:] else ''}): a clock ran ahead. Correct the clock, and leave them "
            "out of learning, on the page Data quality."
        )
    salt = settings.home / SALT_FILE
    stored_hash = store.audit.find_digest(SALT_RECORDED)
    if stored_hash and (not salt.exists() or hash_salt(salt.read_bytes()) != stored_hash):
        faults.append(
            f"{salt} is not the one that made the annotators' pseudonyms. Put it back from a "
            "backup before the next import."
        )
    return faults


def _check_models(settings: Settings, store: Store, progress: Progress) -> Iterator[str]:
    """Files by their registered hash, and what was promoted."""
    versions = list_models(settings.tracking_uri)
    champions = read_champions(settings.tracking_uri)
    ours = [f"{settings.project}.{kind}" for kind in ("policy", "reward_model")]
    for name in ours:
        promoted = [promotion.label for promotion in store.promotions.history(name)]
        for label in sorted(set(promoted) - {model.label for model in versions}):
            if is_readable(settings.tracking_uri):
                yield f"{label} was promoted, but MLflow does not know it. {homes.RESTORE}."
        champion = f"{name}@{champions[name]}" if name in champions else None
        if promoted and champion not in (None, promoted[-1]):
            yield (
                f"MLflow's champion is {champion}, the store promoted {promoted[-1]} last: `rlhf "
                f"models promote {promoted[-1]}`."
            )
    for done, model in enumerate(versions):
        progress(done, len(versions), model.label)
        if model.name not in ours or model.folder is None:
            continue
        folder = settings.home / model.folder
        if not folder.is_dir():
            if not model.is_removed:
                yield f"The files of {model.label} are missing from {folder}. {homes.RESTORE}."
        elif folder_hash(folder) != model.content_hash:
            yield f"{folder}, the files of {model.label}, was changed. {homes.RESTORE}."


def _check_days(settings: Settings, files: Artefacts) -> Iterator[str]:
    """Whether each day that Dagster made has its frame."""
    for stage, days in DagsterRuns(settings).list_materialised_days().items():
        lost = sorted(days - set(files.days(stage))) if stage in SCHEMAS else []
        if lost:
            yield (
                f"{stage} has lost {', '.join(lost[:3])}{' …' if lost[3:] else ''}. "
                "Materialise those days again, or restore the files from a backup."
            )


def _check_frames(files: Artefacts, progress: Progress) -> Iterator[str]:
    """Read every frame whole, with page checksums and schema."""
    whole = set(list_names(files.base))
    frames: list[tuple[str, str | None]] = [
        (stage, day) for stage in SCHEMAS for day in files.days(stage)
    ]
    frames += [(stage, None) for stage in SCHEMAS if f"{stage}.parquet" in whole]
    for done, (stage, day) in enumerate(frames):
        progress(done, len(frames), f"{stage} {day or ''}")
        try:
            frame = files.read_frame(stage, day)
        except PipelineError as error:
            yield str(error)
            continue
        if stage == "retraining_set" and day is not None and frame_hash(frame) != day:
            yield (
                f"{files.path(stage, day)} does not hold the rows that its name is the hash of. "
                "Materialise it again, or restore the file from a backup."
            )


def _check_records(files: Artefacts) -> Iterator[str]:
    present = set(list_names(files.base))
    for stage, kind in RECORDS.items():
        if f"{stage}.json" in present:
            try:
                files.read_record(stage, kind)
            except PipelineError as error:
                yield str(error)


def _check_windows(settings: Settings) -> Iterator[str]:
    for folder in sorted((settings.home / REFERENCE).glob("*")):
        try:
            Window.load(folder)
        except PipelineError as error:
            yield str(error)
