"""Checks frames, records and other files: readable, unchanged, inside the home, as in the store."""

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path

import pandas as pd
from upath import UPath

from rlhf_pipeline.artefacts import ATTEMPTS, FOLDER, RECORDS, Artefacts
from rlhf_pipeline.cli.storage_check.finding import Finding, summarise
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.frames import SCHEMAS
from rlhf_pipeline.object_stores import get, is_local, list_names, modified_at
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.store import Store

# what a vote in a frame and in the store must agree in
IDENTITY = ["vote_id", "comparison_id", "annotator_id", "choice"]
AGAIN = "Materialise it again, or restore the file from a backup."
KEEP = (
    "The store may be older than the file: do not materialise it again, keep a copy, and "
    "restore store and frames from one backup."
)


def check_files(
    settings: Settings, store: Store, made: Mapping[str, list[str]], progress: Progress
) -> Iterator[Finding]:
    files = Artefacts(settings.frames, store.file_hashes)
    yield _check_days(files, made)
    frames: list[tuple[str, str | None]] = [
        (stage, day) for stage in SCHEMAS for day in files.days(stage)
    ]
    whole = set(list_names(files.base))
    frames += [(stage, None) for stage in SCHEMAS if f"{stage}.parquet" in whole]
    records = [stage for stage in RECORDS if f"{stage}.json" in whole]
    yield _check_frames(frames, files, store, progress)
    yield _check_records(records, files)
    read = {files.name(files.path(stage, day)) for stage, day in frames} | {
        files.name(files.path(stage)) for stage in records
    }
    yield _check_recorded_hashes(settings, files, store, read, progress)


def _check_days(files: Artefacts, made: Mapping[str, list[str]]) -> Finding:
    """Whether each day that Dagster made has its file; some assets, such as `votes_inbox`, write
    none.
    """
    present = {stage: set(files.days(stage)) for stage in made}
    lost = {stage: sorted(set(made[stage]) - present[stage]) for stage in made if stage in SCHEMAS}
    faults = [
        f"{stage} has lost {', '.join(days[:3])}{' …' if days[3:] else ''}: materialise again."
        for stage, days in lost.items()
        if days
    ]
    n_days = sum(len(present[stage] & set(days)) for stage, days in made.items())
    return summarise(
        "files of days", f"{n_days:,}, each where Dagster says that it was made", faults
    )


def _check_frames(
    frames: Sequence[tuple[str, str | None]], files: Artefacts, store: Store, progress: Progress
) -> Finding:
    """Read every frame fully: hashes, page checksums, schema, and votes and comparisons against the
    store.
    """
    faults = []
    for done, (stage, day) in enumerate(frames):
        progress(done, len(frames), f"{stage} {day or ''}")
        try:
            faults += _find_disagreement(
                files.path(stage, day), stage, day, files.read_frame(stage, day), store
            )
        except PipelineError as error:
            faults.append(str(error))
    return summarise(
        "frames", f"{len(frames):,}, read fully and in agreement with the store", faults
    )


def _find_disagreement(
    path: UPath, stage: str, day: str | None, frame: pd.DataFrame, store: Store
) -> list[str]:
    if day is not None and stage == "votes" and not frame.empty:
        return _find_votes_disagreement(path, day, frame, store)
    if day is None or stage != "comparisons":
        return []
    here, there = (
        _to_row_set(comparisons) for comparisons in (frame, store.comparisons.for_days([day]))
    )
    return [] if here == there else [_describe_difference(path, here, there, "comparisons")]


def _find_votes_disagreement(path: UPath, day: str, frame: pd.DataFrame, store: Store) -> list[str]:
    """Compare a day's votes up to the last one in its frame. A frame of an earlier version may lack
    superseded votes.
    """
    last = int(frame["seq"].max())
    here, there = (
        _to_row_set(votes[IDENTITY]) for votes in (frame, store.votes.log([day], up_to_seq=last))
    )
    if here == there or (frame["pass_no"].isna().all() and here <= there):
        return []
    return [_describe_difference(path, here, there, "votes", f" up to seq {last}")]


def _to_row_set(frame: pd.DataFrame) -> set[tuple[str, ...]]:
    """As text, because a missing value equals no other."""
    return set(frame.astype(str).itertuples(index=False, name=None))


def _describe_difference(
    path: UPath, here: Set[object], there: Set[object], what: str, until: str = ""
) -> str:
    n_unknown = len(here - there)
    return (
        f"{path} holds {len(here):,} {what}, {n_unknown:,} of them unknown to the store, and lacks "
        f"{len(there - here):,} of the store's{until}. {KEEP if n_unknown else AGAIN}"
    )


def _check_records(stages: Sequence[str], files: Artefacts) -> Finding:
    faults = []
    for stage in stages:
        try:
            files.read_record(stage, RECORDS[stage])
        except PipelineError as error:
            faults.append(str(error))
    return summarise("records", f"{len(stages)}, each as its stage left it", faults)


def _check_recorded_hashes(
    settings: Settings, files: Artefacts, store: Store, read: Set[str], progress: Progress
) -> Finding:
    """Check the place of every recorded file, and the SHA-256 of those not in `read`.

    An earlier version recorded no hashes, so files older than the first recorded one need none.
    Later ones without a hash are a fault.
    """
    recorded = store.file_hashes.all()
    known = sorted({one.path for one in recorded})
    faults = []
    for done, name in enumerate(known):
        progress(done, len(known), name)
        root, path = _place_of(name, files, settings)
        outside = _find_outside(root, path)
        faults += outside if outside or name in read else _find_difference(name, path, store)
    n_pending = len({one.path for one in recorded if one.state == "pending"})
    unknown = sorted(read - set(known))
    if recorded:
        began_at = min(one.written_at for one in recorded)
        faults += _written_unrecorded(
            [_place_of(name, files, settings)[1] for name in unknown], began_at
        )
    n_unknown = len(unknown)
    sound = f"{len(known):,} as written" + (f", {n_unknown:,} not recorded" if n_unknown else "")
    return summarise(
        "hashes of files",
        sound + (f", {n_pending:,} with a write that did not end" if n_pending else ""),
        faults,
    )


def _place_of(name: str, files: Artefacts, settings: Settings) -> tuple[UPath, UPath]:
    """Folder and path of a file by its recorded name."""
    root = files.base if name.startswith(f"{FOLDER}/") else UPath(settings.home)
    return root, root / name.removeprefix(f"{FOLDER}/")


def _written_unrecorded(paths: Sequence[UPath], began_at: datetime) -> list[str]:
    """Files without a hash, although they were written after the store recorded others."""
    return [
        f"{path} has no recorded hash, although it was written on {at:%Y-%m-%d}, after others were "
        f"recorded: it cannot be verified. {AGAIN}"
        for path, at in ((path, modified_at(path)) for path in paths)
        if at is not None and at > began_at
    ]


def _find_outside(root: UPath, path: UPath) -> list[str]:
    if not is_local(path) or Path(path.path).resolve().is_relative_to(Path(root.path).resolve()):
        return []
    return [f"{path} leads outside {root}. Put the file itself there."]


def _find_difference(name: str, path: UPath, store: Store) -> list[str]:
    for _ in range(ATTEMPTS):
        try:
            content = get(path)
        except PipelineError as error:
            return [str(error)]
        if content is None:
            return [f"{path} is missing. {AGAIN}"]
        if not store.file_hashes.find_changed({name: content}):
            return []
    return [f"{path} was changed since it was written. {AGAIN}"]
