"""Comparisons offered to one person by name: to whom it may be, what they are dealt, what nobody is
told.
"""

import httpx

from rlhf_pipeline.core.artefacts import Artefacts
from tests.clusters import failing_cluster, write_clusters
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


def leased(client: httpx.Client, n: int = 10) -> list[dict]:
    return client.post("/cards:lease", json={"n": n}).json()["cards"]


def test_named_offer_comes_first_and_only_to_its_person(web: Web):
    web.rule(repeat_share=0, gold_share=0)
    ids = web.publish(4)
    named = web.publish(2, prefix="n", offer=False)
    engineer = web.client("engineer")
    ann = web.client("annotator")
    bo = web.client("annotator")
    body = {"ids": named, "annotator_id": ann.user.user_id}
    assert engineer.post("/comparisons:offer", json=body).json() == {
        "n_comparisons": 2,
        "n_wanted": 2,
    }
    assert engineer.post("/comparisons:offer", json=body).json() == {
        "n_comparisons": 2,
        "n_wanted": 0,
    }
    theirs, others = leased(ann, 3), leased(bo)
    assert {card["prompt"] for card in theirs[:2]} == {
        f"prompt {comparison_id[:1]}{int(comparison_id[1:])}" for comparison_id in named
    }
    assert len(others) == len(ids) - 1
    assert not {card["prompt"] for card in others} & {card["prompt"] for card in theirs}
    assert len({frozenset(card) for card in (*theirs, *others)}) == 1, (
        "a card does not say for whom it was meant"
    )
    for card in theirs:
        vote = {"card_id": card["card_id"], "choice": "a"}
        assert (
            ann.post("/votes", json=vote, headers={"Idempotency-Key": card["card_id"]}).status_code
            == 201
        )
    assert web.store.cards.count_wanted(named) == dict.fromkeys(named, (1, 1))
    acts = (
        web.client("auditor").get("/audit", params={"action": "comparisons.offer"}).json()["items"]
    )
    assert acts[0]["object_id"] == f"2 judgements of {ann.user.user_id}"
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
    assert [(cluster["day"], cluster["cluster_id"]) for cluster in listed] == [
        ("2026-01-06", "2026-01-05-A"),
        ("2026-01-06", "2026-01-06-B"),
    ]
    assert listed[0]["comparison_ids"] == ids[:2]
    assert listed[0]["name"] == "lentils · soup"
    assert len(engineer.get("/clusters", params={"day": "2026-01-05"}).json()["items"]) == 1
    body = {"cluster": "2026-01-05-A", "overlap": 3}
    for n_new in (4, 0):
        answer = engineer.post("/comparisons:offer", json=body).json()
        assert answer == {"n_comparisons": 2, "n_wanted": n_new}
    assert web.store.cards.count_wanted(ids)[ids[0]] == (3, 0)
    unknown = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-Z"})
    assert unknown.status_code == 404
    both = engineer.post("/comparisons:offer", json={"cluster": "2026-01-05-A", "ids": ids})
    assert both.status_code == 422
