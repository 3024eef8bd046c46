"""A change that the rise test confirms and whose cause is not clear yet."""

from datetime import UTC, date, datetime

from rlhf_pipeline.records import Cause, ChangeCauses, DriftEvent, Interval
from rlhf_pipeline.retraining.triggers import REMEDIES

PROBABILITIES = {"taste": 0.6, "carelessness": 0.4}


def unclear_rise(seq: int, model: str = "demo.reward_model@1") -> DriftEvent:
    """Reported at vote `seq`: everybody's taste at 60 %, careless annotators at 40 %."""
    names = sorted(REMEDIES, key=lambda name: -PROBABILITIES.get(name, 0.0))
    causes = ChangeCauses(
        change_seq=max(1, seq - 20),
        until_seq=seq,
        n_before=20,
        n_after=20,
        rise=Interval(value=0.2, low=0.1, high=0.3, n=40),
        causes=tuple(
            Cause(
                name=name,
                share=0.8 if name == "taste" else 0.0,
                probability=PROBABILITIES.get(name, 0.0),
            )
            for name in names
        ),
        summary="Most likely cause: taste.",
    )
    return DriftEvent(
        kind="drift",
        model_version=model,
        detector="rise_test",
        params_hash="h",
        stream="errors",
        seq=seq,
        day=date(2026, 1, 2),
        change_seq=causes.change_seq,
        evidence={"causes": causes.model_dump(mode="json")},
        detected_at=datetime(2026, 1, 2, 12, tzinfo=UTC),
    )
