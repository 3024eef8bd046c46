"""`rlhf import preferences`: pairs and votes of a file of any known shape, shown before stored."""

import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.imports import (
    IMPORTS,
    Delimiter,
    ImportSession,
    Map,
    Project,
    app,
    open_import,
    read_settings,
)
from rlhf_pipeline.cli.replay import replay_pending
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.conversations import split_turns
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import FileRow, RowFile, open_rows
from rlhf_pipeline.feedback.datasets.cells import MomentParser
from rlhf_pipeline.feedback.datasets.comparisons import ComparisonImport
from rlhf_pipeline.feedback.datasets.dry_run import DryRun
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import (
    PreferenceFile,
    ReadOptions,
    take_votes,
)
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import Rejects
from rlhf_pipeline.feedback.datasets.shapes import SHAPES
from rlhf_pipeline.feedback.datasets.staging import StagedVotes
from rlhf_pipeline.feedback.datasets.votes import VoteImport
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.audit import SALT_RECORDED
from rlhf_pipeline.store.comparisons import pair_key

SHOWN = 10  # pairs of a preview
WIDTH = 60  # characters of a text in it
NOT_STORED = 2  # exit code


class RowsOfVotes(NamedTuple):
    """The votes of a file; `beside` are the comparisons beside them and the votes on each batch of
    these, which is stored as it is taken.
    """

    rows: RowFile
    names: ColumnMapping
    beside: tuple[ComparisonImport, Iterable[Sequence[FileRow]]] | None = None


Files = Annotated[
    list[Path],
    typer.Argument(
        help=".jsonl, .json, .csv, .tsv (also with .gz) or .parquet; of pairs and votes in two "
        "files, both.",
        show_default=False,
    ),
]


@app.command("preferences")
def preferences(
    files: Files,
    yes: Annotated[
        bool, typer.Option("--yes", help="Store without showing and asking first.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Shape of the rows where several fit: {', '.join(SHAPES)}.",
        ),
    ] = None,
    map_: Map = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD=CHOICE",
            help="A word of the file for a, b, tie, both_bad or skip; may be repeated.",
        ),
    ] = None,
    annotator: Annotated[
        str | None,
        typer.Option(help="Annotator of votes that name none; default: unnamed."),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            help="Form of times that are not ISO 8601, such as '%d.%m.%Y %H:%M', or excel for days "
            "of a spreadsheet."
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone of times without one, such as Europe/Berlin.")
    ] = "UTC",
    decimal: Annotated[
        str, typer.Option(help="Decimal mark of numbers in texts: . or a comma.")
    ] = ".",
    keep_others: Annotated[
        bool, typer.Option("--keep-others", help="Keep columns without a meaning as tags.")
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Leave a column with texts out; may be repeated."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Name of the data set, for files without a column `source`.")
    ] = None,
    delimiter: Delimiter = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of a CSV file; default: UTF-8, UTF-16 or Windows-1252."),
    ] = None,
    project: Project = None,
    keep_annotators: Annotated[
        bool,
        typer.Option(
            "--keep-annotators", help="Store annotators' names as they are, not as pseudonyms."
        ),
    ] = False,
    no_replay: Annotated[
        bool,
        typer.Option(
            "--no-replay",
            help="Do not replay the imported days: they get no predictions and no drift report.",
        ),
    ] = False,
    offer: Annotated[
        bool,
        typer.Option(
            "--offer", help="Offer pairs without votes to people, under the rules of the project."
        ),
    ] = False,
) -> None:
    """Pairs with votes. The shape of the rows is recognised: TRL preference files, hh-rlhf,
    UltraFeedback, HelpSteer, Chatbot Arena, unpaired rows, several answers, OpenAssistant, Argilla,
    Label Studio, our own exports, and any file with columns for a prompt and two completions.

    Shows how ten pairs would be stored and asks; then `rlhf votes prepare` and `rlhf reward train`
    make a first reward model.
    """
    if decimal not in (".", ","):
        raise DatasetError(f"--decimal {decimal!r}: write . or a comma.")
    names = ColumnMapping.read(map_ or (), choice or ())
    options = ReadOptions(format_, annotator, decimal, keep_others, leave_out or ())
    opened = [
        PreferenceFile(
            open_rows(path, delimiter=delimiter, encoding=encoding), str(path), names, options
        )
        for path in files
    ]
    order = sorted(zip(files, opened, strict=True), key=lambda entry: entry[1].pairs is None)
    settings = read_settings(project)
    now = datetime.now(UTC)

    def parse_times() -> MomentParser:
        return MomentParser(timezone, now=now, time_format=time_format)

    if not yes:
        with _open_for_reading(settings) as store:
            dry = DryRun(store.comparisons, store.imports)
            pseudonyms = None if keep_annotators else _find_pseudonyms(settings, store)
            for path, file in order:
                _preview(path, file, dry, parse_times(), pseudonyms, source)
        if not sys.stdin.isatty():
            echo("Nothing was stored: there is no terminal to ask. Add --yes to store this.")
            raise typer.Exit(NOT_STORED)
        typer.confirm("Store this?", abort=True)
    for path, file in order:
        with open_import("preferences", path, file.rows, project, names) as intake:
            store = intake.workspace.store
            beside = None
            if file.pairs is not None:
                comparisons = ComparisonImport(
                    store.comparisons, store.imports, pair_key, intake.rejects, intake.now, source
                )
                comparisons.match_texts = file.votes is not None
                published = import_comparisons(intake, comparisons, file.pairs, file.names)
                if file.is_exported or file.votes is None:
                    deque(published, maxlen=0)
                else:
                    beside = comparisons, take_votes(published)
            if file.votes is not None:
                votes = VoteImport(
                    store.comparisons,
                    store.imports,
                    intake.rejects,
                    StagedVotes(settings.home / IMPORTS),
                    parse_times(),
                    None if keep_annotators else load_pseudonyms(intake.workspace),
                    pair_key=None if file.is_exported else pair_key,
                )
                rows = RowsOfVotes(file.votes, file.names, beside)
                import_votes(intake, votes, rows, are_replayed=not no_replay)
            intake.notes += _describe_notes(file)
            if yes and file.dropped:
                intake.notes.append(f"columns left out: {', '.join(file.dropped)} (--keep-others)")
        echo(f"{path}: {file.title}")
        intake.report()
    workspace = intake.workspace
    if offer:
        unvoted = workspace.store.comparisons.find_offerable_ids(unvoted_only=True)
        n = workspace.store.cards.offer(
            unvoted, overlap=workspace.store.rules.latest()[1].overlap, actor="rlhf import"
        )
        echo(f"{format_count(n, 'judgement')} wanted of people")
    if not no_replay and workspace.store.replays.pending_days():
        replay_pending(workspace, after_import=True)


def import_comparisons(
    intake: ImportSession, comparisons: ComparisonImport, rows: RowFile, names: ColumnMapping
) -> Iterator[Sequence[FileRow]]:
    """Publish the comparisons of a file, note what became of them, and yield each batch."""
    intake.works = {"pairs": comparisons, **intake.works}
    yield from comparisons.publish(rows, names, str(intake.file), intake.progress)
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
            f"{format_count(comparisons.n_completed, 'stored pair')} had no id and got that of "
            "this file"
        )
    if comparisons.n_other_ids:
        notes.append(
            f"{format_count(comparisons.n_other_ids, 'pair')} have the texts of a pair with "
            "another id: their votes count there, and their own ids are not stored"
        )
    if comparisons.joined_prompts:
        notes.append(
            f"{len(comparisons.joined_prompts):,} prompts differ from others in whitespace, "
            "line ends or Unicode form alone: each shares the split of the other"
        )
    if comparisons.divided_prompts:
        notes.append(comparisons.divided_prompts)
    if comparisons.differences:
        columns = ", ".join(
            f"{name} of {n:,}" for name, n in sorted(comparisons.differences.items())
        )
        notes.append(
            f"stored columns were not changed, but differ from this file: {columns}. To correct "
            "them, import the file into a new home"
        )
    return notes


def import_votes(
    intake: ImportSession, votes: VoteImport, rows: RowsOfVotes, *, are_replayed: bool = True
) -> None:
    """Read the file, ask for the replay of its days, and cast its votes, in this order, so that no
    imported day misses its replay after a kill.

    The days are noted with the import first, so that none of them is replayed with a part of its
    votes. Where all comparisons are the project's own, their predictions were made when they were
    published: nothing is replayed, and the votes are treated like those of the web page.
    """
    store = intake.workspace.store
    intake.works["votes"] = votes
    if rows.beside is None:
        votes.read(rows.rows, rows.names, str(intake.file), intake.progress)
    else:
        votes.read_beside(*rows.beside, rows.rows, rows.names, str(intake.file))
    is_all_own = store.comparisons.n_imported() == 0
    are_replayed = are_replayed and not is_all_own
    if votes.days:
        intake.extend_start_day(date.fromisoformat(min(votes.days)))
        store.imports.mark_casting(intake.import_id, sorted(votes.days))
        if are_replayed:
            store.replays.request(sorted(votes.days))
    store.annotator_groups.assign(votes.groups, actor="rlhf import")
    votes.record(store.votes, intake.progress)
    intake.notes += _describe_votes(votes, are_replayed=are_replayed, is_all_own=is_all_own)


def describe_read_votes(votes: VoteImport) -> list[str]:
    """What is known of the votes of a file before they are cast."""
    notes = []
    if votes.n_doubled:
        notes.append(
            f"{format_count(votes.n_doubled, 'vote')} merged: sent twice, equal to a vote of the "
            "same person on the same pair at most 5 seconds before"
        )
    if votes.n_replaced:
        notes.append(
            f"{format_count(votes.n_replaced, 'vote')} on a pair that the same person judged "
            "before: the last one counts (--map annotator_id=COLUMN names people)"
        )
    if votes.n_untaught:
        notes.append(
            f"{format_count(votes.n_untaught, 'vote')} on pairs that are left out of training"
        )
    clock = votes.clock
    if clock.n_without_zone:
        other = f", {clock.n_with_zone:,} with one converted to UTC" if clock.n_with_zone else ""
        notes.append(
            f"{format_count(clock.n_without_zone, 'time')} without a zone read as "
            f"{clock.name}{other} (--timezone names another)"
        )
    if clock.n_skipped:
        notes.append(
            f"{format_count(clock.n_skipped, 'time')} in an hour that the clocks of {clock.name} "
            "skip: read as if they had not been changed yet"
        )
    if clock.n_doubled:
        notes.append(
            f"{format_count(clock.n_doubled, 'time')} in an hour that the clocks of {clock.name} "
            "have twice: read as the first, at most an hour off"
        )
    if votes.n_undated:
        notes.append(
            f"{format_count(votes.n_undated, 'vote')} without a time: filed under the day of "
            "import, outside the drift streams"
        )
    return notes


def _describe_votes(votes: VoteImport, *, are_replayed: bool, is_all_own: bool) -> list[str]:
    notes = []
    if 2 * votes.n_repeating > votes.counts.imported:
        notes.append(
            f"warning: {votes.n_repeating:,} of the {format_count(votes.counts.imported, 'vote')} "
            "repeat choice and time of stored votes on the same comparisons by other annotators. "
            "If the same people have other names now, because of --map annotator_id or "
            "--keep-annotators, each of these votes counts twice: import both files into a new home"
        )
    notes += describe_read_votes(votes)
    days = sorted(votes.days)
    if days:
        span = f"{format_count(len(days), 'day')} from {days[0]} to {days[-1]}"
        notes.append(
            f"{span} to be replayed"
            if are_replayed
            else f"{span} of the project's own comparisons: `rlhf loop` or the daemon takes them"
            if is_all_own
            else f"{span}, not replayed: no predictions and no drift for them"
        )
    return notes


def load_pseudonyms(workspace: Workspace) -> Pseudonyms:
    """Raises DatasetError where the home lost the salt of its first import, or holds another."""
    recorded = workspace.store.audit.find_digest(SALT_RECORDED)
    pseudonyms = Pseudonyms.load(workspace.settings.home, recorded)
    if recorded is None:
        workspace.store.audit.record_salt(pseudonyms.salt_hash)
    return pseudonyms


@contextmanager
def _open_for_reading(settings: Settings) -> Iterator[Store]:
    """The store of the home, or an empty one where there is no home yet."""
    if HomeFacts.load(settings.home) is not None:
        workspace = Workspace.from_settings(settings)
        workspace.store.migrate()
        yield workspace.store
        workspace.store.close()
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/store.db") as store,
    ):
        store.migrate()
        yield store


def _find_pseudonyms(settings: Settings, store: Store) -> Pseudonyms | None:
    """Those of earlier imports; the first import makes them."""
    recorded = store.audit.find_digest(SALT_RECORDED)
    return None if recorded is None else Pseudonyms.load(settings.home, recorded)


def _preview(
    path: Path,
    file: PreferenceFile,
    dry: DryRun,
    clock: MomentParser,
    pseudonyms: Pseudonyms | None,
    source: str | None,
) -> None:
    """Print what a file holds, what becomes of each column, and how its first pairs would be
    stored.
    """
    echo(f"{path}: {file.title}")
    for note in file.rows.notes:
        echo(note)
    if file.becomes:
        rows = [{"column": name, "becomes": text} for name, text in file.becomes.items()]
        show(rows, title="Columns", empty="")
    with (
        tempfile.TemporaryDirectory() as folder,
        Rejects(Path(folder) / path.name, Path(folder)) as rejects,
    ):
        n_before = len(dry.rows)
        comparisons = ComparisonImport(dry, dry, pair_key, rejects, datetime.now(UTC), source)
        comparisons.match_texts = file.votes is not None
        votes = VoteImport(
            dry,
            dry,
            rejects,
            StagedVotes(Path(folder)),
            clock,
            pseudonyms,
            pair_key=None if file.is_exported else pair_key,
        )
        if file.pairs is not None and file.votes is not None and not file.is_exported:
            published = comparisons.publish(file.pairs, file.names, str(path))
            votes.read_beside(comparisons, take_votes(published), file.votes, file.names, str(path))
        else:
            if file.pairs is not None:
                comparisons.run(file.pairs, file.names, str(path))
            if file.votes is not None:
                votes.read(file.votes, file.names, str(path))
        n_new = sum(len(batch) for batch in votes.new_votes())
        pairs = list(dry.rows.values())[n_before : n_before + SHOWN]
        echo(
            f"First of {comparisons.counts.imported:,} new pairs as they would be stored, and "
            f"{n_new:,} new votes:"
        )
        show(
            _describe_pairs(pairs, votes.shown) or [*map(_describe_vote, votes.shown[:SHOWN])],
            title="",
            empty="nothing new",
        )
        echo(f"pairs: {_count(comparisons)}; votes: {_count(votes, n_new)}")
        if not file.is_exported:
            echo("names of annotators are stored as pseudonyms (--keep-annotators keeps them)")
        for note in (
            *describe_comparisons(comparisons),
            *describe_read_votes(votes),
            *_describe_notes(file),
        ):
            echo(note)
        for line, reason in rejects.first:
            echo(f"rejected line {line:,}: {reason}")
        if rejects.n > len(rejects.first):
            echo(f"rejected: {rejects.n - len(rejects.first):,} more")


def _count(work: ComparisonImport | VoteImport, n_new: int | None = None) -> str:
    counts = work.counts
    n_new = counts.imported if n_new is None else n_new
    return (
        f"{n_new:,} new, {counts.stored_before:,} known, {counts.merged:,} merged, "
        f"{counts.rejected:,} rejected"
    )


def _describe_pairs(
    pairs: Sequence[dict[str, Any]], votes: Sequence[dict[str, Any]]
) -> list[dict[str, str]]:
    return [
        {
            "prompt": _shorten_prompt(pair["prompt"]),
            "a": _shorten(pair["completion_a"]),
            "b": _shorten(pair["completion_b"]),
            "votes": "; ".join(
                _write_vote(vote)
                for vote in votes
                if vote["comparison_id"] == pair["comparison_id"]
            ),
        }
        for pair in pairs
    ]


def _describe_vote(vote: dict[str, Any]) -> dict[str, str]:
    return {"comparison": vote["comparison_id"], "vote": _write_vote(vote)}


def _write_vote(vote: dict[str, Any]) -> str:
    strength = "" if vote["strength"] is None else f" ({vote['strength']})"
    at = vote["voted_at"]
    time = "" if at is None else f", {at:%Y-%m-%d %H:%M} UTC"
    return f"{vote['choice']}{strength} by {vote['annotator_id']}{time}"


def _describe_notes(file: PreferenceFile) -> list[str]:
    return [f"{n:,}: {note}" for note, n in file.notes.most_common()]


def _shorten_prompt(prompt: str) -> str:
    """The last turn, with the number of those before."""
    turns = split_turns(prompt)
    return f"({len(turns)} turns) {_shorten(turns[-1].text)}" if turns else _shorten(prompt)


def _shorten(text: str) -> str:
    line = text.replace("\r", "").replace("\n", "⏎")
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}…"
