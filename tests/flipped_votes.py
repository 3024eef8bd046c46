"""Votes that contradict the champion reward model: what a sudden change of taste looks like."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store


def flip_votes(store: Store, day: str, n: int) -> Sequence[NewVote]:
    """Votes for the sides that the predictions of a day's first `n` comparisons think worse, a
    minute apart, by the annotators who voted last.
    """
    last_day = max(touched.day for touched in store.votes.touched_days())
    annotators = sorted(store.votes.log([last_day])["annotator_id"].unique())
    predictions = store.predictions.for_days([day]).drop_duplicates("comparison_id").head(n)
    start = datetime.fromisoformat(day).replace(hour=9, tzinfo=UTC)
    return [
        NewVote(
            comparison_id=row.comparison_id,
            annotator_id=annotators[number % len(annotators)],
            annotator_kind="simulated",
            choice="b" if row.p_raw >= 0.5 else "a",
            voted_at=start + timedelta(minutes=number),
            origin="simulation",
            idempotency_key=f"flipped:{row.comparison_id}",
        )
        for number, row in enumerate(predictions.itertuples())
    ]
