"""Comparisons offered to one person by name: to whom it may be, what they are dealt, what nobody is
told.
"""

import httpx
import pytest

from rlhf_pipeline.artefacts import Artefacts
from tests.clusters import failing_cluster, write_clusters
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def leased(client: httpx.Client, n: int = 10) -> list[dict]:
    return client.post("/assignments:lease", json={"n": n}).json()["cards"]


def test_what_is_offered_to_somebody_by_name_comes_first_to_them_and_to_nobody_else(web: Web):
    web.rule(repeat_share=0, gold_share=0)
    ids = web.publish(4)
    named = web.publish(2, prefix="n", offer=False)
    engineer = web.client("engineer")
    ann = web.client("annotator")
    bo = web.client("annotator")
    asked = {"ids": named, "annotator_id": ann.user.user_id}
    assert engineer.post("/comparisons:offer", json=asked).json() == {
        "n_comparisons": 2,
        "n_slots": 2,
    }
    assert engineer.post("/comparisons:offer", json=asked).json() == {
        "n_comparisons": 2,
        "n_slots": 0,
    }
    theirs, others = leased(ann, 3), leased(bo)
    assert {card["prompt"] for card in theirs[:2]} == {
        f"prompt {one[:1]}{int(one[1:])}" for one in named
    }
    assert len(others) == len(ids) - 1
    assert not {card["prompt"] for card in others} & {card["prompt"] for card in theirs}
    assert len({frozenset(card) for card in (*theirs, *others)}) == 1, (
        "a card does not say for whom it was meant"
    )
    for card in theirs:
        sent = {"assignment_id": card["assignment_id"], "choice": "a"}
        assert (
            ann.post(
                "/votes", json=sent, headers={"Idempotency-Key": card["assignment_id"]}
            ).status_code
            == 201
        )
    assert web.store.assignments.count_slots(named) == dict.fromkeys(named, (1, 1))
    acts = (
        web.client("auditor").get("/audit", params={"action": "comparisons.offer"}).json()["items"]
    )
    assert acts[0]["object_id"] == f"2 slots of {ann.user.user_id}"
    assert acts[0]["actor"] == engineer.user.user_id


def test_a_cluster_of_errors_is_listed_and_offered(web: Web):
    ids = web.publish(4, overlap=1)
    engineer = web.client("engineer")
    assert engineer.get("/clusters").json() == {"items": [], "next": None}
    cluster = failing_cluster("2026-01-05-A", ids[:2])
    files = Artefacts(web.settings.frames)
    write_clusters(files, "2026-01-05", cluster)
    write_clusters(files, "2026-01-06", cluster, failing_cluster("2026-01-06-B", ids[3:]))
    listed = engineer.get("/clusters").json()["items"]
    assert [(one["day"], one["cluster_id"]) for one in listed] == [
        ("2026-01-06", "2026-01-05-A"),
        ("2026-01-06", "2026-01-06-B"),
    ]
    assert listed[0]["comparison_ids"] == ids[:2]
    assert listed[0]["name"] == "lentils · soup"
    assert len(engineer.get("/clusters", params={"day": "2026-01-05"}).json()["items"]) == 1
    asked = {"cluster": "2026-01-05-A", "overlap": 3}
    for n_new in (4, 0):
        answer = engineer.post("/comparisons:offer", json=asked).json()
        assert answer == {"n_comparisons": 2, "n_slots": n_new}
    assert web.store.assignments.count_slots(ids)[ids[0]] == (3, 0)
    unknown = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-Z"})
    assert unknown.status_code == 404
    both = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-A", "ids": ids})
    assert both.status_code == 422
    assert web.client("curator").get("/clusters").status_code == 403
    answer = web.client("curator").post("/comparisons:offer", json=asked).json()
    assert answer == {"n_comparisons": None, "n_slots": None}


def test_a_whole_day_is_offered_by_name(web: Web):
    named = web.publish(3, offer=False)
    ann = web.client("annotator")
    asked = {"day": "2026-01-02", "annotator_id": ann.user.user_id, "priority": -3}
    assert web.client("engineer").post("/comparisons:offer", json=asked).json()["n_slots"] == len(
        named
    )
    assert len(leased(ann)) == len(named)


@pytest.mark.parametrize(
    "who", ["an auditor", "a service", "somebody disabled", "nobody", "anybody, overlapping"]
)
def test_nobody_is_asked_who_is_dealt_no_cards(web: Web, who: str):
    ids = web.publish(2, offer=False)
    web.add("admin")
    disabled = web.add("annotator")
    web.store.users.disable(disabled.user_id, actor="test")
    asked: dict[str, object] = {
        "an auditor": {"annotator_id": web.add("auditor").user_id},
        "a service": {"annotator_id": web.add("annotator", kind="service").user_id},
        "somebody disabled": {"annotator_id": disabled.user_id},
        "nobody": {"annotator_id": "nobody"},
        "anybody, overlapping": {"annotator_id": web.add("annotator").user_id, "overlap": 2},
    }[who]
    answer = web.client("curator").post("/comparisons:offer", json={"ids": ids, **asked})
    assert answer.status_code == (404 if who == "nobody" else 422)
    assert web.store.assignments.remaining_work().n_slots == 0


def test_offering_a_correction_by_name_does_not_tell_who_wrote_it(web: Web):
    web.rule(repeat_share=0, gold_share=0)
    author = web.client("annotator")
    other = web.client("annotator")
    engineer = web.client("engineer")
    made = author.post(
        "/feedback",
        json={"kind": "correction", "prompt": "2+2?", "completion": "5", "correction": "4"},
    ).json()
    for n_slots in (1, 0):
        told = [
            engineer.post(
                "/comparisons:offer",
                json={"ids": [made["comparison_id"]], "annotator_id": one.user.user_id},
            ).json()
            for one in (author, other)
        ]
        assert told == [{"n_comparisons": 1, "n_slots": n_slots}] * 2
    assert (len(leased(author)), len(leased(other))) == (0, 1)


def test_voters_are_not_told_what_others_judged_or_were_offered(web: Web):
    """A card on what was never offered is a gold card; what cannot be taken back is judged."""
    (offered,), (gold,) = web.publish(1), web.publish(1, prefix="g", offer=False, gold="a")
    curator = web.client("curator")
    ways = (
        {"ids": [offered]},
        {"ids": [gold]},
        {"ids": [offered], "annotator_id": curator.user.user_id},
    )
    assert [curator.post("/comparisons:offer", json=asked).json() for asked in ways] == [
        {"n_comparisons": 1, "n_slots": None}
    ] * 3
    for asked in ({"day": "2026-01-02"}, {"all_unvoted": True}):
        assert curator.post("/comparisons:offer", json=asked).json() == {
            "n_comparisons": None,
            "n_slots": None,
        }
    assert curator.post("/comparisons:withdraw", json={"ids": [offered, gold]}).json() == {
        "n_slots": None
    }
    assert web.store.assignments.remaining_work().n_slots == 0
