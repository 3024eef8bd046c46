"""The practice round by the API: blind before the answer, and counted nowhere."""

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.frames import PROMPTS, check_frame
from tests.web.conftest import DAY, Web
from tests.web.databases import on_sqlite


def test_a_practice_round_shows_no_answer_before_it_and_counts_nowhere(web: Web):
    web.publish(16, gold="a")
    web.store.cards.withdraw([f"c{n:04d}" for n in range(16)], actor="test")
    ann = web.client("annotator")
    told = ann.get("/practice")
    assert "gold" not in told.text
    round_ = told.json()
    assert len(round_["cards"]) == 4
    for card in round_["cards"]:
        texts = web.store.comparisons.texts([card["comparison_id"]])[card["comparison_id"]]
        answer = ann.post(f"/practice/{card['comparison_id']}:reveal").json()
        left_is_a = card["left"] == texts.completion_a
        assert answer == {"choice": "a" if left_is_a else "b", "reason": None}
    assert ann.get("/practice").json()["cards"] == []
    assert web.store.votes.count() == 0
    figures = ann.get("/me/statistics").json()
    assert (figures["votes_today"], figures["gold"]["n"]) == (0, 0)
    lease = ann.post("/cards:lease", json={"n": 20}).json()
    assert not {card["prompt"] for card in lease["cards"]} & {
        card["prompt"] for card in round_["cards"]
    }


@on_sqlite
def test_no_answer_is_told_outside_the_round(web: Web):
    web.publish(3, gold="a")
    ann = web.client("annotator")
    assert ann.get("/practice").json()["cards"] == []
    assert ann.post("/practice/c0000:reveal").status_code == 404
    assert web.client("engineer").get("/practice").status_code == 403


@on_sqlite
def test_checkable_prompts_are_practised_on_without_gold(web: Web):
    """Of six comparisons, three are of a checkable prompt with one right completion, and a
    judgement of one of these is still wanted.
    """
    ids = web.publish(6, offer=False, completion_a="It is Rome.", completion_b="It is Paris.")
    references = ["Paris", "Paris", "Paris", "Oslo", None, "It is"]
    rows = [
        {
            "day": DAY, "prompt_id": f"pc{i}", "text": f"prompt c{i}", "category": "factual",
            "difficulty": "easy", "source": "templates", "template_id": None, "variables": "{}",
            "reference": reference, "seed": 1,
        }
        for i, reference in enumerate(references)
    ]  # fmt: skip
    files = Artefacts(web.settings.frames)
    files.write_frame("prompts", check_frame(pd.DataFrame(rows), PROMPTS), DAY)
    web.store.cards.offer(ids[2:3], overlap=1)
    ann = web.client("annotator")
    cards = ann.get("/practice").json()["cards"]
    assert {card["comparison_id"] for card in cards} == set(ids[:2])
    for card in cards:
        answer = ann.post(f"/practice/{card['comparison_id']}:reveal").json()
        right = "a" if card["left"] == "It is Paris." else "b"
        reason = f"only {right.upper()} gives the right answer, Paris"
        assert answer == {"choice": right, "reason": reason}
    assert ann.post(f"/practice/{ids[2]}:reveal").status_code == 404
    assert ann.get("/practice").json()["cards"] == []
    web.store.cards.offer(ids[:2], overlap=1)
    dealt = ann.post("/cards:lease", json={"n": 20}).json()["cards"]
    assert [card["prompt"] for card in dealt] == ["prompt c2"]
