"""`rlhf import`: imports preferences, comparisons, votes, prompts and calibration logs."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.replay import hold_import_lock, replay_pending
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.core.config import ENV_PREFIX, HomeFacts, Settings, extend_environ
from rlhf_pipeline.core.errors import ConfigurationError, DatasetError, StoreError
from rlhf_pipeline.core.files import translate_write_errors
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.row_files import RowFile, open_rows
from rlhf_pipeline.core.row_files.rows import translate_read_errors
from rlhf_pipeline.feedback.datasets.cells import MomentParser
from rlhf_pipeline.feedback.datasets.comparisons import ComparisonImport
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.prompts import PromptImport
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.feedback.datasets.staging import StagedVotes
from rlhf_pipeline.feedback.datasets.votes import VoteImport
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store.audit import SALT_RECORDED
from rlhf_pipeline.store.comparisons import pair_key

app = typer.Typer(
    help="Import preferences (pairs with votes, of any known shape), comparisons, votes or prompts "
    "from files, or a calibration log. Importing a file twice changes nothing.",
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
MappingFile = Annotated[
    Path | None,
    typer.Option(
        "--mapping", help="YAML with `columns:` and `choices:`, see docs/guides/importing.md."
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Separator of a CSV file's cells; default: that of its header.")
]
IMPORTS = "imports"
PROMPTS_FILE = "imported.jsonl"


Timezone = Annotated[
    str, typer.Option(help="Time zone of times without one, such as Europe/Berlin.")
]
KeepAnnotators = Annotated[
    bool,
    typer.Option(
        "--keep-annotators", help="Store annotators' names as they are, not as pseudonyms."
    ),
]
NoReplay = Annotated[
    bool,
    typer.Option(
        "--no-replay",
        help="Do not replay the imported days: they get no predictions and no drift report.",
    ),
]


@app.command("comparisons")
def comparisons(
    file: File,
    project: Project = None,
    map_: Map = None,
    mapping: MappingFile = None,
    source: Annotated[
        str | None, typer.Option(help="Name of the data set, for files without a column `source`.")
    ] = None,
    delimiter: Delimiter = None,
    offer: Annotated[
        bool,
        typer.Option(
            "--offer", help="Offer those without votes to people, under the rules of the project."
        ),
    ] = False,
) -> None:
    """Prompts with two completions each. Identical and repeated pairs are kept, flagged, and left
    out of training.
    """
    names = ColumnMapping.read(mapping, map_ or ())
    with open_import("comparisons", file, project, names, delimiter) as intake:
        store = intake.workspace.store
        comparisons = ComparisonImport(
            store.comparisons, store.imports, pair_key, intake.rejects, intake.now, source
        )
        import_comparisons(intake, comparisons, intake.rows, names)
        if comparisons.counts.imported == comparisons.flags.get("repeated"):
            intake.notes.append(
                "every row repeats texts that the project holds under other ids. If this corrects "
                "the columns of an earlier import: stored comparisons are not changed; import both "
                "files again into a new home"
            )
        if comparisons.differences:
            columns = ", ".join(
                f"{name} of {n:,}" for name, n in sorted(comparisons.differences.items())
            )
            intake.notes.append(
                f"stored columns were not changed, but differ from this file: {columns}. To "
                "correct them, import both files, comparisons and votes, into a new home"
            )
        if offer:
            unvoted = store.comparisons.find_offerable_ids(unvoted_only=True)
            n = store.cards.offer(
                unvoted, overlap=store.rules.latest()[1].overlap, actor="rlhf import"
            )
            intake.notes.append(f"{format_count(n, 'judgement')} wanted of people")
    intake.report()


@app.command("votes")
def votes(
    file: File,
    project: Project = None,
    map_: Map = None,
    mapping: MappingFile = None,
    delimiter: Delimiter = None,
    timezone: Timezone = "UTC",
    undated: Annotated[
        bool,
        typer.Option("--undated", help="The file has no time column: date its votes today."),
    ] = False,
    keep_annotators: KeepAnnotators = False,
    no_replay: NoReplay = False,
) -> None:
    """Votes on comparisons of the project or imported ones, in order of time. An annotator's later
    vote on the same comparison is a repeat pass. Days with imported comparisons are replayed.
    """
    names = ColumnMapping.read(mapping, map_ or ())
    with open_import("votes", file, project, names, delimiter) as intake:
        clock = MomentParser(timezone, now=intake.now)
        pseudonyms = None if keep_annotators else load_pseudonyms(intake.workspace)
        import_votes(
            intake, clock, pseudonyms, names, are_undated=undated, are_replayed=not no_replay
        )
    intake.report()
    if not no_replay and intake.workspace.store.replays.pending_days():
        replay_pending(intake.workspace, after_import=True)


@app.command("prompts")
def prompts(
    file: File,
    project: Project = None,
    map_: Map = None,
    mapping: MappingFile = None,
    domain: Annotated[
        str | None, typer.Option(help="Domain of all prompts, for files without a column `domain`.")
    ] = None,
    delimiter: Delimiter = None,
) -> None:
    """Prompts for the `dataset` source, cleaned and without duplicates. A domain that is not one of
    our categories is kept, with category `instruction`.
    """
    names = ColumnMapping.read(mapping, map_ or ())
    with open_import("prompts", file, project, names, delimiter) as intake:
        target = intake.workspace.settings.home / "prompts" / PROMPTS_FILE
        work = intake.works["prompts"] = PromptImport(target, intake.rejects, domain)
        work.run(intake.rows, names, str(file), intake.progress)
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
    works: dict[str, ComparisonImport | VoteImport | PromptImport] = field(default_factory=dict)

    @property
    def counts(self) -> ImportCounts:
        return [ImportCounts(), *(work.counts for work in self.works.values())][-1]

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
        more = counts if len(counts) > 1 else {}
        return {**self.counts.model_dump(), **more, "reasons": dict(self.rejects.reasons)}

    def report(self) -> None:
        """Print the counts in one line, then notes. Raises DatasetError for a file without rows,
        and where every row was rejected.
        """
        n_rows = sum(work.counts.total for work in self.works.values())
        if not n_rows:
            raise DatasetError(
                f"{self.file} has no rows{', only a header' * self.rows.is_csv}. Nothing was "
                "imported: write it again."
            )
        for name, work in self.works.items():
            echo(f"{name}: {work.counts}" if len(self.works) > 1 else str(work.counts))
            if work.unused and len(self.works) == 1:
                echo(f"unused columns: {', '.join(work.unused)}")
        for note in (*self.rows.notes, *self.notes):
            echo(note)
        for line, reason in self.rejects.first:
            echo(f"line {line:,}: {reason}")
        if self.rejects.n:
            echo(f"rejected rows with their reasons: {self.rejects.path}")
        if self.rejects.n and self.rejects.n == n_rows:
            raise DatasetError(
                f"No row of {self.file} could be imported. The first reasons are above, all of "
                f"them in {self.rejects.path}."
            )


def import_comparisons(
    intake: ImportSession, comparisons: ComparisonImport, rows: RowFile, names: ColumnMapping
) -> None:
    """Publish the comparisons of a file, and note what became of them."""
    intake.works["pairs"] = comparisons
    comparisons.run(rows, names, str(intake.file), intake.progress)
    if comparisons.first_day is not None:
        intake.extend_start_day(date.fromisoformat(comparisons.first_day))
    intake.notes += describe_comparisons(comparisons)


def describe_comparisons(comparisons: ComparisonImport) -> list[str]:
    notes = []
    flagged = ", ".join(f"{n:,} {flag}" for flag, n in sorted(comparisons.flags.items()))
    if flagged:
        notes.append(f"flagged and left out of training: {flagged}")
    if comparisons.n_completed:
        notes.append(
            f"{_format_count(comparisons.n_completed, 'stored pair')} had no id and got that of "
            "this file"
        )
    if comparisons.n_other_ids:
        notes.append(
            f"{_format_count(comparisons.n_other_ids, 'pair')} have the texts of a pair with "
            "another id: their votes count there, and their own ids are not stored"
        )
    if comparisons.joined_prompts:
        notes.append(
            f"{len(comparisons.joined_prompts):,} prompts differ from others in whitespace, "
            "line ends or Unicode form alone: each shares the split of the other"
        )
    if comparisons.divided_prompts:
        notes.append(comparisons.divided_prompts)
    return notes


def import_votes(
    intake: ImportSession,
    clock: MomentParser,
    pseudonyms: Pseudonyms | None,
    names: ColumnMapping,
    *,
    are_undated: bool = False,
    are_replayed: bool = True,
    rows: RowFile | None = None,
) -> None:
    """Read the file, ask for the replay of its days, and cast its votes, in this order, so that no
    imported day misses its replay after a kill.

    The days are noted with the import first, so that none of them is replayed with a part of its
    votes. Where all comparisons are the project's own, their predictions were made when they were
    published: nothing is replayed, and the votes are treated like those of the web page. `rows`
    are votes beside the texts of their comparisons, instead of the rows of the file.
    """
    store = intake.workspace.store
    is_all_own = store.comparisons.n_imported() == 0
    are_replayed = are_replayed and not is_all_own
    votes = VoteImport(
        store.comparisons,
        store.imports,
        intake.rejects,
        StagedVotes(intake.workspace.settings.home / IMPORTS),
        clock,
        pseudonyms,
        are_undated,
        pair_key=None if rows is None else pair_key,
    )
    intake.works["votes"] = votes
    votes.read(rows or intake.rows, names, str(intake.file), intake.progress)
    if votes.days:
        intake.extend_start_day(date.fromisoformat(min(votes.days)))
        store.imports.mark_casting(intake.import_id, sorted(votes.days))
        if are_replayed:
            store.replays.request(sorted(votes.days))
    store.annotator_groups.assign(votes.groups, actor="rlhf import")
    votes.record(store.votes, intake.progress)
    intake.notes += _describe_votes(votes, are_replayed=are_replayed, is_all_own=is_all_own)


@contextlib.contextmanager
def open_import(
    kind: str,
    file: Path,
    project: str | None,
    names: ColumnMapping,
    delimiter: str | None,
    rows: RowFile | None = None,
) -> Iterator[ImportSession]:
    """Open file and home and hold the import lock; the table of imports records the outcome."""
    settings = read_settings(project)
    rows = rows or open_rows(file, delimiter=delimiter, encoding=None)
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


def load_pseudonyms(workspace: Workspace) -> Pseudonyms:
    """Raises DatasetError where the home lost the salt of its first import, or holds another."""
    recorded = workspace.store.audit.find_digest(SALT_RECORDED)
    pseudonyms = Pseudonyms.load(workspace.settings.home, recorded)
    if recorded is None:
        workspace.store.audit.record_salt(pseudonyms.salt_hash)
    return pseudonyms


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


def describe_read_votes(votes: VoteImport) -> list[str]:
    """What is known of the votes of a file before they are cast."""
    notes = []
    if votes.n_doubled:
        notes.append(
            f"{_format_count(votes.n_doubled, 'vote')} merged: sent twice, equal to a vote of the "
            "same person on the same pair at most 5 seconds before"
        )
    if votes.n_untaught:
        notes.append(
            f"{_format_count(votes.n_untaught, 'vote')} on pairs that are left out of training"
        )
    clock = votes.clock
    if clock.n_without_zone:
        other = f", {clock.n_with_zone:,} with one converted to UTC" if clock.n_with_zone else ""
        notes.append(
            f"{_format_count(clock.n_without_zone, 'time')} without a zone read as "
            f"{clock.name}{other} (--timezone names another)"
        )
    if clock.n_skipped:
        notes.append(
            f"{_format_count(clock.n_skipped, 'time')} in an hour that the clocks of {clock.name} "
            "skip: read as if they had not been changed yet"
        )
    if clock.n_doubled:
        notes.append(
            f"{_format_count(clock.n_doubled, 'time')} in an hour that the clocks of {clock.name} "
            "have twice: read as the first, at most an hour off"
        )
    if votes.n_undated:
        notes.append(
            f"{_format_count(votes.n_undated, 'vote')} without a time: filed under the day of "
            "import, outside the drift streams"
        )
    return notes


def _describe_votes(votes: VoteImport, *, are_replayed: bool, is_all_own: bool) -> list[str]:
    notes = []
    if 2 * votes.n_repeating > votes.counts.imported:
        notes.append(
            f"warning: {votes.n_repeating:,} of the {_format_count(votes.counts.imported, 'vote')} "
            "repeat choice and time of stored votes on the same comparisons by other annotators. "
            "If the same people have other names now, because of --map annotator_id or "
            "--keep-annotators, each of these votes counts twice: import both files into a new home"
        )
    notes += describe_read_votes(votes)
    days = sorted(votes.days)
    if days:
        span = f"{_format_count(len(days), 'day')} from {days[0]} to {days[-1]}"
        notes.append(
            f"{span} to be replayed"
            if are_replayed
            else f"{span} of the project's own comparisons: `rlhf loop` or the daemon takes them"
            if is_all_own
            else f"{span}, not replayed: no predictions and no drift for them"
        )
    return notes


def _format_count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _sha256(file: Path) -> str:
    with translate_read_errors(file), file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
