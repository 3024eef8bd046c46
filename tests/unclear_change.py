"""Changes that the sequential test confirms, with given probabilities of their causes."""

from datetime import UTC, date, datetime
from typing import Any

from rlhf_pipeline.core.records import Cause, ChangeCauses, DriftEvent, Interval
from rlhf_pipeline.improve.retraining.triggers import REMEDIES

FOUND: dict[str, dict[str, Any]] = {
    "carelessness": {"annotator_ids": ["bob", "cat"]},
    "newcomers": {"annotator_ids": ["eve", "fay"]},
    "category": {"category": "maths"},
}


def build_causes(seq: int, *, low: float = 0.1, people: float = 1.0, **probabilities: float):
    """Causes in the votes up to `seq`; `low` is the lower end of the rise."""
    names = sorted(REMEDIES, key=lambda name: -probabilities.get(name, 0.0))
    return ChangeCauses(
        change_seq=max(1, seq - 20),
        until_seq=seq,
        n_before=20,
        n_after=200,
        rise=Interval(value=0.2, low=low, high=0.3, n=40),
        people=people,
        causes=tuple(
            Cause(
                name=name,
                probability=probabilities.get(name, 0.0),
                effect=Interval(value=0.2, low=0.1, high=0.3, n=40),
                evidence=FOUND.get(name, {}),
            )
            for name in names
        ),
        summary=f"Most likely cause: {names[0]}.",
    )


def risen(
    seq: int,
    model: str = "demo.reward_model@1",
    *,
    detector: str = "sequential_test",
    **causes: Any,
) -> DriftEvent:
    """An event at vote `seq` with the causes that `build_causes` makes."""
    cause_report = build_causes(seq, **causes)
    return DriftEvent(
        kind="drift",
        model_version=model,
        detector=detector,
        params_hash="h",
        stream="errors",
        seq=seq,
        day=date(2026, 1, 2),
        change_seq=cause_report.change_seq,
        evidence={"causes": cause_report.model_dump(mode="json")},
        detected_at=datetime(2026, 1, 2, 12, tzinfo=UTC),
    )


def unclear_rise(seq: int, model: str = "demo.reward_model@1") -> DriftEvent:
    """Reported at vote `seq`: everybody's taste at 60 %, careless annotators at 40 %."""
    return risen(seq, model, taste=0.6, carelessness=0.4)
