"""Data quality over HTTP: figures per annotator with intervals, each leading to exactly its votes,
and nothing told to who votes.
"""

import uuid
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.feedback.votes.annotators_over_time import annotators_over_time
from rlhf_pipeline.feedback.votes.statistics import interval_columns
from rlhf_pipeline.reports.annotator_weeks import FIGURES
from rlhf_pipeline.reports.chart import Chart, day_value
from tests.web.conftest import NOON, Web

LONG = "x" * 400  # both completions: 8 s at 100 characters a second


def cast(client: httpx.Client, comparison_id: str, choice: str = "a", **more: object) -> dict:
    answer = client.post(
        "/votes",
        json={"comparison_id": comparison_id, "choice": choice, **more},
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


def judge(
    web: Web, client: httpx.Client, n: int, *, choice: str = "a", seconds: float | None = 30.0
) -> list[str]:
    """Votes on dealt cards: the page's side, whichever completion stands there."""
    vote_ids = []
    for card in client.post("/cards:lease", json={"n": n}).json()["cards"]:
        body = {"card_id": card["card_id"], "choice": choice} | (
            {} if seconds is None else {"duration_s": seconds}
        )
        answer = client.post("/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
        assert answer.status_code == 201, answer.text
        vote_ids.append(answer.json()["vote_id"])
    return vote_ids


def listed(client: httpx.Client, **params: object) -> list[str]:
    vote_ids, cursor = [], None
    while True:
        answer = client.get(
            "/votes", params={"limit": 3, **params, **({"cursor": cursor} if cursor else {})}
        )
        assert answer.status_code == 200, answer.text
        vote_ids += [item["vote_id"] for item in answer.json()["items"]]
        cursor = answer.json()["next"]
        if cursor is None:
            return vote_ids


def read_quality(client: httpx.Client) -> dict[str, dict]:
    answer = client.get("/quality")
    assert answer.status_code == 200, answer.text
    return {row["annotator_id"]: row for row in answer.json()["annotators"]}


def test_every_figure_links_to_exactly_its_votes(web: Web):
    web.rule(repeat_share=0.0, gold_share=0.0)
    web.publish(12, overlap=2, completion_a=LONG, completion_b=LONG)
    steady = web.client("annotator")
    hasty = web.client("annotator")
    reader = web.client("auditor")
    same = judge(web, steady, 12)[1:]
    fast = [
        *judge(web, hasty, 5, seconds=1.0, choice="tie"),
        *judge(web, hasty, 4, seconds=20.0),
        *judge(web, hasty, 3, seconds=None),
    ][:5]
    quality = read_quality(reader)
    a, b = quality[steady.user.user_id], quality[hasty.user.user_id]
    assert (a["n_votes"], b["n_votes"]) == (12, 12)
    assert (a["same_as_before"]["marked"], a["same_as_before"]["n"]) == (11, 11)
    assert (b["too_fast"]["marked"], b["too_fast"]["n"]) == (5, 9)
    assert a["too_fast"]["marked"] == 0
    for share in (a["same_as_before"], a["too_fast"], b["too_fast"]):
        assert 0 <= share["low"] < share["high"] <= 1
    assert next(iter(quality)) == steady.user.user_id  # the most doubtful first
    assert listed(reader, mark="same_as_before", annotator_id=steady.user.user_id) == same[::-1]
    assert (
        listed(reader, mark="too_fast", annotator_id=hasty.user.user_id)
        == fast[::-1]
        == listed(reader, mark="too_fast")
    )
    assert listed(reader, mark="too_fast", annotator_id=steady.user.user_id) == []
    assert listed(reader, mark="too_fast", annotator_id="nobody") == []


def test_list_is_searchable_sortable_and_paged(web: Web):
    ids = web.publish(4)
    people = [web.add("annotator", email=f"{name}@example.org") for name in ("zoe", "ann", "bob")]
    for n, user in enumerate(people, 2):
        for comparison_id in ids[:n]:
            web.store.votes.cast(
                NewVote(
                    comparison_id=comparison_id,
                    annotator_id=user.user_id,
                    annotator_kind="human",
                    choice="a",
                    voted_at=NOON,
                    origin="page",
                    idempotency_key=f"{user.user_id}/{comparison_id}",
                )
            )
    admin = web.client("admin")

    def names(**params: object) -> list[str]:
        names_read, cursor = [], None
        while True:
            page = admin.get("/quality", params=params | ({"cursor": cursor} if cursor else {}))
            assert page.status_code == 200, page.text
            names_read += [row["name"] for row in page.json()["annotators"]]
            cursor = page.json()["next"]
            if cursor is None:
                return names_read

    assert names(sort="name", limit=2) == ["ann", "bob", "zoe"]
    assert names(sort="votes", limit=1) == ["bob", "ann", "zoe"]
    assert names(q="ANN") == ["ann"]
    assert names(q=people[0].user_id) == ["zoe"]
    assert names(q="nobody") == []
    assert admin.get("/quality", params={"cursor": "x"}).status_code == 422


WEEKS = [datetime(2026, 1, 5, 12, tzinfo=UTC) + timedelta(days=7 * n) for n in range(3)]


def cast_weeks(web: Web) -> None:
    """Three people on 12 comparisons a week, every second one with a known answer."""
    ids = [
        *web.publish(18, prefix="g", gold="a", offer=False),
        *web.publish(18, prefix="n", offer=False),
    ]
    web.store.votes.cast_many(
        [
            NewVote(
                comparison_id=ids[i],
                annotator_id=who,
                annotator_kind="human",
                choice=("a", "a", "b", "tie")[(i + j) % 4],
                voted_at=WEEKS[i % 3],
                duration_s=5.0 + i + j,
                is_swapped=i % 2 == 0,
                origin="page",
                idempotency_key=f"{i}/{who}",
            )
            for i in range(len(ids))
            for j, who in enumerate(("ann", "bob", "eve"))
        ]
    )


def test_weeks_of_an_annotator_equal_those_of_the_command(web: Web):
    cast_weeks(web)
    (comparisons,) = web.store.comparisons.stream(100)
    frame = annotators_over_time(web.store.votes.log(), comparisons)
    own = frame[frame["annotator_id"] == "ann"]
    reader = web.client("auditor")
    for name, figure in FIGURES.items():
        answer = reader.get(f"/charts/annotator/{name}", params={"annotator_id": "ann"})
        assert answer.status_code == 200, answer.text
        drawn = {
            panel.title: panel.series[0]
            for panel in Chart.model_validate(answer.json()).panels
            if panel
        }
        for plot in figure.plots:
            if plot.measure == "self_consistency":  # nobody judged anything twice
                assert plot.title not in drawn
                continue
            series = drawn[plot.title]
            assert series.x == tuple(day_value(day.date()) for day in WEEKS)
            drawn_ends = (series.y, series.low, series.high)
            for values, column in zip(drawn_ends, interval_columns(plot.measure), strict=True):
                assert values == pytest.approx(own[column].tolist())


def test_quarantine_of_an_annotator_shows_its_effect_first(paged: Web):
    ann = paged.add("annotator")
    ids = paged.publish(4, overlap=2)
    voter, bob = paged.client(user=ann), paged.client("admin")
    judge(paged, voter, 4)
    for comparison_id in ids[:2]:
        cast(bob, comparison_id)
    curator = paged.client("curator")
    effect = curator.get(f"/annotators/{ann.user_id}/effect").json()
    assert (effect["n_votes"], effect["n_pairs"], effect["share"]) == (4, 4, 4 / 6)
    later = curator.get(f"/annotators/{ann.user_id}/effect", params={"from_seq": 4}).json()
    assert later["n_votes"] == 1
    assert paged.client("auditor").get(f"/annotators/{ann.user_id}/effect").status_code == 403

    body = {"is_paused": True, "reason": "asked to"}
    assert curator.post(f"/users/{ann.user_id}:pause", json=body).json()["paused_at"]
    lease = voter.post("/cards:lease", json={"n": 1})
    assert (lease.status_code, lease.json()["type"]) == (403, "urn:rlhf:problem:paused")
    words = f"UTC. Your earlier votes are kept. Ask {curator.user.name} when it goes on."
    assert lease.json()["detail"].startswith(f"{curator.user.name} paused your voting on ")
    assert lease.json()["detail"].endswith(words)
    mine = paged.browser(ann)
    assert mine.get(f"{paged.url}/").headers["location"] == "/annotate"
    page = mine.get(f"{paged.url}/annotate").text
    assert words in page
    assert "<h1>Your voting is paused</h1>" in page
    assert 'href="/me"' in page
    assert ">403<" not in page
    curator.post(f"/users/{ann.user_id}:pause", json=body | {"is_paused": False})
    assert voter.post("/cards:lease", json={"n": 1}).is_success
    acts = [link.action for link in paged.store.audit.page(AuditFilter(action="users.*"))[0]]
    assert acts[:2] == ["users.resume", "users.pause"]

    browser, address = paged.browser(curator.user), f"{paged.url}/quality/trust"
    form = {"annotator_id": ann.user_id, "action": "leave-out", "reason": "careless"}
    assert browser.post(address, data=form | {"reason": ""}).status_code == 422
    assert browser.post(address, data=form).status_code == 303
    decision = paged.store.decisions.latest()
    assert (decision.actor, decision.reasons) == (curator.user.user_id, ("by hand: careless",))
    row = browser.get(f"{paged.url}/quality").text
    assert f'href="/quality/trust?annotator_id={ann.user_id}"' in " ".join(row.split())
    audit = paged.browser(paged.add("admin")).get(f"{paged.url}/audit").text
    assert f"<summary>{ann.user_id}</summary>" not in audit, "users by name, not by id"
    page = browser.get(address, params={"annotator_id": ann.user_id}).text
    assert f"<h1>{ann.name} " in page, "people by name"
    assert ann.email not in page, "curators learn no addresses"
    assert "their votes are left out" in " ".join(page.split())
    again = curator.post(f"/annotators/{ann.user_id}:leave-out", json={"reason": "x"})
    assert again.status_code == 409
    assert browser.post(address, data=form | {"action": "restore"}).status_code == 303
    assert paged.store.decisions.latest().remedy == "lift_quarantine"
    assert curator.post("/annotators/nobody:leave-out", json={"reason": "x"}).status_code == 404
