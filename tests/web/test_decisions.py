"""Decisions and drift events by API and page: in words, answered by people, once, and audited."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.records import DriftEvent, Remedy, Role, TriggerDecision
from rlhf_pipeline.store import Store
from tests.web.conftest import Web

NOW = datetime(2026, 1, 6, 12, tzinfo=UTC)
REASON = "the old taste counts"
EFFECT = {"value": 0.3, "low": 0.2, "high": 0.4, "n": 300}
CAUSES = {
    "change_seq": 290,
    "until_seq": 400,
    "n_before": 200,
    "n_after": 100,
    "rise": {"value": 0.3, "low": 0.2, "high": 0.4, "n": 300},
    "causes": [
        {"name": "newcomers", "probability": 0.9, "effect": EFFECT},
        {"name": "taste", "probability": 0.1, "effect": EFFECT},
    ],
    "summary": "3 newcomers have another taste.",
}


NAMED = {"annotator_ids": ["ann3"], "from_seq": 290}
CARELESS = {
    "people": [
        {
            "annotator_id": "ann3",
            "probability": 0.98,
            "n_votes": 41,
            "error_after": 0.51,
            "error_expected": 0.22,
        }
    ]
}


def ask_people(
    store: Store, remedy: Remedy = "report_two_tastes", causes: Mapping[str, Any] = CAUSES
) -> int:
    """Store an event, and a decision about it that waits for a person; returns its number."""
    event = DriftEvent(
        kind="drift",
        model_version="demo.reward_model@1",
        detector="sequential_test",
        params_hash="p",
        stream="errors",
        seq=340,
        day=date(2026, 1, 6),
        change_seq=290,
        evidence={"error_before": 0.2, "n_votes": 1848},
        detected_at=NOW,
    )
    store.events.add([event])
    decision = store.decisions.apply_rule(
        lambda evidence: TriggerDecision(
            action="hold",
            reasons=("newcomers with another taste: ann3, from vote 290 on",),
            event_ids=(event.event_id,),
            evidence={
                "causes": causes,
                "looked_at": {"max_seq": 400},
            }
            | ({} if remedy == "ask_for_cause" else {"quarantine": NAMED}),
            decided_at=NOW,
            remedy=remedy,
        ),
        now=NOW,
        champion="demo.reward_model@1",
    )
    assert decision is not None
    return decision.stored_id


def test_decision_is_described_and_links_to_its_events(web: Web):
    number = ask_people(web.store)
    reader = web.client("auditor")
    (listed,) = reader.get("/decisions").json()["items"]
    assert (listed["state"], listed["actions"]) == ("waits for a person", ["answer"])
    assert listed["summary"] == (
        "newcomers with another taste (probability 90%); waits for a person"
    )
    detail = reader.get(f"/decisions/{number}").json()
    assert [cause["probability"] for cause in detail["causes"]] == [0.9, 0.1]
    assert (detail["rise"]["difference"]["low"], detail["rise"]["n_after"]) == (0.2, 100)
    assert "cannot be explained" in detail["not_explained"]
    (event,) = reader.get(f"/drift-events?decision_id={number}").json()["items"]
    assert (event["detector"], event["decision_id"]) == ("sequential_test", number)
    assert reader.get("/drift-events?is_open=true").json()["items"] == []
    assert reader.get("/decisions/9").status_code == 404
    home = reader.get("/home").json()
    headline = home["headline"]
    assert headline["text"].endswith("The loop waits for your answer.")
    assert headline["acts"][0] == {"label": "Answer decision 1", "link": "/decisions/1#act"}


def test_a_person_answers_once_and_ends_the_quarantine(web: Web):
    number = ask_people(web.store)
    engineer = web.client("engineer")
    body = {"answer": "quarantine", "reason": REASON}
    assert web.client("auditor").post(f"/decisions/{number}:answer", json=body).status_code == 403
    decision = engineer.post(f"/decisions/{number}:answer", json=body).json()
    assert (decision["remedy"], decision["actor"]) == ("quarantine", engineer.user.user_id)
    assert (decision["answers"], decision["actions"]) == (number, ["lift"])
    again = engineer.post(f"/decisions/{number}:answer", json=body)
    assert (again.status_code, again.json()["type"]) == (409, "urn:rlhf:problem:decision_state")
    states = [each["state"] for each in engineer.get("/decisions").json()["items"]]
    assert states == ["pending", f"answered by decision {decision['decision_id']}"]
    lifted = engineer.post(
        f"/decisions/{decision['decision_id']}:lift", json={"reason": "no"}
    ).json()
    assert lifted["remedy"] == "lift_quarantine"
    assert engineer.post(f"/decisions/{number}:lift", json={"reason": "no"}).status_code == 409
    actors = {link.actor for link in web.store.audit.page(AuditFilter(action="decision.*"))[0]}
    assert engineer.user.user_id in actors


def test_a_question_about_careless_annotators_shows_their_figures(paged: Web):
    careless = {"name": "carelessness", "probability": 0.95, "effect": EFFECT, "evidence": CARELESS}
    number = ask_people(paged.store, "quarantine", CAUSES | {"causes": [careless]})
    page = paged.browser(paged.add(Role.ENGINEER)).get(f"{paged.url}/decisions/{number}").text
    assert "<h1>Careless annotators (probability 95%); waits for a person</h1>" in page
    row = page[page.index('<th scope="row">') :].partition("</tr>")[0]
    for part in ("ann3</a>", ">98%<", ">41<", ">51%<", ">22%<"):
        assert part in row, part


def test_an_unclear_cause_is_answered_by_retraining_or_nothing(paged: Web):
    number = ask_people(paged.store, "ask_for_cause")
    page = paged.browser(paged.add(Role.ENGINEER)).get(f"{paged.url}/decisions/{number}").text
    assert 'value="retrain"' in page
    assert 'value="quarantine"' not in page
    answer = paged.client("engineer").post(
        f"/decisions/{number}:answer", json={"answer": "retrain", "reason": REASON}
    )
    assert (answer.json()["remedy"], answer.json()["change_seq"]) == ("retrain", 290)
