"""The learning sensor: a first reward model once there are enough votes, a later one after many
more, or a few after a refusal.
"""

from dataclasses import dataclass

import dagster as dg

from jobs.feedback import learning
from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import Promotion
from rlhf_pipeline.store import Store
from sensors.runs import drop_started, skip_during_replay, store_of


def learning_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="learning",
        job=learning,
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def learn(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests reward model and calibration when enough comparisons were voted on beyond what
        the latest model learnt from.
        """
        store = store_of(context, settings)
        if waiting := skip_during_replay(store):
            return waiting
        due = plan_next_fit(settings, store)
        if due.shortage:
            return dg.SkipReason(due.shortage)
        key = f"learning:{settings.project}:{due.after}:{due.n // settings.retry_after_pairs}"
        requests = drop_started(context.instance, [dg.RunRequest(run_key=key)])
        return (
            dg.SensorResult(run_requests=requests)
            if requests
            else dg.SkipReason(f"{key} was requested before")
        )

    return learn


@dataclass(frozen=True)
class NextFit:
    """Voted comparisons beyond what a model learnt from, and how many the next fit needs."""

    after: str  # version of that model, 0 before the first; a refused one is named so
    n: int
    needed: int

    @property
    def shortage(self) -> str | None:
        """What is missing to learn, in words; None where there are enough."""
        known = "nothing" if self.after == "0" else self.after
        return (
            f"{self.n} of {self.needed} voted comparisons beyond {known}"
            if self.n < self.needed
            else None
        )


def plan_next_fit(settings: Settings, store: Store, *, up_to_seq: int | None = None) -> NextFit:
    """The first fit, a refit, or the next try where a reward model was refused or serves
    uncalibrated; by votes up to that seq. A replay (`up_to_seq`) tries the last case by itself.
    """
    champion = store.promotions.champion(model_name(settings))
    latest = store.calibrations.of_latest_fit()
    if (
        latest is not None
        and latest.refusal is not None
        and (champion is None or latest.reward_model != model_label(champion))
    ):
        after, data_seq, needed = (
            f"refused-{latest.reward_model.rpartition('@')[2]}",
            latest.refusal.data_seq,
            settings.retry_after_pairs,
        )
    elif champion is not None:
        # one that serves uncalibrated is not waited past the pairs that may calibrate it
        uncalibrated = up_to_seq is None and is_uncalibrated(settings, store)
        after, data_seq, needed = (
            str(champion.version),
            champion.data_seq or 0,
            settings.retry_after_pairs if uncalibrated else settings.refit_after_pairs,
        )
    else:
        after, data_seq, needed = "0", 0, settings.min_new_pairs
    return NextFit(
        after, store.votes.n_voted_comparisons(after_seq=data_seq, up_to_seq=up_to_seq), needed
    )


def is_uncalibrated(settings: Settings, store: Store) -> bool | None:
    """Whether the champion serves raw probabilities because there was too little to calibrate it
    with; None before the first.
    """
    champion = store.promotions.champion(model_name(settings))
    latest = store.calibrations.latest_serving(model_label(champion)) if champion else None
    return not latest[0].candidates if latest else None


def describe_shortage(
    settings: Settings, store: Store, *, up_to_seq: int | None = None
) -> str | None:
    """What is missing to learn, in words; None where votes up to that seq are enough."""
    return plan_next_fit(settings, store, up_to_seq=up_to_seq).shortage


def model_label(promotion: Promotion) -> str:
    return f"{promotion.model_name}@{promotion.version}"


def model_name(settings: Settings) -> str:
    return f"{settings.project}.reward_model"
