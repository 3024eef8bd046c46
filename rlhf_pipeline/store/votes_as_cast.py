"""Every vote as it was cast, for whoever looks at a time and not at what stands now. Knows votes;
knows no meaning of figures.
"""

from collections.abc import Iterator

import pandas as pd
from sqlalchemy import select

from rlhf_pipeline.frames import VOTES
from rlhf_pipeline.records import AnnotatorKind
from rlhf_pipeline.store.counting import LATEST
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import comparisons, votes
from rlhf_pipeline.store.vote_lists import is_on_comparison

COLUMNS = (*VOTES.columns, "pass_no", "duration_s", "stated_confidence")
AT_ONCE = 50_000  # rows as Python objects take ten times what they take in a frame


def read_votes_as_cast(database: Database, *, up_to_seq: int | None = None) -> pd.DataFrame:
    """A row per vote of people up to a seq (default: now) in its order, columns COLUMNS; superseded
    ones, earlier passes and skips too.
    """
    limit = LATEST if up_to_seq is None else up_to_seq
    frames = list(_read_chunks(database, limit))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def _read_chunks(database: Database, limit: int) -> Iterator[pd.DataFrame]:
    columns = [
        comparisons.c[name] if name in ("prompt_id", "repeat_of") else votes.c[name]
        for name in COLUMNS
    ]
    people = (
        select(*columns)
        .join(comparisons, is_on_comparison())
        .where(votes.c.annotator_kind != AnnotatorKind.MACHINE.value)
    )
    after = 0
    while True:
        some = (
            people.where(database.in_project(votes), votes.c.seq > after, votes.c.seq <= limit)
            .order_by(votes.c.seq)
            .limit(AT_ONCE)
        )
        with database.read_transaction() as connection:
            rows = connection.execute(some).all()
        if not rows:
            return
        frame = pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(COLUMNS))
        after = int(frame["seq"].iloc[-1])
        yield frame.astype(
            {
                "is_swapped": "boolean",
                "strength": "Int64",
                "duration_s": "float64",
                "stated_confidence": "float64",
            }
        )
