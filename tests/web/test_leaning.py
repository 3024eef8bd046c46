"""People who lean to the left, as the web deals them cards: the leaning is found, because the side
that stood left is kept.
"""

import numpy as np
import pytest

from rlhf_pipeline.votes import joint_model
from rlhf_pipeline.votes.counting import counting
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

N_COMPARISONS, N_PEOPLE = 120, 4
LEFT = 0.75  # how often each of them takes the left one, whatever it says


@on_sqlite
def test_a_leaning_of_web_annotators_is_recovered(web: Web):
    web.rule(repeat_share=0, gold_share=0, prefetch=20)
    web.publish(N_COMPARISONS, overlap=N_PEOPLE)
    rng = np.random.default_rng(1)
    for _ in range(N_PEOPLE):
        client = web.client("annotator")
        while cards := client.post("/assignments:lease", json={"n": 20}).json()["cards"]:
            said = ["a" if left else "b" for left in rng.random(len(cards)) < LEFT]
            votes = [
                {
                    "assignment_id": card["assignment_id"],
                    "choice": choice,
                    "idempotency_key": card["assignment_id"],
                }
                for card, choice in zip(cards, said, strict=True)
            ]
            answers = client.post("/votes:batch", json={"votes": votes}).json()["results"]
            assert {answer["status"] for answer in answers} == {201}
    votes = counting(web.store.votes.log([web.clock.now().date().isoformat()]))
    assert len(votes) == N_COMPARISONS * N_PEOPLE
    assert 0.4 < votes["is_swapped"].mean() < 0.6
    # in terms of the comparison's sides nobody leans anywhere
    assert 0.4 < (votes["choice"] == "a").mean() < 0.6
    annotators = joint_model(votes).annotators
    assert (annotators["position_bias_low"] > 0.1).all()
    assert annotators["position_bias"].to_numpy() == pytest.approx(LEFT - 0.5, abs=0.08)
    inside = (annotators["position_bias_low"] <= LEFT - 0.5) & (
        annotators["position_bias_high"] >= LEFT - 0.5
    )
    assert inside.sum() >= N_PEOPLE - 1
