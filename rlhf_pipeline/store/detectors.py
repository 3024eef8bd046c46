"""The error stream that drift detectors read, and their saved states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, case, func, select

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import GATE_SOURCE, AnnotatorKind, Choice, DriftEvent
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.counting import is_standing
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.events import insert_events
from rlhf_pipeline.store.schema import comparisons, detector_states, predictions, votes

if TYPE_CHECKING:
    import pandas as pd

# Columns of the error stream. `p` is the stated probability of side a, `expected_error` one minus
# the stated confidence. `shown_left` and `longer` are "a", "b" or None: unknown, or equally long.
ERROR_STREAM = {
    "seq": "int64",
    "day": "str",
    "error": "float64",
    "comparison_id": "str",
    "category": "str",
    "annotator_id": "str",
    "p": "float64",
    "expected_error": "float64",
    "shown_left": "object",
    "longer": "object",
}

States = Mapping[str, Mapping[str, Any]]


class Detectors(Repository):
    """What was read is kept per (model version, stream, detector)."""

    def states(self, model_version: str, *, stream: str = "errors") -> dict[str, dict[str, Any]]:
        """Saved states by detector name; empty before the first scan."""
        query = select(detector_states.c.detector, detector_states.c.state).where(
            self._is_state_of(model_version, stream)
        )
        return {row.detector: json.loads(row.state) for row in self._database.fetch_all(query)}

    def record_scan(
        self,
        events: Sequence[DriftEvent],
        model_version: str,
        states: States,
        *,
        stream: str = "errors",
    ) -> int:
        """Store events and the states after them (each a JSON mapping with `last_seq`) in one
        transaction; returns the number of new events. A state that has read less than the stored
        one is dropped.

        Scanning the same rows again, or in two processes at once, adds nothing.
        """
        with self._database.write_transaction() as connection:
            n_new = insert_events(connection, self._database, events)
            self._save(connection, model_version, states, stream)
        return n_new

    def list_annotators(self, before_seq: int) -> frozenset[str]:
        """Who voted before `before_seq`."""
        query = select(votes.c.annotator_id).where(votes.c.seq < before_seq).distinct()
        return frozenset(row.annotator_id for row in self._database.fetch_all(query))

    def errors_of(self, model_version: str, *, up_to_seq: int | None = None) -> pd.DataFrame:
        """The prequential error stream of a reward model: columns of ERROR_STREAM, in seq order.

        One row per vote for a or b that stood at `up_to_seq` (default: now) on a comparison that
        the model predicted; repeats included, with the original's comparison_id; votes without a
        time, those of machines and those for the gate left out: what is optimised to please a
        reward model fools it more often, while taste stays. `error` is 1 for a vote against the
        side with the higher score, else 0; equal scores predict no side and are left out, as in the
        reflection log.
        """
        import pandas as pd

        length_a, length_b = (
            func.length(column)
            for column in (comparisons.c.completion_a, comparisons.c.completion_b)
        )
        predicted = case(
            (predictions.c.score_a > predictions.c.score_b, Choice.A.value), else_=Choice.B.value
        )
        query = (
            select(
                votes.c.seq,
                votes.c.day,
                case((predicted == votes.c.choice, 0.0), else_=1.0).label("error"),
                func.coalesce(comparisons.c.repeat_of, comparisons.c.comparison_id).label(
                    "comparison_id"
                ),
                comparisons.c.category,
                votes.c.annotator_id,
                predictions.c.p_calibrated,
                votes.c.is_swapped,
                case((length_a > length_b, "a"), (length_a < length_b, "b")).label("longer"),
            )
            .join(
                predictions,
                predictions.c.comparison_id == votes.c.comparison_id,
            )
            .join(
                comparisons,
                comparisons.c.comparison_id == votes.c.comparison_id,
            )
            .where(
                *([] if up_to_seq is None else [votes.c.seq <= up_to_seq]),
                votes.c.choice.in_([Choice.A.value, Choice.B.value]),
                votes.c.voted_at.is_not(None),
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
                comparisons.c.source.is_distinct_from(GATE_SOURCE),
                predictions.c.reward_model == model_version,
                predictions.c.score_a != predictions.c.score_b,
                is_standing(votes, up_to_seq=up_to_seq),
            )
            .order_by(votes.c.seq)
        )
        displayed = {None: None, False: "a", True: "b"}
        rows = [
            (*row[:-3], p, min(p, 1 - p), displayed[row.is_swapped], row.longer)
            for row in self._database.fetch_all(query)
            for p in (row.p_calibrated,)
        ]
        return pd.DataFrame.from_records(rows, columns=list(ERROR_STREAM)).astype(ERROR_STREAM)

    def _save(
        self, connection: Connection, model_version: str, states: States, stream: str
    ) -> None:
        at = self._is_state_of(model_version, stream)
        stored = {
            row.detector: row.last_seq
            for row in connection.execute(select(detector_states).where(at))
        }
        for detector, state in states.items():
            if not isinstance(state.get("last_seq"), int):
                raise StoreError(
                    f"State of {detector} on {model_version} has no whole number `last_seq`. Add "
                    "the seq it has read up to."
                )
            saved = {
                "last_seq": state["last_seq"],
                "state": json_of(dict(state), f"State of {detector} on {model_version}"),
                "saved_at": self._database.clock.now(),
            }
            key = {"model_version": model_version, "stream": stream, "detector": detector}
            if detector not in stored:
                self._database.insert(connection, detector_states, [{**key, **saved}])
            elif stored[detector] <= state["last_seq"]:
                connection.execute(
                    detector_states.update()
                    .where(at, detector_states.c.detector == detector)
                    .values(saved)
                )

    def _is_state_of(self, model_version: str, stream: str) -> Any:
        return and_(
            detector_states.c.model_version == model_version,
            detector_states.c.stream == stream,
        )
