"""Comparisons of a day, published to the store with the champion's predictions."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    daily_asset,
    deliver,
    expect_usually,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import COMPARISONS, concat
from rlhf_pipeline.generate.comparisons import PairingParams, RoutingParams, pair_completions
from rlhf_pipeline.generate.comparisons.routing import route, send_routes
from rlhf_pipeline.improve.loop_settings import ComparisonsParams
from rlhf_pipeline.learn.champions import CalibratedModel, Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.reflection import predict

DAYS_OF_REPEATS = 3  # a repeat shows a pair that was first shown at most this many days before


class ComparisonsConfig(ComparisonsParams, dg.Config):
    """Parameters of a day's comparisons."""


@daily_asset(
    "comparisons",
    "generate",
    "parquet",
    "sqlite",
    checks={"completion_length": "95 % of completions have two characters or more."},
)
def comparisons(
    context: dg.AssetExecutionContext,
    config: ComparisonsConfig,
    prompts: pd.DataFrame,
    completions: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
    clock: dg.ResourceParam[Callable[[str], datetime]],
) -> Iterator[Any]:
    """Pairs of completions to be judged. The champion reward model's predictions are written in the
    same transaction, before any vote.

    With human annotators, a share of the day is offered to them; of the rest, the reward model
    judges those it is certain of.
    """
    by_people = settings.annotators == "human"
    # Human annotators get repeats when cards are dealt; simulated annotators need them here.
    pairing = _pairing_params(config, repeat_share=0.0 if by_people else config.repeat_share)
    frames: dict[str, pd.DataFrame] = {}
    for day in context.partition_keys:
        # Days of this run are published at its end, so read them from `frames`: a range gives the
        # same repeats as one run per day.
        earlier = [
            frames[d] if d in frames else store.comparisons.for_days([d]) for d in _days_before(day)
        ]
        drawn = pair_completions(
            prompts[prompts["day"] == day],
            completions[completions["day"] == day],
            pairing,
            day=day,
            earlier=concat(earlier, COMPARISONS),
        )
        frames[day] = _keep_published(context, store, day, drawn)
    frame = concat(frames.values(), COMPARISONS)
    judge = champions.judge()
    n_new = n_predictions = 0
    for day, of_day in frames.items():
        predictions = _predict(judge, of_day, clock(day)) if judge and not of_day.empty else None
        published = store.comparisons.publish(of_day, predictions, published_at=clock(day))
        n_new, n_predictions = n_new + published.n_new, n_predictions + published.n_predictions
    routed = _route_days(list(frames), store, config) if by_people else {}
    repeats = int(frame["repeat_of"].notna().sum())
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(frame), 'comparison')} "
            f"({format_count(repeats, 'repeat')}), {n_new} new, "
            + (
                f"{n_predictions} predicted by {judge.label}"
                if judge
                else "not predicted: there is no reward model yet"
            )
            + (
                f"; {routed['n_people']} for people, {routed['n_machine']} answered by machine, "
                f"{routed['n_open']} left open"
                if routed
                else ""
            ),
            metrics={
                "n_comparisons": len(frame),
                "n_repeats": repeats,
                "n_new": n_new,
                "n_predictions": n_predictions,
                **routed,
            },
            rows=frame[["prompt", "completion_a", "completion_b"]],
        ),
        usual=[
            expect_usually(
                "completion_length",
                "expect_column_value_lengths_to_be_between",
                column="completion_a",
                min_value=2,
                mostly=0.95,
            ),
            expect_usually(
                "completion_length",
                "expect_column_value_lengths_to_be_between",
                column="completion_b",
                min_value=2,
                mostly=0.95,
            ),
        ],
    )


def _pairing_params(config: ComparisonsConfig, *, repeat_share: float) -> PairingParams:
    values = {name: getattr(config, name) for name in PairingParams.model_fields}
    return PairingParams(**values | {"repeat_share": repeat_share})


def _route_days(days: list[str], store: Store, config: ComparisonsConfig) -> dict[str, int]:
    """Route each day's comparisons separately. Returns the number of comparisons per route, summed
    over days.
    """
    params = RoutingParams(**{name: getattr(config, name) for name in RoutingParams.model_fields})
    _, rules = store.rules.latest()
    total: Counter[str] = Counter()
    for day in days:
        published = store.comparisons.for_days([day])
        routes = route(
            published,
            store.predictions.for_comparisons(published["comparison_id"].tolist()),
            params,
        )
        total.update(
            send_routes(routes, store.cards, store.votes, overlap=rules.overlap).model_dump()
        )
    return {name: n for name, n in total.items() if name != "n"}


def _keep_published(
    context: dg.AssetExecutionContext, store: Store, day: str, drawn: pd.DataFrame
) -> pd.DataFrame:
    """Keep a day's published comparisons if it is collected again with another champion or other
    parameters.
    """
    published = store.comparisons.for_days([day])
    if set(published["comparison_id"]) <= set(drawn["comparison_id"]):
        return drawn  # nothing published yet, or an earlier run was killed while publishing these
    context.log.warning(
        f"{day} already has {len(published)} published comparisons; they are kept, and the "
        f"{len(drawn)} new ones are dropped."
    )
    return published


def _predict(judge: CalibratedModel, comparisons: pd.DataFrame, at: datetime) -> pd.DataFrame:
    return predict(
        comparisons,
        judge.reward_model,
        judge.calibrator,
        reward_model_label=judge.label,
        calibrator_version=judge.calibrator_version,
        data_hash=judge.version.data_hash or "",
        predicted_at=at,
    )


def _days_before(day: str) -> list[str]:
    start = date.fromisoformat(day)
    return [(start - timedelta(days=n)).isoformat() for n in range(1, DAYS_OF_REPEATS + 1)]
