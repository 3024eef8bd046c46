from typing import Any

import pytest

from rlhf_pipeline.core.records import Cause, ChangeCauses, Interval, TriggerDecision
from rlhf_pipeline.improve.retraining.messages import summarise_decision


def decide(probability: float, **more: Any) -> TriggerDecision:
    rise = Interval(value=0.2, low=0.1, high=0.3, n=8)
    causes = ChangeCauses(
        change_seq=1,
        until_seq=9,
        n_before=4,
        n_after=4,
        rise=rise,
        causes=(Cause(name="mix", probability=probability, effect=rise),),
        summary="",
    )
    evidence = {"causes": causes.model_dump(mode="json")}
    values: dict[str, Any] = {"action": "fire", "state": "succeeded", "remedy": "retrain"}
    return TriggerDecision(
        reasons=(), event_ids=(), change_seq=1, evidence=evidence, **(values | more)
    )


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (
            decide(0.93),
            "a changed mix of votes (probability 93%); retrained",
        ),
        (
            decide(0.15),
            "no clear cause; the likeliest is a changed mix of votes (probability 15%); retrained",
        ),
        (
            decide(0.0, action="hold", state="held", remedy="dismiss"),
            "a rise of errors that did not last; dismissed as a false alarm",
        ),
    ],
)
def test_decision_words_match_the_certainty_of_the_cause(decision: TriggerDecision, words: str):
    assert summarise_decision(decision) == words
