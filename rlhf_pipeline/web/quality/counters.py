"""Counts data quality of the newest votes, by annotator."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.api_types.filters import Mark
from rlhf_pipeline.records import Choice
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_lists import VoteSignals
from rlhf_pipeline.votes.annotators import FiguresParams
from rlhf_pipeline.votes.quality import (
    LEFT,
    NEITHER,
    NO_TIME,
    RIGHT,
    SKIP,
    UNKNOWN,
    VOTES,
    Quality,
    quality,
)

NEWEST = 10_000  # votes that the figures are of: counted anew at each look
MOST_REVISIONS = 1 << 20
FASTEST = FiguresParams().fastest_reading


@dataclass(frozen=True)
class QualityCounts:
    """Counts of all annotators up to a vote."""

    up_to_seq: int
    by_annotator: dict[str, Quality]

    def find_marked(
        self, mark: Mark, annotator_id: str | None, *, before_seq: int | None, limit: int
    ) -> list[int]:
        """Seqs of votes with a mark, of one annotator or of all, newest first, at most
        `limit`.
        """
        known = self.by_annotator
        people = [one for who, one in known.items() if annotator_id in (None, who)]
        upper = np.iinfo(np.int64).max if before_seq is None else before_seq
        seqs = (one.marked[mark].seqs for one in people)
        return sorted((int(seq) for of in seqs for seq in of if seq < upper), reverse=True)[:limit]


def count_quality(store: Store) -> QualityCounts:
    """Of the NEWEST votes."""
    newest = store.votes.max_seq()
    cast = store.votes.signals(max(0, newest - NEWEST), up_to_seq=newest)
    counted = {who: quality(rows) for who, rows in _group_by_annotator(cast).items()}
    return QualityCounts(newest, {who: one for who, one in counted.items() if one.n_votes})


def _group_by_annotator(new: list[VoteSignals]) -> dict[str, npt.NDArray[np.void]]:
    by_annotator: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for look in new:
        by_annotator[look.annotator_id].append(_build_row(look))
    return {who: np.array(rows, dtype=VOTES) for who, rows in by_annotator.items()}


def _build_row(look: VoteSignals) -> tuple[int, ...]:
    # Python's own hash: 64 bits, the same within a process, and quick.
    return (
        look.seq,
        hash(look.comparison_id),
        hash(look.repeat_of or look.comparison_id),
        hash(look.pair_key or look.comparison_id),
        look.pass_no * MOST_REVISIONS + look.revision_no,
        _displayed_side(look),
        NO_TIME if look.duration_s is None else int(look.duration_s * FASTEST < look.n_characters),
    )


def _displayed_side(look: VoteSignals) -> int:
    if look.choice == Choice.SKIP:
        return SKIP
    # ties too: without known sides between them, all ties would look consecutive
    if look.is_swapped is None:
        return UNKNOWN
    if look.choice not in (Choice.A, Choice.B):
        return NEITHER
    return LEFT if (look.choice == Choice.A) != look.is_swapped else RIGHT
