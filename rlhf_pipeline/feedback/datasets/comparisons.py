"""Imports the rows of a file as comparisons of this project."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Protocol

from rlhf_pipeline.core.conversations import normalise_text
from rlhf_pipeline.core.frames import FLAGS, IDENTICAL
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Category, content_id
from rlhf_pipeline.core.row_files import FileRow, RowFile, chunks
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.cells import (
    SPARE,
    RowRejected,
    parse_completion,
    parse_identifier,
    parse_integer,
    parse_optional_identifier,
    parse_optional_text,
    parse_optional_word,
    parse_prompt_cell,
    parse_text,
)
from rlhf_pipeline.feedback.datasets.mapping import Binding, bind
from rlhf_pipeline.feedback.datasets.preference import ExportedRows
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.feedback.datasets.split_conflicts import StoredSplit, refuse_split_conflicts
from rlhf_pipeline.generate.prompts import prompt_id

REQUIRED = [("prompt",), ("completion_a",), ("completion_b",)]
SOURCE = "import"  # default source of a file's rows
MODEL = "imported"
SPLITS = ("train", "calib", "test")
# Columns of a row that are not in its id.
DETAILS = ("category", "gold", "model_version_a", "model_version_b", "split", "split_group")
# by which a row is compared to a stored one
COMPARED = ("pair_key", "completion_a", "source", "source_pair_id", *DETAILS)
GOLD = ("a", "b", "tie")
USED_ABOVE = (
    "is already used in this file for other texts or another source. Give each pair a unique id"
)
STORED = (
    "is stored with other texts or another source, which stay as they are. To correct an import, "
    "import into a new home; a new pair needs an id of its own"
)
LEAVE_OUT = ", or leave the column of ids out with --leave-out"
FIRST_DAY = "1970-01-01"  # earliest possible `start_day` of a home
# comparison, annotator, choice and time of a vote
VoteIdentity = tuple[str, str, str, datetime | None]


class ComparisonStore(Protocol):
    """The part of `store.comparisons` that imports need."""

    def publish_rows(self, rows: Sequence[dict[str, Any]], *, published_at: datetime) -> None: ...
    def with_source_ids(self, ids: Sequence[str]) -> dict[str, str]: ...
    def with_pair_keys(self, keys: Sequence[str]) -> dict[str, str]: ...
    def splits(self, only_given: bool) -> Iterable[StoredSplit]: ...


class StoredRows(Protocol):
    """The part of `store.imports` that finds what is stored, and completes ids of comparisons."""

    def find_fields(
        self, comparison_ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any]]: ...
    def add_source_ids(self, source_ids: Mapping[str, str]) -> None: ...
    def find_known_keys(self, idempotency_keys: Sequence[str]) -> set[str]: ...
    def find_votes(self, comparison_ids: Sequence[str]) -> set[VoteIdentity]: ...


@dataclass
class ComparisonImport:
    """Imports one file of comparisons; `first_day` is the earliest day among the added ones.

    A stored comparison of the same file and texts that has no `source_pair_id` gets that of its
    row. With `match_texts`, a row whose texts are stored is known, whatever its id: its votes find
    it by its texts; else it is stored as repeated, so that votes find its id.
    """

    store: ComparisonStore
    stored: StoredRows
    pair_key: Callable[[str, str, str], str]  # of prompt and completions
    rejects: Rejects
    now: datetime
    source: str | None = None
    counts: ImportCounts = field(default_factory=ImportCounts)
    flags: dict[str, int] = field(default_factory=dict)
    # by column: known rows whose stored value differs, which stays
    differences: Counter[str] = field(default_factory=Counter)
    first_day: str | None = None
    divided_prompts: str | None = None  # note on prompts in several splits
    # texts that differ from an earlier text of their prompt in whitespace, line ends or form alone
    joined_prompts: set[int] = field(default_factory=set)
    _first_texts: dict[str, int] = field(
        default_factory=dict
    )  # hash of the first text by prompt id
    match_texts: bool = False
    n_completed: int = 0  # stored comparisons that got their source_pair_id
    n_other_ids: int = 0  # rows with an id of their own whose texts are stored under another
    # of the last batch: its new comparisons by id, and the keys of its texts
    fresh: dict[str, dict[str, Any]] = field(default_factory=dict)
    _keys: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def run(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
    ) -> ImportCounts:
        """`publish` all rows of the file."""
        deque(self.publish(rows, names, what, progress), maxlen=0)
        return self.counts

    def publish(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
    ) -> Iterator[Sequence[FileRow]]:
        """Publish in batches, in the order of the file, and yield each; a killed import leaves the
        first batches.

        Raises DatasetError, before anything is written, if a prompt or split group would be in two
        splits.
        """
        own = ExportedRows("comparison", rows)
        binding = bind(
            mapping.COMPARISONS | (mapping.OWN_COMPARISONS if own else {}),
            names,
            rows.columns,
            what=what,
            required=REQUIRED,
        )
        self.divided_prompts = refuse_split_conflicts(
            rows, binding, own, what, self.store.splits, progress
        ).describe_divided()
        seen_ids: set[str] = set()
        for batch in chunks(rows):
            self._keys.clear()
            self._publish(self._select_new(batch, binding, own, seen_ids))
            progress(rows.position, rows.size, "comparisons")
            yield batch

    def find_key(self, prompt: str, a: str, b: str) -> str:
        """`pair_key`, which is known for texts of the last batch."""
        return self._keys.get((prompt, a, b)) or self.pair_key(prompt, a, b)

    def _select_new(
        self,
        batch: Sequence[FileRow],
        binding: Binding,
        own: ExportedRows,
        seen_ids: set[str],
    ) -> list[dict[str, Any]]:
        """The valid and unknown rows of the batch as COMPARISONS rows with their flag."""
        read, refusals = own.parse(batch, binding, self._build_comparison)
        by_source_id = self.store.with_source_ids(
            [c["source_pair_id"] for _, c, _ in read if c["source_pair_id"]]
        )
        by_texts = self.store.with_pair_keys([c["pair_key"] for _, c, _ in read])
        ids = {c["comparison_id"] for _, c, _ in read}
        stored = self.stored.find_fields(
            [*ids, *by_source_id.values(), *by_texts.values()], COMPARED
        )
        new = []
        completed: dict[str, str] = {}
        for row, comparison, is_own in read:
            comparison_id: str = comparison["comparison_id"]
            source_id: str = comparison["source_pair_id"] or ""
            key = comparison["pair_key"]
            twin = None if is_own else by_texts.get(key)
            if (
                twin is not None
                and source_id
                and source_id not in by_source_id
                and stored[twin]["source_pair_id"] is None
                and _is_same(stored[twin], comparison)
            ):
                by_source_id[source_id], completed[twin] = twin, source_id
                stored[twin] = stored[twin] | {"source_pair_id": source_id}
            holder = by_source_id.get(source_id) or comparison_id
            if self.match_texts and twin is not None and holder not in stored:
                self.n_other_ids += bool(source_id)
                holder = twin
            elif holder in stored and not (
                stored[holder]["pair_key"] == key
                if holder == comparison_id
                else _is_same(stored[holder], comparison)
            ):
                name = (
                    f"source_pair_id {source_id!r}"
                    if source_id
                    else f"comparison_id {comparison_id!r}"
                )
                reason = USED_ABOVE if holder in seen_ids else STORED
                cure = LEAVE_OUT if source_id else ""
                refusals.append((row, f"{name} {reason}{cure}"))
                continue
            is_first = holder not in seen_ids
            seen_ids.add(holder)
            if holder in stored:
                self.counts = self.counts.plus(**{"stored_before" if is_first else "merged": 1})
                if is_first:
                    self.differences.update(
                        name
                        for name in DETAILS
                        if name in binding and comparison[name] != stored[holder][name]
                    )
                continue
            flag = comparison["flag"] if is_own else _flag(comparison, is_first=twin is None)
            if flag is not None:
                self.flags[flag] = self.flags.get(flag, 0) + 1
            elif comparison["repeat_of"] is None:
                by_texts.setdefault(key, comparison_id)
            if source_id:
                by_source_id[source_id] = comparison_id
            stored[comparison_id] = comparison | {"flag": flag}
            new.append(stored[comparison_id])
        self._complete(completed)
        self.rejects.add_all(refusals)
        self.counts = self.counts.plus(rejected=len(refusals))
        return new

    def _build_comparison(
        self, cells: Mapping[str, Any], line: int, is_own: bool
    ) -> dict[str, Any]:
        """A COMPARISONS row with the pair's key. Completions may be empty."""
        prompt = parse_prompt_cell(cells["prompt"])
        a, b = (
            parse_text(cells[name], name, may_be_empty=True)
            if is_own
            else parse_completion(cells[name], name)
            for name in ("completion_a", "completion_b")
        )
        source_id = parse_optional_identifier(cells.get("source_pair_id"), "source_pair_id")
        source = self.source or parse_optional_identifier(cells.get("source"), "source") or SOURCE
        own_prompt = prompt_id(prompt)
        text = hash(prompt)
        if self._first_texts.setdefault(own_prompt, text) != text:
            self.joined_prompts.add(text)
        comparison = {
            "day": self.now.date().isoformat(),
            "comparison_id": content_id("import", source, source_id, prompt, a, b),
            "prompt_id": own_prompt,
            "prompt": prompt,
            "completion_a_id": content_id(own_prompt, a),
            "completion_b_id": content_id(own_prompt, b),
            "completion_a": a,
            "completion_b": b,
            "model_version_a": parse_optional_identifier(
                cells.get("model_version_a"), "model_version_a"
            )
            or MODEL,
            "model_version_b": parse_optional_identifier(
                cells.get("model_version_b"), "model_version_b"
            )
            or MODEL,
            "category": parse_optional_identifier(cells.get("category"), "category")
            or Category.INSTRUCTION.value,
            "repeat_of": None,
            "position": line,
            "seed": 0,
            "source": source,
            "source_pair_id": source_id,
            "split_group": parse_optional_identifier(cells.get("split_group"), "split_group"),
            "split": parse_optional_word(cells.get("split"), "split", SPLITS),
            "gold": parse_optional_word(cells.get("gold"), "gold", GOLD),
            "flag": None,
            "tags": parse_optional_text(cells.get("tags"), "tags"),
        }
        if is_own:
            comparison |= self._exported_fields(cells)
        key = self._keys[prompt, a, b] = self.pair_key(prompt, a, b)
        return comparison | {"pair_key": key}

    def _exported_fields(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that an exported row keeps: its ids and, except in tuple rows, its day, position,
        seed and flag.
        """
        names = ("comparison_id", "prompt_id", "completion_a_id", "completion_b_id", "day")
        ids = {name: parse_identifier(cells[name], name) for name in names if name in cells}
        if "day" in ids:
            _refuse_impossible_day(ids["day"], self.now)
        counts = {
            name: parse_integer(cells[name], name, low=0, high=2**62) or 0
            for name in ("position", "seed")
            if name in cells
        }
        return (
            ids
            | counts
            | {
                "repeat_of": parse_optional_identifier(cells.get("repeat_of"), "repeat_of"),
                "flag": parse_optional_word(cells.get("flag"), "flag", FLAGS),
            }
        )

    def _complete(self, source_ids: Mapping[str, str]) -> None:
        self.n_completed += len(source_ids)
        if source_ids:
            self.stored.add_source_ids(source_ids)

    def _publish(self, new: Sequence[dict[str, Any]]) -> None:
        self.fresh.clear()
        if new:
            self.store.publish_rows(new, published_at=self.now)
            self.fresh.update((row["comparison_id"], row) for row in new)
            self.counts = self.counts.plus(imported=len(new))
            self.first_day = min(filter(None, (self.first_day, *(row["day"] for row in new))))


def _is_same(stored: Mapping[str, Any], comparison: Mapping[str, Any]) -> bool:
    """Whether a stored comparison has a row's texts on the same sides, and its source."""
    return (
        stored["pair_key"] == comparison["pair_key"]
        and stored["source"] == comparison["source"]
        and normalise_text(stored["completion_a"]) == normalise_text(comparison["completion_a"])
    )


def _refuse_impossible_day(day: str, now: datetime) -> None:
    """Raise RowRejected if the day cannot be a partition: before the earliest start day or in the
    future.
    """
    try:
        is_canonical = date.fromisoformat(day).isoformat() == day
    except ValueError:
        is_canonical = False
    if not is_canonical:
        raise RowRejected(f"day is {day!r}; expected YYYY-MM-DD")
    latest = (now.date() + SPARE).isoformat()
    if not FIRST_DAY <= day <= latest:
        raise RowRejected(f"day is {day}; expected {FIRST_DAY} to {latest}")


def _flag(comparison: Mapping[str, Any], *, is_first: bool) -> str | None:
    """Why the comparison gives no training pair, or None; `is_first` if no other one has the same
    two texts.
    """
    if comparison["completion_a"].strip() == comparison["completion_b"].strip():
        return IDENTICAL
    return None if is_first else "repeated"
