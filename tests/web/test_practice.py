"""The practice round by the API: blind before the answer, and counted nowhere."""

from tests.web.conftest import Web
from tests.web.databases import on_sqlite


def test_a_practice_round_shows_no_answer_before_it_and_counts_nowhere(web: Web):
    web.publish(16, gold="a")
    web.store.assignments.withdraw([f"c{n:04d}" for n in range(16)], actor="test")
    ann = web.client("annotator")
    told = ann.get("/practice")
    assert "gold" not in told.text
    round_ = told.json()
    assert len(round_["cards"]) == 4
    for card in round_["cards"]:
        texts = web.store.comparisons.texts([card["comparison_id"]])[card["comparison_id"]]
        answer = ann.post(f"/practice/{card['comparison_id']}:reveal").json()
        left_is_a = card["left"] == texts.completion_a
        assert answer == {"choice": "a" if left_is_a else "b"}
    assert ann.get("/practice").json()["cards"] == []
    assert web.store.votes.count() == 0
    assert web.store.assignments.list_for_annotator(ann.user.user_id) == []
    figures = ann.get("/me/statistics").json()
    assert (figures["votes_today"], figures["gold"]["n"]) == (0, 0)
    lease = ann.post("/assignments:lease", json={"n": 20}).json()
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
