"""`rlhf import preferences`: pairs and votes of a file of any known shape, shown before stored."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.imports import (
    Delimiter,
    KeepAnnotators,
    Map,
    MappingFile,
    NoReplay,
    Project,
    Timezone,
    app,
    describe_comparisons,
    describe_read_votes,
    import_comparisons,
    import_votes,
    load_pseudonyms,
    open_import,
    read_settings,
)
from rlhf_pipeline.cli.replay import replay_pending
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.conversations import split_turns
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.cells import MomentParser
from rlhf_pipeline.feedback.datasets.comparisons import ComparisonImport
from rlhf_pipeline.feedback.datasets.dry_run import DryRun
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import PreferenceFile, ReadOptions
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import Rejects
from rlhf_pipeline.feedback.datasets.shapes import SHAPES
from rlhf_pipeline.feedback.datasets.staging import StagedVotes
from rlhf_pipeline.feedback.datasets.votes import VoteImport
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.audit import SALT_RECORDED
from rlhf_pipeline.store.comparisons import pair_key

SHOWN = 10  # pairs of a preview
WIDTH = 60  # characters of a text in it
NOT_STORED = 2  # exit code

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
    mapping: MappingFile = None,
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
    timezone: Timezone = "UTC",
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
    keep_annotators: KeepAnnotators = False,
    no_replay: NoReplay = False,
) -> None:
    """Pairs with votes. The shape of the rows is recognised: TRL preference files, hh-rlhf,
    UltraFeedback, HelpSteer, Chatbot Arena, unpaired rows, several answers, OpenAssistant, Argilla,
    Label Studio, our own exports, and any file with columns for a prompt and two completions.

    Shows how ten pairs would be stored and asks; then `rlhf votes prepare` and `rlhf reward train`
    make a first reward model.
    """
    if decimal not in (".", ","):
        raise DatasetError(f"--decimal {decimal!r}: write . or a comma.")
    names = ColumnMapping.read(mapping, map_ or (), choice or ())
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
            dry = DryRun(store.comparisons, store.imports, pair_key)
            pseudonyms = None if keep_annotators else _find_pseudonyms(settings, store)
            for path, file in order:
                _preview(path, file, dry, parse_times(), pseudonyms, source)
        if not sys.stdin.isatty():
            echo("Nothing was stored: there is no terminal to ask. Add --yes to store this.")
            raise typer.Exit(NOT_STORED)
        typer.confirm("Store this?", abort=True)
    for path, file in order:
        with open_import("preferences", path, project, names, None, file.rows) as intake:
            store = intake.workspace.store
            if file.pairs is not None:
                comparisons = ComparisonImport(
                    store.comparisons, store.imports, pair_key, intake.rejects, intake.now, source
                )
                comparisons.match_texts = True
                import_comparisons(intake, comparisons, file.pairs, file.names)
            if file.votes is not None:
                import_votes(
                    intake,
                    parse_times(),
                    None if keep_annotators else load_pseudonyms(intake.workspace),
                    file.names,
                    are_undated=not file.has_times,
                    are_replayed=not no_replay,
                    rows=None if file.is_exported else file.votes,
                )
            intake.notes += _describe_notes(file)
            if yes and file.dropped:
                intake.notes.append(f"columns left out: {', '.join(file.dropped)} (--keep-others)")
        echo(f"{path}: {file.title}")
        intake.report()
    workspace = intake.workspace
    if not no_replay and workspace.store.replays.pending_days():
        replay_pending(workspace, after_import=True)


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
        comparisons.match_texts = True
        if file.pairs is not None:
            comparisons.run(file.pairs, file.names, str(path))
        votes = VoteImport(
            dry,
            dry,
            rejects,
            StagedVotes(Path(folder)),
            clock,
            pseudonyms,
            not file.has_times,
            pair_key=None if file.is_exported else pair_key,
        )
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
        f"{n_new:,} new, {counts.known:,} known, {counts.merged:,} merged, "
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
