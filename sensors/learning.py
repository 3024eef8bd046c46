"""The learning sensor: a first reward model once there are enough voted comparisons, a later one after many more."""

import dagster as dg

from jobs.feedback import learning
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.runs import unseen

PAIRS_PER_TRY = 50  # a fit that failed for lack of data is tried again after so many more voted comparisons


def learning_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    model_name = f"{settings.project}.reward_model"

    @dg.sensor(name="learning", job=learning, minimum_interval_seconds=settings.sensor_seconds, default_status=status)
    def learn(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult | dg.SkipReason:
        """Requests reward model and calibration when enough comparisons were voted on beyond the champion's data."""
        champion = store.promotions.champion(model_name)
        needed = settings.refit_after_pairs if champion else settings.min_new_pairs
        n = store.votes.n_voted_comparisons(after_seq=champion.data_seq or 0 if champion else 0)
        if n < needed:
            return dg.SkipReason(f"{n} of {needed} voted comparisons beyond {champion.version if champion else 'nothing'}")
        key = f"learning:{settings.project}:{champion.version if champion else 0}:{n // PAIRS_PER_TRY}"
        requests = unseen(context.instance, [dg.RunRequest(run_key=key)])
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason(f"{key} was requested before")

    return learn
