"""The learning sensor: a first reward model once there are enough voted comparisons, a later one after many more."""

import dagster as dg

from jobs.feedback import learning
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.runs import replay_first, unseen

PAIRS_PER_TRY = 50  # a fit that failed for lack of data is tried again after so many more voted comparisons


def learning_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(name="learning", job=learning, minimum_interval_seconds=settings.sensor_seconds, default_status=status)
    def learn(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult | dg.SkipReason:
        """Requests reward model and calibration when enough comparisons were voted on beyond the champion's data."""
        if waiting := replay_first(store):
            return waiting
        if short := pairs_short(settings, store):
            return dg.SkipReason(short)
        champion = store.promotions.champion(model_name(settings))
        n = store.votes.n_voted_comparisons(after_seq=champion.data_seq or 0 if champion else 0)
        key = f"learning:{settings.project}:{champion.version if champion else 0}:{n // PAIRS_PER_TRY}"
        requests = unseen(context.instance, [dg.RunRequest(run_key=key)])
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason(f"{key} was requested before")

    return learn


def is_uncalibrated(settings: Settings, store: Store) -> bool | None:
    """Whether the champion serves raw probabilities because there was too little to calibrate it with; None before the first."""
    champion = store.promotions.champion(model_name(settings))
    latest = store.calibrations.latest(f"{champion.model_name}@{champion.version}") if champion else None
    return not latest[0].candidates if latest else None


def pairs_short(settings: Settings, store: Store, *, up_to_seq: int | None = None) -> str | None:
    """What is missing to learn, in words; None where votes up to that seq are enough."""
    champion = store.promotions.champion(model_name(settings))
    needed = settings.refit_after_pairs if champion else settings.min_new_pairs
    n = store.votes.n_voted_comparisons(after_seq=champion.data_seq or 0 if champion else 0, up_to_seq=up_to_seq)
    return f"{n} of {needed} voted comparisons beyond {champion.version if champion else 'nothing'}" if n < needed else None


def model_name(settings: Settings) -> str:
    return f"{settings.project}.reward_model"
