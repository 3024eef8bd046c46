"""A small import for tests of its replay: comparisons of gentle and harsh texts, votes of people on
days of the past.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote

GENTLE = (
    "thank you kindly, gladly",
    "what a lovely idea, dear friend",
    "please enjoy this warm advice",
    "with love and patience",
)
HARSH = (
    "shut up, you idiot",
    "this is stupid garbage",
    "go away and stop whining",
    "what a worthless, ugly mess",
)
THINGS = (
    "bread",
    "trains",
    "gardens",
    "rain",
    "maps",
    "violins",
    "soup",
    "bicycles",
    "lamps",
    "rivers",
    "chess",
    "wool",
)
SPLITS = ("train", "train", "calib", "train", "test", "calib", "train", "calib")
SECONDS_PER_DAY = 80_000


def comparisons(n: int, *, name: str, flag: str | None = None) -> pd.DataFrame:
    """`n` comparisons of a gentle and a harsh text, each under a prompt of its own, in turn on
    either side.
    """
    rows = []
    for i in range(n):
        thing, nr = THINGS[i % len(THINGS)], i // len(THINGS)
        gentle = f"{GENTLE[i % len(GENTLE)]}: {thing} number {nr}"
        harsh = f"{HARSH[(i // 2) % len(HARSH)]}: {thing} number {nr}"
        a, b = (gentle, harsh) if i % 2 == 0 else (harsh, gentle)
        rows.append(
            {
                "day": "2026-06-01",
                "comparison_id": f"{name}-{i:04}",
                "prompt_id": f"{name}-p{i}",
                "prompt": f"Tell me about {thing} ({name} {nr}).",
                "completion_a_id": f"{name}-a{i}",
                "completion_b_id": f"{name}-b{i}",
                "completion_a": a,
                "completion_b": b,
                "model_version_a": "imported",
                "model_version_b": "imported",
                "category": "instruction",
                "repeat_of": None,
                "position": i,
                "seed": 0,
                "source": "small",
                "source_pair_id": f"{name}-{i}",
                "split_group": None,
                "split": SPLITS[i % len(SPLITS)],
                "gold": None,
                "flag": flag,
            }
        )
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(
    frame: pd.DataFrame,
    day: str,
    *,
    likes: Sequence[str] = GENTLE,
    annotators: int = 3,
    noise: float = 0.1,
    seed: int = 0,
    by: str = "ann",
) -> list[NewVote]:
    """Every annotator's vote on every comparison, spread over `day`: for the side with a text of
    `likes`, but for some noise.
    """
    rng = np.random.default_rng(seed)
    start = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    n = len(frame) * annotators
    cast = []
    for i, row in enumerate(r for r in frame.to_dict("records") for _ in range(annotators)):
        side = Choice.A if any(text in row["completion_a"] for text in likes) else Choice.B
        if rng.random() < noise:
            side = Choice.B if side == Choice.A else Choice.A
        who = f"{by}-{i % annotators}"
        cast.append(
            NewVote(
                comparison_id=row["comparison_id"],
                annotator_id=who,
                annotator_kind=AnnotatorKind.HUMAN,
                choice=side,
                strength=2,
                voted_at=start + timedelta(seconds=SECONDS_PER_DAY * i / n),
                origin="import",
                idempotency_key=f"import:{row['comparison_id']}:{who}:{day}",
            )
        )
    return cast


def publish(store: Any, frame: pd.DataFrame) -> None:
    store.comparisons.publish(frame, published_at=datetime.now(UTC))


def import_votes(store: Any, cast: Sequence[NewVote], *, ask: bool = True) -> None:
    """As an import does: the days are asked for, then the votes are cast in the order of their
    time, undated ones last.
    """
    dated = sorted(
        (v for v in cast if v.voted_at),
        key=lambda v: v.voted_at or datetime.max.replace(tzinfo=UTC),
    )
    if ask:
        store.replays.request(sorted({v.voted_at.date().isoformat() for v in dated if v.voted_at}))
    store.votes.cast_many([*dated, *(v for v in cast if v.voted_at is None)])
