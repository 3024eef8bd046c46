"""What a replay of the retraining trigger reads: votes with their times, and durations of runs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select

from rlhf_pipeline.store.counting import is_trainable, supersedes
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import audit, votes
from rlhf_pipeline.store.vote_log import ROWS_AT_ONCE

if TYPE_CHECKING:
    import pandas as pd


class DecisionHistory:
    """Reads only; `Decisions` decides."""

    def __init__(self, database: Database):
        self._database = database

    def votes(self) -> pd.DataFrame:
        """Every vote in seq order: seq, day, received_at (UTC), is_trainable (no machine's and no
        skip), and replaced_seq, the trainable vote that it supersedes, or 0.
        """
        import pandas as pd

        wanted = (
            select(
                votes.c.seq, votes.c.day, votes.c.received_at, is_trainable(votes).label("trains")
            )
            .order_by(votes.c.seq)
            .limit(ROWS_AT_ONCE)
        )
        names = ["seq", "day", "received_at", "is_trainable"]
        parts, after = [], 0
        while rows := self._database.fetch_all(wanted.where(votes.c.seq > after)):
            parts.append(pd.DataFrame.from_records([tuple(row) for row in rows], columns=names))
            after = rows[-1].seq
        frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=names)
        frame = frame.astype({"seq": "int64", "day": "str", "is_trainable": "bool"})
        frame["received_at"] = pd.to_datetime(frame["received_at"], utc=True)
        replaced = frame["seq"].map(self._replaced_seqs())
        return frame.assign(replaced_seq=replaced.fillna(0).astype("int64"))

    def run_times(self) -> dict[int, timedelta]:
        """For each decision whose retraining succeeded: from its last attempt to its success, as
        the audit chain dates them. Waiting in a queue counts.
        """
        wanted = (
            select(audit.c.at, audit.c.action, audit.c.object_id)
            .where(
                audit.c.action.in_(["decision.pending", "decision.succeeded"]),
            )
            .order_by(audit.c.seq)
        )
        began, took = {}, {}
        for row in self._database.fetch_all(wanted):
            decision_id = int(row.object_id)
            if row.action == "decision.pending":
                began[decision_id] = row.at
            elif decision_id in began and row.at >= began[decision_id]:  # clocks may be set back
                took[decision_id] = row.at - began[decision_id]
        return took

    def _replaced_seqs(self) -> dict[int, int]:
        """The superseded trainable vote by the seq of the vote that replaced it."""
        replaced = votes.alias("replaced")
        wanted = (
            select(votes.c.seq, replaced.c.seq.label("replaced_seq"))
            .select_from(votes)
            .join(
                replaced,
                supersedes(votes, replaced),
            )
            .where(votes.c.supersedes.is_not(None), is_trainable(replaced))
        )
        return {row.seq: row.replaced_seq for row in self._database.fetch_all(wanted)}
