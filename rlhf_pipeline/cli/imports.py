"""`rlhf import`: sessions that record what a file brought, and imports of prompts and logs."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.replay import hold_import_lock
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.core.config import ENV_PREFIX, HomeFacts, Settings, extend_environ
from rlhf_pipeline.core.errors import ConfigurationError, DatasetError, StoreError
from rlhf_pipeline.core.files import translate_write_errors
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.row_files import RowFile, open_rows
from rlhf_pipeline.core.row_files.rows import translate_read_errors
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.prompts import PromptImport
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects

app = typer.Typer(
    help="Import preferences (pairs and votes, of any known shape) or prompts from files, or a "
    "calibration log. Importing a file twice changes nothing.",
    no_args_is_help=True,
)
File = Annotated[
    Path,
    typer.Argument(
        help=".parquet, .jsonl, .csv, .tsv or .json; all but .parquet also with .gz.",
        show_default=False,
    ),
]
Project = Annotated[
    str | None,
    typer.Option(
        help="Project of a new home, as RLHF_PROJECT names it. Default: the project that the home "
        "holds."
    ),
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=COLUMN",
        help="Column of the file for one of our names; may be repeated.",
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Separator of a CSV file's cells; default: that of its header.")
]
IMPORTS = "imports"
PROMPTS_FILE = "imported.jsonl"


@app.command("prompts")
def prompts(
    file: File,
    project: Project = None,
    map_: Map = None,
    domain: Annotated[
        str | None, typer.Option(help="Domain of all prompts, for files without a column `domain`.")
    ] = None,
    delimiter: Delimiter = None,
) -> None:
    """Prompts for the `dataset` source, cleaned and without duplicates. A domain that is not one of
    our categories is kept, with category `instruction`.
    """
    names = ColumnMapping.read(map_ or ())
    rows = open_rows(file, delimiter=delimiter, encoding=None)
    with open_import("prompts", file, rows, project, names) as intake:
        target = intake.workspace.settings.home / "prompts" / PROMPTS_FILE
        work = intake.works["prompts"] = PromptImport(target, intake.rejects, domain)
        unused = work.run(rows, names, str(file), intake.progress)
        if unused:
            intake.notes.append(f"unused columns: {', '.join(unused)}")
        intake.notes.append(f"use them: RLHF_PROMPT_SOURCE=dataset RLHF_PROMPTS_FILE={target}")
    intake.report()


@app.command("calibration-log")
def calibration_log(
    file: Annotated[
        Path,
        typer.Argument(
            help="A calibration_log.json: one JSON list of reports.", show_default=False
        ),
    ],
    project: Project = None,
) -> None:
    """Reports of a calibration log, for the page `calibration` and `rlhf export calibration-log`.
    They contain no calibrator, so none of them serves.
    """
    with translate_read_errors(file):
        content = file.read_bytes()
    from rlhf_pipeline.learn.calibration.log import read_entries

    try:
        read = read_entries(content.decode("utf-8-sig"))
    except UnicodeDecodeError as cause:
        raise DatasetError(f"{file} is not UTF-8 ({cause}). Save the log as UTF-8.") from cause
    workspace = Workspace.from_settings(read_settings(project))
    with hold_import_lock(workspace, _refusal(file)):
        prepare(workspace)
        reasons = {f"entry {n}": why for n, why in read.refused}
        summary: dict[str, Any] = {"n_rejected": len(reasons), "reasons": reasons}
        with record_import(workspace, "calibration-log", file, {}, lambda: summary):
            done = workspace.store.calibrations.import_reports(read.reports, actor="import")
            summary |= done.model_dump()
    n_refused = len(read.refused)
    echo(
        f"{done.n_added:,} imported, {done.n_known:,} known already, {n_refused:,} rejected, of "
        f"{n_refused + len(read.reports):,} entries"
    )
    for n, why in read.refused:
        echo(f"entry {n:,}: {why}")
    if read.refused and not read.reports:
        raise DatasetError(
            f"No entry of {file} could be imported; see the reasons above. Fix them, or export "
            f"the log "
            "again."
        )


class Work(Protocol):
    """An import of rows of one kind, which counts what becomes of them."""

    counts: ImportCounts


@dataclass
class ImportSession:
    """State of one import: home, file, rejected rows, provenance record and closing report."""

    workspace: Workspace
    file: Path
    rows: RowFile
    rejects: Rejects
    now: datetime
    progress: Progress
    import_id: int = 0
    notes: list[str] = field(default_factory=list)
    # by what is counted; a preference file has pairs and votes
    works: dict[str, Work] = field(default_factory=dict)

    def extend_start_day(self, first: date) -> None:
        """Move the first partition back to this day if it is later."""
        settings = self.workspace.settings
        facts = HomeFacts.load(settings.home) or HomeFacts.of(settings)
        earliest = min(filter(None, (facts.start_day, first)))
        if earliest < settings.start_day and earliest != facts.start_day:
            facts.model_copy(update={"start_day": earliest}).write(settings.home)

    def describe(self) -> dict[str, Any]:
        """What the table of imports keeps."""
        counts = {name: work.counts.model_dump() for name, work in self.works.items()}
        return {**counts, "reasons": dict(self.rejects.reasons)}

    def report(self) -> None:
        """Print the counts in one line, then notes. Raises DatasetError for a file without rows,
        and where every row was rejected.
        """
        n_rows = sum(work.counts.total for work in self.works.values())
        if not n_rows and not any(True for _ in self.rows):
            raise DatasetError(
                f"{self.file} has no rows{', only a header' * self.rows.is_csv}. Nothing was "
                "imported: write it again."
            )
        for name, work in self.works.items():
            if work.counts.total:
                echo(f"{name}: {work.counts}")
        for note in (*self.rows.notes, *self.notes):
            echo(note)
        for line, reason in self.rejects.first:
            echo(f"line {line:,}: {reason}")
        if self.rejects.n:
            echo(f"rejected rows with their reasons: {self.rejects.path}")
        if not n_rows:
            raise DatasetError(f"No row of {self.file} is imported, for the reasons above.")
        refused = [
            n for n, work in self.works.items() if 0 < work.counts.total == work.counts.rejected
        ]
        if refused:
            raise DatasetError(
                f"No {' and '.join(refused)} of {self.file} could be imported. The first reasons "
                f"are above, all of them in {self.rejects.path}."
            )


@contextlib.contextmanager
def open_import(
    kind: str, file: Path, rows: RowFile, project: str | None, names: ColumnMapping
) -> Iterator[ImportSession]:
    """Open the home and hold the import lock; the table of imports records the outcome."""
    settings = read_settings(project)
    workspace = Workspace.from_settings(settings)
    folder = settings.home / IMPORTS
    with translate_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_import_lock(workspace, _refusal(file)))
        prepare(workspace)
        bar = stack.enter_context(progress_bar(f"import of {kind}"))
        rejects = stack.enter_context(Rejects(file, folder))
        intake = ImportSession(
            workspace,
            file,
            rows,
            rejects,
            datetime.now(UTC),
            bar,
        )
        with record_import(
            workspace, kind, file, names.model_dump(mode="json"), intake.describe
        ) as intake.import_id:
            yield intake


@contextlib.contextmanager
def record_import(
    workspace: Workspace,
    kind: str,
    file: Path,
    options: Mapping[str, Any],
    describe: Callable[[], Mapping[str, Any]],
) -> Iterator[int]:
    """The number of an import in the table of imports, which gets what `describe` says at its end,
    and the error of one that failed.
    """
    imports = workspace.store.imports
    details = {"sha256": _sha256(file), "n_bytes": file.stat().st_size, **options}
    import_id = imports.start(kind, str(file.resolve()), details)
    try:
        yield import_id
    except BaseException as error:
        # the error itself may be that the store cannot be written
        with contextlib.suppress(StoreError):
            cause = {"error": f"{type(error).__name__}: {error}"}
            imports.fail(import_id, {**details, **describe(), **cause})
        raise
    imports.finish(import_id, {**details, **describe()})


def _refusal(file: Path) -> str:
    return f"Nothing of {file} was imported: let the other finish, then run this again."


def read_settings(project: str | None) -> Settings:
    """The settings, for `project` if the home is new. Raises ConfigurationError where the home
    holds another one, or where environment or file set another one: every later command would
    refuse the new home.
    """
    if project is None:
        return Settings.read()
    lasting = Settings.read()
    places = {"environment": f"{ENV_PREFIX}PROJECT", "file": f"project in {lasting.config}"}
    place = places.get(lasting.find_sources()["project"])
    if place is not None and lasting.project != project:
        raise ConfigurationError(
            f"--project is {project!r}, but {place} is {lasting.project!r}. Leave --project out, "
            f"or set {place} to {project!r}."
        )
    return Settings.read(extend_environ(**{f"{ENV_PREFIX}PROJECT": project}))


def _sha256(file: Path) -> str:
    with translate_read_errors(file), file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
