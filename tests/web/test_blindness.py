"""No answer to a user who may vote depends on votes on, or kinds of, comparisons they have not
judged: every GET route is walked.

Only running numbers may tell how many votes there are: `seq` and its kin, and cursors, which are
made of them.
"""

import ast
import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from rlhf_pipeline.records import NewVote, Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.progress import routes as progress
from tests.web.conftest import DAY, NOON, UNCACHED
from tests.web.worlds import (
    ANN,
    CORRECTION,
    HELD,
    JUDGED,
    SKIPPED,
    UNJUDGED,
    Base,
    Plan,
    base,
    plans,
)

WEB = Path(__file__).parents[2] / "rlhf_pipeline" / "web"
EVENTS = "/api/v1/progress/events"
READY = "/api/v1/readyz"  # says what a thread has found out so far
REFUSED = [
    *(
        f"/api/v1/{what}"
        for what in (
            "alerts",
            "alerts/1",
            "alerts/rules",
            "alerts/silences",
            "audit",
            "audit/export",
            "calibrations",
            "calibrations/probe",
            "clusters",
            "consensus?method=joint_model",
            "decisions",
            "decisions/1",
            "drift-events",
            "drift-tests",
            "evolution/pairs?model=demo.reward_model@1",
            "evolution/training?model=demo.reward_model@1",
            "charts/drift",
            "charts/clusters",
            "charts/calibration/later_votes",
            "charts/calibration/later_groups",
        )
    ),
    "/alerts",
    "/audit",
    "/calibration",
    "/calibration.csv",
    "/consensus.csv?method=joint_model",
    "/decisions",
    "/decisions/1",
    "/drift-events",
    "/evolution/training?model=demo.reward_model@1",
    "/clusters",
    "/clusters/2026-01-02-A",
    "/drift",
    "/drift/2026-01-02",
]
RUNNING_NUMBERS = ("seq", "last_seq", "up_to_seq", "newest_seq", "next")
SOME = [JUDGED[0], HELD[0], SKIPPED, UNJUDGED[-2], CORRECTION]

# What stands for each parameter of a path or query. A route with another one fails until a value
# stands here.
PATHS: dict[str, list[str]] = {
    "cluster_id": ["2026-01-02-A"],
    "day": [DAY],
    "comparison_id": [*SOME, "none"],
    "feedback_id": ["1", "2", "3"],
    "version": ["1"],
    "user_id": [ANN],
    "alert_id": ["1"],
    "decision_id": ["1"],
    "reward_model": ["demo.reward_model@1"],
    "figure": [
        *("choices", "ties", "strength", "agreement", "preferred", "speed", "sides", "gold"),
        *("later_votes", "later_groups", "before_after", "groups", "calibrators"),
    ],
}
QUERIES: dict[str, list[str]] = {
    "a": ["1"],
    "b": ["2"],
    "order": ["b"],
    "earlier": ["2026-01-01"],
    "later": [DAY],
    "which": ["both"],
    "alert_id": ["1"],
    "decision_id": ["1"],
    "is_open": ["true"],
    "annotator_id": [ANN],
    "comparison_id": SOME,
    "day": [DAY],
    "q": ["led by style"],
    "mark": ["duplicate", "too_fast", "same_as_before"],
    "category": ["correction", "factual"],
    "status": ["not_offered", "waiting", "done", "counting", "replaced", "not_counting"],
    "flag": ["pii", "broken", "undone"],
    "job": ["feedback"],
    "sort": ["duplicate", "votes", "name", "same_as_before"],
    "limit": ["3"],
    "state": ["open", "disputed", "agreed", "decided"],
    "method": ["joint_model"],
    "kind": ["correction"],
    "session_id": ["s"],
    "created_by": [ANN],
    "actor": [ANN],
    "action": ["vote.cast"],
    "object_id": ["1"],
    "reward_model": ["demo.reward_model@1"],
    "model": ["demo.reward_model@1"],
    "calibrator": ["temperature@1"],
    "dimension": ["helpful"],
    "version": ["1"],
    "bin": ["0.8"],
    "rule": ["drift"],
    "by": ["group"],
    "source": ["this project", "feedback"],
    "space": ["errors"],
    "group": ["page"],
    "name": ["votes.cast"],
    "label": ["source=page"],
    "since": ["2026-01-01"],
    "until": ["2026-12-31"],
    "up_to": ["3"],
    "token": ["x"],
    "next": ["/votes"],
    "cursor": ["none"],
    "looked": ["1"],
    "tokens": ["none"],
}
BLIND = {
    "annotator": ([Role.ANNOTATOR], "person"),
    "curator": ([Role.CURATOR], "person"),
}
EVERY_ROLE = [role for role in Role if role != Role.ADMIN]
Answers = dict[str, tuple[int, list[tuple[str, str]], str]]


def get_routes(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute) and "GET" in route.methods]


def dependants(of: Dependant) -> Iterator[Dependant]:
    yield of
    for inner in of.dependencies:
        yield from dependants(inner)


def addresses(route: APIRoute) -> Iterator[str]:
    """Each with no parameter but those it needs, and with each of its parameters alone beside
    these.
    """
    every = list(dependants(route.dependant))
    asked = [param for one in every for param in one.query_params]
    paths = [route.path]
    for param in (param for one in every for param in one.path_params):
        paths = [
            path.replace(f"{{{param.alias}}}", value)
            for path in paths
            for value in PATHS[param.alias]
        ]
    needed = [
        f"{param.alias}={QUERIES[param.alias][0]}"
        for param in asked
        if param.field_info.is_required()
    ]
    for path in paths:
        yield "?".join([path, *needed])
        for param in asked:
            # pages and files read what the API reads
            values = QUERIES[param.alias][: None if path.startswith("/api/") else 1]
            yield from (
                f"{path}?{'&'.join([*needed, f'{param.alias}={value}'])}" for value in values
            )


async def walk(app: FastAPI, secret: str, *, is_bare: bool = False) -> Answers:
    """Every GET route's answers, or, bare, those without a parameter that may be left out; lists
    are read to their end.
    """
    found: Answers = {EVENTS: (200, [], await first_event(app, secret))}
    async with client_of(app, secret) as client:
        for route in get_routes(app):
            if route.path in (EVENTS, READY):
                continue
            for address in islice(addresses(route), 1 if is_bare else None):
                found[address] = answer = await got(client, address)
                for n in range(2, 40):
                    cursor = next_of(answer)
                    if cursor is None or "limit=3" not in address:
                        break
                    found[f"{address} page {n}"] = answer = await got(
                        client, f"{address}&cursor={cursor}"
                    )
    return found


async def got(client: httpx.AsyncClient, address: str) -> tuple[int, list[tuple[str, str]], str]:
    answer = await client.get(address)
    return (
        answer.status_code,
        sorted((name, value) for name, value in answer.headers.items() if name != "content-length"),
        answer.text,
    )


def next_of(answer: tuple[int, list[tuple[str, str]], str]) -> str | None:
    return (
        json.loads(answer[2]).get("next")
        if ("content-type", "application/json") in answer[1]
        else None
    )


async def first_event(app: FastAPI, secret: str) -> str:
    """Read from the generator behind the route: the stream itself never ends."""
    events = progress.stream_progress(app.state.site, secret, from_cookie=False)
    try:
        return await anext(events, "no event")
    finally:
        await events.aclose()


def without_running_numbers(text: str) -> str:
    if text.startswith("{"):
        return json.dumps(_without(json.loads(text)))
    if re.match(r"[a-z_]+(,[a-z_]+)*\r\n", text):
        return json.dumps(
            [
                {name: cell for name, cell in row.items() if name not in RUNNING_NUMBERS}
                for row in csv.DictReader(io.StringIO(text))
            ]
        )
    return re.sub(r"(cursor=)[\w-]+", r"\1", text)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(inner) for name, inner in value.items() if name not in RUNNING_NUMBERS
        }
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def answers_in(made: Base, plan: Plan, *, is_bare: bool = False) -> Answers:
    settings, store = made.world(plan)
    with store:
        return asyncio.run(
            walk(create_app(settings, store, cache_times=UNCACHED), made.secret, is_bare=is_bare)
        )


@pytest.mark.parametrize("who", BLIND)
def test_no_answer_depends_on_unjudged_cards(tmp_path: Path, migrated: Path, who: str):
    made = base(tmp_path / "home", migrated, *BLIND[who])
    one, other = (
        answers_in(made, plan)
        for plan in plans(Random(f"same number, {who}"), made.user_id, extra=0)
    )
    assert {address for address in one if one[address][0] == 200} > {
        "/me",
        "/api/v1/me/votes",
        "/annotate",
    }
    for address in one.keys() | other.keys():
        assert one[address] == other[address], address


def test_more_votes_on_unjudged_cards_move_only_running_numbers(tmp_path: Path, migrated: Path):
    made = base(tmp_path / "home", migrated, EVERY_ROLE, "service")
    one, other = (
        answers_in(made, plan) for plan in plans(Random("more votes"), made.user_id, extra=9)
    )
    for address in one.keys() | other.keys():
        assert one[address][:2] == other[address][:2], address
        assert without_running_numbers(one[address][2]) == without_running_numbers(
            other[address][2]
        ), address
    assert {address: one[address][0] for address in REFUSED} == dict.fromkeys(REFUSED, 403)


@pytest.mark.parametrize("who", BLIND)
def test_no_answer_to_a_change_depends_on_unjudged_cards(tmp_path: Path, migrated: Path, who: str):
    made = base(tmp_path / "home", migrated, *BLIND[who])
    worlds = [made.world(plan) for plan in plans(Random(f"changes, {who}"), made.user_id, extra=0)]
    hidden = [set(store.votes.log(comparison_ids=UNJUDGED)["vote_id"]) for _, store in worlds]
    asked = changes(sorted(hidden[0] ^ hidden[1])[:10])
    one, other = (
        asyncio.run(
            answers_to(create_app(settings, store, cache_times=UNCACHED), made.secret, asked)
        )
        for settings, store in worlds
    )
    for _, store in worlds:
        store.close()
    assert 201 in [status for status, _, _ in one]
    for request, first, second in zip(asked, one, other, strict=True):
        assert first == second, request


def changes(vote_ids: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """(API route or page, body): votes that supersede others' hidden ones, which one of two worlds
    does not have, and every other change but a lease."""
    on = [{"assignment_id": "card1"}, {"comparison_id": UNJUDGED[-1]}]
    votes = [{**one, "choice": "a", "supersedes": vote_id} for one in on for vote_id in vote_ids]
    return [
        *(("votes", vote) for vote in votes),
        (
            "votes:batch",
            {
                "votes": [
                    {**vote, "idempotency_key": f"batch/{i}"} for i, vote in enumerate(votes[:50])
                ]
            },
        ),
        ("comparisons:offer", {"ids": UNJUDGED, "overlap": 3}),
        ("comparisons:offer", {"ids": UNJUDGED, "annotator_id": ANN}),
        ("comparisons:offer", {"all_unvoted": True}),
        ("comparisons:offer", {"day": DAY}),
        ("comparisons:withdraw", {"ids": UNJUDGED}),
        ("predictions", {"prompt": "p", "completion_a": "a", "completion_b": "b"}),
        ("audit:verify", {}),
        ("decisions/1:answer", {"answer": "nothing", "reason": "x"}),
        ("decisions/1:lift", {"reason": "x"}),
        ("/decisions/1/answer", {"answer": "nothing", "reason": "x", "is_sure": "yes"}),
        ("/decisions/1/lift", {"reason": "x", "is_sure": "yes"}),
        (
            "feedback",
            {"kind": "thumbs", "value": 1, "completion": "text A of k1", "session_id": "s"},
        ),
        ("/comparisons/offer", {"which": "ids", "ids": "\n".join(UNJUDGED), "overlap": "4"}),
        ("/comparisons/offer", {"which": "unvoted", "annotator_id": ANN}),
        ("/comparisons/withdraw", {"ids": "\n".join(UNJUDGED)}),
        ("/rules", {"version": "1"}),
        ("/guidelines", {"version": "1", "text": "Be fair."}),
        ("assignments:extend", {}),
        ("assignments/card2:release", {}),
        ("votes", {"assignment_id": "card1", "choice": "skip"}),
        ("votes", {"assignment_id": "card2", "choice": "a"}),
    ]


async def answers_to(
    app: FastAPI, secret: str, asked: list[tuple[str, dict[str, Any]]]
) -> list[tuple[int, list[tuple[str, str]], str]]:
    found = []
    async with client_of(app, secret) as client:
        for n, (path, body) in enumerate(asked):
            sent = (
                {"data": body}
                if path.startswith("/")
                else {"json": body, "headers": {"Idempotency-Key": f"change {n}"}}
            )
            answer = await client.post(path if path.startswith("/") else f"/api/v1/{path}", **sent)
            found.append((answer.status_code, sorted(answer.headers.items()), answer.text))
    return found


def test_hidden_votes_cause_no_event(tmp_path: Path, migrated: Path):
    made = base(tmp_path / "home", migrated, *BLIND["curator"])
    settings, store = made.world(plans(Random(1), made.user_id, extra=0)[0])

    async def read_events() -> list[str]:
        site = create_app(settings, store, cache_times=UNCACHED).state.site
        events = progress.stream_progress(
            site, made.secret, from_cookie=False, look_s=0.001, still_here_s=0.01
        )
        first = await anext(events)
        cast(store, UNJUDGED[0])
        hidden = await anext(events)
        cast(store, JUDGED[0])
        while (shown := await anext(events)).startswith(":"):
            pass
        await events.aclose()
        return [first[:15], hidden, shown[:15]]

    with store:
        assert asyncio.run(read_events()) == [
            "event: progress",
            ": still here\n\n",
            "event: progress",
        ]


def cast(store: Store, comparison_id: str) -> None:
    vote = {
        "comparison_id": comparison_id,
        "annotator_id": "dora",
        "annotator_kind": "human",
        "choice": "a",
        "voted_at": NOON,
        "origin": "api",
    }
    store.votes.cast(NewVote.model_validate({**vote, "idempotency_key": f"dora/{comparison_id}"}))


def client_of(app: FastAPI, secret: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=headers
    )


def test_users_who_may_not_vote_see_the_difference(tmp_path: Path, migrated: Path):
    """Else the worlds of the tests above would prove nothing."""
    made = base(tmp_path / "home", migrated, [Role.ENGINEER, Role.AUDITOR], "person")
    one, other = (
        answers_in(made, plan, is_bare=True)
        for plan in plans(Random("engineer"), made.user_id, extra=0)
    )
    nouns = (
        "votes",
        "consensus",
        "comparisons",
        "progress",
        "quality",
        "metrics",
        "audit",
        "feedback",
    )
    changed = {address for address in one if one[address] != other.get(address)}
    assert {f"/api/v1/{noun}" for noun in nouns} <= changed
    assert {
        "/votes",
        "/comparisons",
        "/progress",
        "/quality",
        "/feedback",
        EVENTS,
        "/votes.csv",
    } <= changed


def test_only_one_module_decides_what_a_voter_sees():
    rights = {"sees_others_votes", "judges_blind"}
    using = {
        path.name
        for path in WEB.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in rights
    }
    assert using == {"auth.py", "blindness.py"}
