"""Published comparisons, each stored together with its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, literal, or_, select, tuple_

from rlhf_pipeline.core.conversations import normalise_prompt, normalise_text
from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS
from rlhf_pipeline.core.records import (
    GATE_SOURCE,
    AnnotatorKind,
    Choice,
    Record,
    content_hash,
    content_id,
)
from rlhf_pipeline.store.audit import PREDICTIONS_WRITE, audited_transaction
from rlhf_pipeline.store.comparison_lists import FRAME_COLUMNS, ComparisonLists
from rlhf_pipeline.store.conversion import batches, frame_of, rows_of
from rlhf_pipeline.store.engine import MAX_PARAMETERS, MAX_ROWS
from rlhf_pipeline.store.predictions import write_predictions
from rlhf_pipeline.store.schema import comparisons, predictions, votes

if TYPE_CHECKING:
    import pandas as pd

IS_NOT_OF_GATE = comparisons.c.source.is_distinct_from(GATE_SOURCE)


class PublishResult(Record):
    """Number of new and known comparisons, of predictions written, and of those refused because a
    vote came first.
    """

    n_new: int = 0
    n_known: int = 0
    n_predictions: int = 0
    n_predictions_refused: int = 0

    def add(self, other: PublishResult) -> PublishResult:
        return PublishResult(
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in PublishResult.model_fields
            }
        )


class Texts(Record):
    """A prompt, its two completions, and their authors, which no annotator sees."""

    comparison_id: str
    prompt: str
    completion_a: str
    completion_b: str
    completion_a_id: str
    completion_b_id: str
    model_version_a: str
    model_version_b: str


def pair_key(prompt: str, completion_a: str, completion_b: str) -> str:
    """Equal for the same two texts under the same prompt, whichever side they are shown on and
    whatever their whitespace at the ends, line ends and Unicode form.
    """
    texts = sorted(map(normalise_text, (completion_a, completion_b)))
    return content_id(normalise_prompt(prompt), *texts)


class Comparisons(ComparisonLists):
    """Insert or ignore by comparison_id: publishing again changes nothing."""

    def publish(
        self, frame: pd.DataFrame, predicted: pd.DataFrame | None = None, *, published_at: datetime
    ) -> PublishResult:
        """Store COMPARISONS and PREDICTIONS; a comparison and its predictions are stored in one
        transaction.

        A stored prediction stays as it is; one for a comparison that has a vote is refused and
        counted, because predictions come before votes. Raises UnknownComparison for a prediction of
        a comparison neither given nor stored, FrameError for a frame that breaks its schema. After
        a kill, publish the same again.
        """
        rows = [
            {**row, "pair_key": pair_key(row["prompt"], row["completion_a"], row["completion_b"])}
            for row in rows_of(frame, COMPARISONS)
        ]
        by_comparison: dict[str, list[dict[str, Any]]] = {}
        for prediction in rows_of(predicted, PREDICTIONS) if predicted is not None else ():
            by_comparison.setdefault(prediction["comparison_id"], []).append(prediction)
        result = PublishResult()
        units = [(row, by_comparison.pop(row["comparison_id"], [])) for row in rows]
        per_unit = 1 + max((len(p) for _, p in units), default=0)
        for batch in self._database.with_backoff(batches(units, max(1, MAX_ROWS // per_unit))):
            result = result.add(
                self._publish(
                    [r for r, _ in batch], [p for _, ps in batch for p in ps], published_at
                )
            )
        for part in self._database.with_backoff(
            batches([p for ps in by_comparison.values() for p in ps], MAX_ROWS)
        ):
            result = result.add(self._publish([], part, published_at))
        return result

    def publish_rows(self, rows: Sequence[dict[str, Any]], *, published_at: datetime) -> None:
        """`publish` for checked rows of COMPARISONS, each with its `pair_key`."""
        for batch in self._database.with_backoff(batches(rows, MAX_ROWS)):
            self._publish(batch, [], published_at)

    def for_days(self, days: Sequence[str]) -> pd.DataFrame:
        """COMPARISONS that this pipeline published for `days`, in the order they are to be judged,
        without imported ones.
        """
        own = comparisons.c.source.is_(None)
        query = (
            select(*FRAME_COLUMNS)
            .where(
                comparisons.c.day.in_(sorted(set(days))),
                own,
            )
            .order_by(comparisons.c.day, comparisons.c.position, comparisons.c.comparison_id)
        )
        return frame_of(self._database.fetch_all(query), COMPARISONS)

    def with_ids(self, ids: Sequence[str]) -> pd.DataFrame:
        """COMPARISONS with these ids, in the order of `for_days`; unknown ids are left out."""
        query = select(*FRAME_COLUMNS)
        rows = self._database.fetch_among(query, comparisons.c.comparison_id, ids)
        return frame_of(
            sorted(rows, key=lambda row: (row.day, row.position, row.comparison_id)), COMPARISONS
        )

    def texts(self, ids: Sequence[str]) -> dict[str, Texts]:
        """Texts of these comparisons by id; unknown ids are left out."""
        texts: dict[str, Texts] = {}
        with self._database.read_transaction() as connection:
            for batch in batches(sorted(set(ids)), MAX_PARAMETERS):
                rows = connection.execute(_TEXTS, {"values": batch}).mappings().all()
                texts |= {row["comparison_id"]: Texts.model_construct(**row) for row in rows}
        return texts

    def stream(self, batch_rows: int = 1000) -> Iterator[pd.DataFrame]:
        """All COMPARISONS, imported and flagged ones too, by day and position, in frames of at most
        `batch_rows`.

        Each frame is read in a transaction of its own, so a slow reader blocks no writer;
        comparisons published meanwhile may be included.
        """
        place = tuple_(comparisons.c.day, comparisons.c.position, comparisons.c.comparison_id)
        ordered = select(*FRAME_COLUMNS).order_by(*place.clauses).limit(batch_rows)
        after: Row[Any] | None = None
        while True:
            query = (
                ordered
                if after is None
                else ordered.where(place > (after.day, after.position, after.comparison_id))
            )
            rows = self._database.fetch_all(query)
            if not rows:
                return
            yield frame_of(rows, COMPARISONS)
            after = rows[-1]

    def with_source_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """source_pair_id -> comparison_id of the imported comparisons among `ids`; unknown ones are
        left out.
        """
        imported = select(comparisons.c.source_pair_id, comparisons.c.comparison_id)
        rows = self._database.fetch_among(imported, comparisons.c.source_pair_id, ids)
        return {row.source_pair_id: row.comparison_id for row in rows}

    def with_pair_keys(self, keys: Sequence[str]) -> dict[str, str]:
        """pair_key -> the first comparison of those two texts that is neither flagged nor a repeat;
        see `pair_key`.
        """
        first = func.min(comparisons.c.comparison_id).label("comparison_id")
        query = (
            select(comparisons.c.pair_key, first)
            .where(
                comparisons.c.flag.is_(None),
                comparisons.c.repeat_of.is_(None),
                IS_NOT_OF_GATE,
            )
            .group_by(comparisons.c.pair_key)
        )
        rows = self._database.fetch_among(query, comparisons.c.pair_key, keys)
        return {row.pair_key: row.comparison_id for row in rows}

    def prompts(self) -> dict[str, str]:
        """Text of every prompt by its id, without those that the gate asked about. Reads every
        comparison.
        """
        prompt = select(comparisons.c.prompt_id, func.min(comparisons.c.prompt))
        query = prompt.where(IS_NOT_OF_GATE).group_by(comparisons.c.prompt_id)
        rows = self._database.fetch_all(query)
        return {row[0]: row[1] for row in rows}

    def splits(
        self, only_given: bool = False
    ) -> list[tuple[str, str | None, str | None, str, str]]:
        """Each combination of prompt id, split group and split once, with the id of one comparison
        and the beginning of its prompt; with `only_given` those with a given group or split. Reads
        every comparison.
        """
        of = (comparisons.c.prompt_id, comparisons.c.split_group, comparisons.c.split)
        query = select(
            *of,
            func.min(comparisons.c.comparison_id),
            func.min(func.substr(comparisons.c.prompt, 1, 100)),
        ).group_by(*of)
        conditions = (
            (or_(comparisons.c.split.is_not(None), comparisons.c.split_group.is_not(None)),)
            if only_given
            else ()
        )
        return [
            row._tuple() for row in self._database.fetch_all(query.where(*conditions).order_by(*of))
        ]

    def find_offerable_ids(
        self, *, day: str | None = None, unvoted_only: bool = False
    ) -> list[str]:
        """Ids of comparisons that people may be asked about, oldest first: no repeats, flagged
        ones, corrections, which their authors judged by writing them, or those of the gate, which
        asks itself; with `day` of that day.

        With `unvoted_only`, those that no person has judged; skips and votes of machines do not
        count.
        """
        conditions: list[ColumnElement[bool]] = [
            comparisons.c.flag.is_(None),
            comparisons.c.repeat_of.is_(None),
            comparisons.c.written_by.is_(None),
            IS_NOT_OF_GATE,
        ]
        if day is not None:
            conditions.append(comparisons.c.day == day)
        if unvoted_only:
            judgement = select(literal(1)).where(
                votes.c.comparison_id == comparisons.c.comparison_id,
                votes.c.choice != Choice.SKIP.value,
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            )
            conditions.append(~judgement.exists())
        order = (comparisons.c.day, comparisons.c.position, comparisons.c.comparison_id)
        return list(
            self._database.fetch_scalars(
                select(comparisons.c.comparison_id).where(*conditions).order_by(*order)
            )
        )

    def count(self) -> int:
        return self._database.count(comparisons)

    def first_day(self) -> str | None:
        """Earliest day of a comparison; None if there is none."""
        return self._database.fetch_scalar(select(func.min(comparisons.c.day)))

    def n_imported(self) -> int:
        """Number of comparisons from files, which the pipeline cannot make again."""
        is_imported = comparisons.c.source.is_not(None)
        return self._database.count(comparisons, is_imported, IS_NOT_OF_GATE)

    def _publish(
        self, rows: list[dict[str, Any]], predicted: list[dict[str, Any]], published_at: datetime
    ) -> PublishResult:
        with audited_transaction(self._database) as (connection, ledger):
            stored_ids = self._find_stored_ids(
                connection, [row["comparison_id"] for row in (*rows, *predicted)]
            )
            new = [
                {**row, "published_at": published_at}
                for row in rows
                if row["comparison_id"] not in stored_ids
            ]
            unknown = (
                {p["comparison_id"] for p in predicted}
                - stored_ids
                - {row["comparison_id"] for row in rows}
            )
            if unknown:
                raise UnknownComparison(
                    f"{len(unknown)} predictions are for comparisons that were never published, "
                    f"first {min(unknown)!r}. Publish the comparisons with them."
                )
            self._database.insert(connection, comparisons, new)
            if new:
                ledger.append(
                    actor="pipeline",
                    action="comparisons.publish",
                    object_id=f"{len(new)} comparisons",
                    digest=content_hash(new),
                )
            new_predictions, n_refused = self._select_new_predictions(connection, predicted)
            write_predictions(
                self._database, connection, ledger, new_predictions, action=PREDICTIONS_WRITE
            )
        return PublishResult(
            n_new=len(new),
            n_known=len(rows) - len(new),
            n_predictions=len(new_predictions),
            n_predictions_refused=n_refused,
        )

    def _select_new_predictions(
        self, connection: Connection, predicted: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], int]:
        ids = sorted({p["comparison_id"] for p in predicted})
        stored = select(predictions.c.comparison_id, predictions.c.reward_model).where(
            predictions.c.comparison_id.in_(ids)
        )
        voted = select(votes.c.comparison_id).where(votes.c.comparison_id.in_(ids)).distinct()
        stored_keys = {(row.comparison_id, row.reward_model) for row in connection.execute(stored)}
        too_late = set(connection.execute(voted).scalars())
        new = [p for p in predicted if (p["comparison_id"], p["reward_model"]) not in stored_keys]
        accepted = [p for p in new if p["comparison_id"] not in too_late]
        return accepted, len(new) - len(accepted)

    def _find_stored_ids(self, connection: Connection, ids: list[str]) -> set[str]:
        stored = select(comparisons.c.comparison_id).where(
            comparisons.c.comparison_id.in_(sorted(set(ids))),
        )
        return set(connection.execute(stored).scalars())


_TEXTS = select(*(comparisons.c[name] for name in Texts.model_fields)).where(
    comparisons.c.comparison_id.in_(bindparam("values", expanding=True))
)
