"""As much of each vote as tells how carefully it was cast, in seq order. Knows votes; knows no
meaning of figures.
"""

from typing import NamedTuple

from sqlalchemy import func, select

from rlhf_pipeline.records import AnnotatorKind
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import comparisons, votes
from rlhf_pipeline.store.visibility import is_visible_vote
from rlhf_pipeline.store.vote_lists import is_on_comparison


class VoteSignals(NamedTuple):
    """One vote; `n_characters` of both completions, `pair_key` of them under their prompt."""

    seq: int
    annotator_id: str
    comparison_id: str
    repeat_of: str | None
    pair_key: str | None
    choice: str
    is_swapped: bool | None
    duration_s: float | None
    n_characters: int
    pass_no: int
    revision_no: int


def read_vote_signals(
    database: Database, after_seq: int, *, up_to_seq: int, seen_by: str | None = None
) -> list[VoteSignals]:
    """Of the votes between two seqs, a machine's left out; superseded ones and skips are among
    them. `seen_by` as `Votes.page`.
    """
    computed = {
        "n_characters": func.length(comparisons.c.completion_a)
        + func.length(comparisons.c.completion_b),
        "repeat_of": comparisons.c.repeat_of,
        "pair_key": comparisons.c.pair_key,
    }
    columns = [
        computed[name].label(name) if name in computed else votes.c[name]
        for name in VoteSignals._fields
    ]
    wanted = (
        select(*columns)
        .join(comparisons, is_on_comparison())
        .where(
            database.in_project(votes),
            votes.c.seq > after_seq,
            votes.c.seq <= up_to_seq,
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            *(() if seen_by is None else (is_visible_vote(database, seen_by),)),
        )
        .order_by(votes.c.seq)
    )
    with database.read_transaction() as connection:
        return [VoteSignals(*row) for row in connection.execute(wanted)]
