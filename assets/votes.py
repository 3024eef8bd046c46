"""The votes of a day up to one seq, as cast."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    OWNERS,
    StageReport,
    daily_asset,
    deliver,
    expect_usually,
)
from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.feedback.votes import (
    Agreement,
    Quarantines,
    TasteChanges,
    agreement,
    ceilings,
    drop_machine_votes,
    noise_ceiling_or_repeats,
)
from rlhf_pipeline.feedback.votes.ceilings import MEASURES
from rlhf_pipeline.feedback.votes.counting import (
    add_earlier_votes,
    counting_votes,
    repeat_passes,
    select_changed,
    standing_votes,
)
from rlhf_pipeline.feedback.votes.teaching import decide_labels
from rlhf_pipeline.learn.reward_model import LearningData
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.metrics import measure_votes
from rlhf_pipeline.watch.metrics.stages import agreement_points


class LearningRange(dg.Config):
    """Which votes a stage of group *learn* takes."""

    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq to learn from, as in a replay of imported days; empty = all "
        "pairs there are",
    )

    def select(
        self,
        store: Store,
        pairs: pd.DataFrame,
        votes: pd.DataFrame,
        soft_labels: pd.DataFrame | None = None,
    ) -> LearningData:
        """PREFERENCE_PAIRS and VOTES of this range, with the changes of taste in it."""
        return LearningData(
            pairs_up_to(pairs, self.up_to_seq),
            votes_to_learn(votes, store, self.up_to_seq),
            TasteChanges.from_log(store.taste_changes.all(), up_to_seq=self.up_to_seq),
            None if soft_labels is None else self._decide_labels(store, soft_labels),
            self.up_to_seq,
        )

    def _decide_labels(self, store: Store, labels: pd.DataFrame) -> pd.DataFrame:
        ids = labels["comparison_id"].tolist()
        decided = store.adjudications.standing(ids, up_to_seq=self.up_to_seq)
        return decide_labels(
            labels, {comparison_id: label.choice for comparison_id, label in decided.items()}
        )


votes_inbox = dg.AssetSpec(
    "votes_inbox",
    group_name="feedback",
    owners=OWNERS,
    tags={"cadence": "daily", "part": "feedback"},
    kinds={"sqlite"},
    partitions_def=DAYS,
    description="Votes as they arrive in the store, from page, API, import or simulation. The "
    "votes sensor reports each touched day here.",
)


class VotesConfig(dg.Config):
    """The seq up to which votes are read."""

    up_to_seq: int | None = Field(
        default=None, ge=0, description="Highest vote seq to include; empty = all votes"
    )


@daily_asset(
    "votes",
    "feedback",
    "parquet",
    "sqlite",
    deps=[votes_inbox, "comparisons"],
    checks={
        "sides_chosen": "Half of the votes choose a side.",
        "side_balance": "No side gets more than three quarters of the votes.",
        "several_annotators": "Two annotators or more voted.",
    },
)
def votes(
    context: dg.AssetExecutionContext,
    config: VotesConfig,
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """The day's votes as cast, including superseded ones and earlier passes. The same day up to the
    same seq gives the same rows, and a late vote changes only its own day.
    """
    frame = store.votes.log(list(context.partition_keys), up_to_seq=config.up_to_seq)
    with_earlier = load_earlier_votes(frame, store)
    agreed = agreement(with_earlier)
    ceiling = noise_ceiling_or_repeats(with_earlier)
    bounds = ceilings(with_earlier).iloc[0]
    counted = counting_votes(with_earlier)
    counted = counted[counted["vote_id"].isin(frame["vote_id"])]
    people = drop_machine_votes(counted)
    n_machine = len(counted) - len(people)
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(people), 'vote')} by "
            f"{people['annotator_id'].nunique()} annotators, "
            + "agreement "
            + str(agreed.raw_agreement or "unknown: nothing overlaps")
            + (f"; beside them {n_machine} machine votes" if n_machine else ""),
            shown=(
                "n_votes",
                "n_annotators",
                "n_ties",
                "raw_agreement",
                "noise_ceiling",
                "n_repeat_passes",
            ),
            metrics={
                "n_votes": len(counted),
                "n_superseded": len(frame) - len(standing_votes(frame)),
                "n_machine_votes": n_machine,
                "n_annotators": people["annotator_id"].nunique(),
                "n_ties": int((people["choice"] == "tie").sum()),
                "n_repeat_passes": len(repeat_passes(with_earlier)),
                "raw_agreement": agreed.raw_agreement.value if agreed.raw_agreement else None,
                # a ceiling from repeats is `ceiling_from_repeats`
                "noise_ceiling": ceiling.value if ceiling and not ceiling.basis else None,
                "self_consistency": agreed.self_consistency.value
                if agreed.self_consistency
                else None,
            }
            | {
                f"ceiling_{name}": None if pd.isna(bounds[name]) else float(bounds[name])
                for name in MEASURES
            },
            rows=counted[["comparison_id", "annotator_id", "choice", "strength", "voted_at"]],
            points=_measure_days(context.partition_keys, with_earlier, agreed, store),
        ),
        usual=[
            expect_usually(
                "sides_chosen",
                "expect_column_values_to_be_in_set",
                column="choice",
                value_set=["a", "b"],
                mostly=0.5,
            ),
            expect_usually(
                "side_balance",
                "expect_column_values_to_not_be_in_set",
                column="choice",
                value_set=["a"],
                mostly=0.25,
            ),
            expect_usually(
                "side_balance",
                "expect_column_values_to_not_be_in_set",
                column="choice",
                value_set=["b"],
                mostly=0.25,
            ),
            expect_usually(
                "several_annotators",
                "expect_column_unique_value_count_to_be_between",
                column="annotator_id",
                min_value=2,
            ),
        ],
    )


def _measure_days(
    days: Sequence[str], votes: pd.DataFrame, agreed: Agreement, store: Store
) -> list[MetricPoint]:
    """Metric points of each day; `votes` also holds the votes of other days that these revise or
    repeat, `agreed` is their agreement.
    """
    now = store.database.clock.now()
    points = measure_votes(store, [date.fromisoformat(day) for day in days], now)
    for day in days:
        if len(days) > 1:
            agreed = agreement(add_earlier_votes(votes[votes["day"] == day], votes))
        points += agreement_points(agreed.raw_agreement, day, now)
    return points


def load_earlier_votes(votes: pd.DataFrame, store: Store) -> pd.DataFrame:
    """`votes` and, from the store, the earlier votes that they revise or repeat, cast on other
    days.
    """
    changed = select_changed(votes)
    if changed.empty:
        return votes
    earlier_votes = store.votes.log(
        comparison_ids=changed["comparison_id"].unique().tolist(), up_to_seq=int(votes["seq"].max())
    )
    return add_earlier_votes(votes, earlier_votes)


def votes_up_to(votes: pd.DataFrame, up_to_seq: int | None) -> pd.DataFrame:
    """VOTES up to a seq; all if it is None."""
    return votes if up_to_seq is None else votes[votes["seq"] <= up_to_seq]


def votes_to_learn(votes: pd.DataFrame, store: Store, up_to_seq: int | None) -> pd.DataFrame:
    """VOTES up to a seq (all if it is None), without those of quarantined annotators."""
    return Quarantines.from_decisions(store.decisions.fires()).drop(votes_up_to(votes, up_to_seq))


def pairs_up_to(pairs: pd.DataFrame, up_to_seq: int | None) -> pd.DataFrame:
    """`pairs`, unchanged. Raises FrameError if a pair uses votes above `up_to_seq`, because these
    cannot be removed from it.
    """
    later = 0 if up_to_seq is None else int((pairs["max_seq"] > up_to_seq).sum())
    if later:
        raise FrameError(
            f"{later} of {len(pairs)} preference pairs use votes above seq {up_to_seq}. "
            f"Materialise preference_pairs again with up_to_seq {up_to_seq}, or run the whole job "
            "again."
        )
    return pairs
