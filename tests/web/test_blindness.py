"""No answer to a user who may vote depends on votes on, or kinds of, comparisons they have not
judged: every GET route is walked.

Only running numbers may tell how many votes there are: `seq` and its kin, and cursors, which are
made of them.
"""

import ast
import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from rlhf_pipeline.records import Role
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.progress import routes as progress
from tests.web.conftest import DAY, UNCACHED
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
