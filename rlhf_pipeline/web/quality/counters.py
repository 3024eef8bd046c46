"""Counts data quality incrementally: only votes after the last count are read."""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    Mark,
    Quality,
    quality,
)
from rlhf_pipeline.web.memory_cache import CacheTimes, ReaderCounts

AT_ONCE = 5_000  # votes per batch
PAUSE_S = 0.05  # pause between batches, so that requests are answered meanwhile
MOST_REVISIONS = 1 << 20
REFRESH_S = 5.0  # while many votes are read, all figures change all the time
FASTEST = FiguresParams().fastest_reading


@dataclass(frozen=True)
class QualityCounts:
    """Counts of all annotators up to a vote."""

    up_to_seq: int
    by_annotator: dict[str, Quality]


class QualityCounters:
    """One count per process, at about 50 bytes per vote. Callers update it after few votes, a
    thread after many.
    """

    def __init__(
        self,
        store: Store,
        cache_times: CacheTimes = CacheTimes(),  # noqa: B008 (frozen)
        *,
        at_once: int = AT_ONCE,
        pause_s: float = PAUSE_S,
    ):
        self._store = store
        self._at_once = at_once
        self._pause_s = pause_s
        self._reading = threading.Lock()
        self._votes: dict[str, npt.NDArray[np.void]] = {}
        self._known: dict[str, tuple[npt.NDArray[np.void], Quality]] = {}
        self._seq = 0
        self._is_catching_up = False
        self._last: tuple[float, QualityCounts] | None = None  # the last answer and its time
        self._by_reader = ReaderCounts[QualityCounts](cache_times)

    def counts(self) -> QualityCounts:
        """Counts up to the newest vote, or up to the last one read."""
        counted = self._last
        if (
            counted is not None
            and self._is_catching_up
            and time.monotonic() - counted[0] < REFRESH_S
        ):
            return counted[1]
        self._read_batch()
        seq, votes = self._seq, dict(self._votes)
        for who, rows in votes.items():
            known = self._known.get(who)
            # recounted only after another vote of the same annotator
            if known is None or known[0] is not rows:
                self._known[who] = rows, quality(rows)
        found = QualityCounts(
            seq, {who: one for who in votes if (one := self._known[who][1]).n_votes}
        )
        self._last = time.monotonic(), found
        return found

    def counts_for_reader(self, reader_id: str) -> QualityCounts:
        """`counts` for a blind reader: counted from the votes that are visible to them alone, up to
        the newest of these.
        """
        newest = self._store.votes.max_seq()
        return self._by_reader.get(reader_id, newest, lambda: self._visible(reader_id, newest))

    def _visible(self, reader_id: str, newest: int) -> QualityCounts:
        visible = self._store.votes.signals(up_to_seq=newest, seen_by=reader_id)
        counted = {who: quality(rows) for who, rows in _group_by_annotator(visible).items()}
        up_to_seq = visible[-1].seq if visible else 0
        return QualityCounts(up_to_seq, {who: one for who, one in counted.items() if one.n_votes})

    def find_marked(
        self,
        mark: Mark,
        annotator_id: str | None,
        *,
        before_seq: int | None,
        limit: int,
        seen_by: str | None = None,
    ) -> list[int]:
        """Seqs of votes with a mark, of one annotator or of all, newest first, at most
        `limit`; `seen_by` as `Votes.page`.
        """
        known = (self.counts() if seen_by is None else self.counts_for_reader(seen_by)).by_annotator
        people = (
            [known[annotator_id]]
            if annotator_id in known
            else []
            if annotator_id is not None
            else list(known.values())
        )
        upper = np.iinfo(np.int64).max if before_seq is None else before_seq
        newest = [
            seqs[: np.searchsorted(seqs, upper)][-limit:]
            for seqs in (one.marked[mark].seqs for one in people)
        ]
        return sorted((int(seq) for seqs in newest for seq in seqs), reverse=True)[:limit]

    def catch_up(self) -> None:
        """Read all remaining votes, with pauses between batches."""
        self._is_catching_up = True
        try:
            while self._read_batch(waits=True):
                time.sleep(self._pause_s)
        finally:
            self._is_catching_up = False

    def _read_batch(self, *, waits: bool = False) -> bool:
        """Returns whether more votes may follow. If another thread is reading, the current counts
        are used.
        """
        if not self._reading.acquire(blocking=waits):
            return False
        try:
            newest = self._store.votes.max_seq()
            if newest <= self._seq:
                return False
            upper = min(newest, self._seq + self._at_once)
            self._add_votes(self._store.votes.signals(self._seq, up_to_seq=upper))
            # set after the votes are added, so that no caller sees a number above the counted votes
            self._seq = upper
        finally:
            self._reading.release()
        if upper < newest and not waits:
            threading.Thread(target=self.catch_up, name="looking", daemon=True).start()
        return upper < newest

    def _add_votes(self, new: list[VoteSignals]) -> None:
        self._votes |= {
            who: _append_rows(self._votes.get(who), rows)
            for who, rows in _group_by_annotator(new).items()
        }


def _group_by_annotator(new: list[VoteSignals]) -> dict[str, npt.NDArray[np.void]]:
    by_annotator: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for look in new:
        by_annotator[look.annotator_id].append(_build_row(look))
    return {who: np.array(rows, dtype=VOTES) for who, rows in by_annotator.items()}


def _append_rows(
    before: npt.NDArray[np.void] | None, new: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    return new if before is None else np.concatenate([before, new])


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
