"""What belongs to another organisation or project is not there: every id that any operation takes,
found in the OpenAPI document and not in a list of routes.

An id of somebody else's must be answered word for word as one that nobody has. For a path that is
404.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest

from rlhf_pipeline.records import utc_now
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite
from tests.web.test_alerts import add_dead_message, look
from tests.web.test_calibration import MODEL, report
from tests.web.test_decisions import ask_people

# Names of parameters and fields that look like an id and name nothing that is kept here, with the
# reason.
FREE = {
    "session_id": "of the program that sends feedback",
    "completion_id": "of the program that sends feedback",
    "idempotency_key": "the sender's own",
    "target": "a name in the settings",
    "figure": "a name in the code",
}
# Names of ids of what is kept -> one that nobody has, of the same form.
NOBODYS: dict[str, Any] = {
    "user_id": "u0000000000000000",
    "annotator_id": "u0000000000000000",
    "created_by": "u0000000000000000",
    "actor": "u0000000000000000",
    "comparison_id": "none",
    "ids": ["none"],
    "assignment_id": "0" * 24,
    "token_id": "0" * 16,
    "feedback_id": 999,
    "message_id": "msg_none",
    "alert_id": 999,
    "decision_id": 999,
    "silence_id": 999,
    "supersedes": "0" * 24,
    "version": 998,
    "guideline_version": 998,
    "reward_model": "none@1",
    "calibrator": "none@1",
    "object_id": "none",
}


@dataclass(frozen=True)
class Hole:
    """A place of an operation into which an id goes."""

    method: str
    path: str
    where: str  # path, query or body
    name: str

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.where} {self.name}"


def document_of(web: Web) -> dict[str, Any]:
    return web.anonymous().get("/openapi.json").json()


def is_id(name: str) -> bool:
    return name in NOBODYS or name == "id" or name.endswith(("_id", "_ids", "_key"))


def fields(
    schema: dict[str, Any], document: dict[str, Any], seen: tuple[str, ...] = ()
) -> Iterator[str]:
    """Names of all fields of a body, however deep."""
    reference = schema.get("$ref")
    if reference is not None:
        if reference not in seen:
            yield from fields(
                document["components"]["schemas"][reference.rpartition("/")[2]],
                document,
                (*seen, reference),
            )
        return
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from fields(inner, document, seen)
    for inner in (
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *schema.get("allOf", ()),
        *([schema["items"]] if "items" in schema else ()),
    ):
        yield from fields(inner, document, seen)


def holes(web: Web) -> list[Hole]:
    document, found = document_of(web), []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            named = [
                (one["in"], one["name"])
                for one in operation.get("parameters", ())
                if one["in"] in ("path", "query")
            ]
            body = (
                operation.get("requestBody", {})
                .get("content", {})
                .get("application/json", {})
                .get("schema", {})
            )
            named += [("body", name) for name in dict.fromkeys(fields(body, document))]
            found += [
                Hole(method, path, where, name)
                for where, name in named
                if where == "path" or is_id(name)
            ]
    return found


@pytest.fixture(
    params=[("demo", "elsewhere"), ("other", "org")],
    ids=["another organisation", "another project"],
)
def theirs(request: pytest.FixtureRequest, web: Web, settings, open_store) -> Iterator[Web]:
    """In the same database another organisation's project of the same name, or another project of
    the same organisation.
    """
    project, organization = request.param
    store = open_store(project, organization)
    elsewhere = settings.model_copy(
        update={
            "project": project,
            "organization": organization,
            "home": settings.home / "elsewhere",
        }
    )
    with WebServer(create_app(elsewhere, store, has_pages=False, cache_times=UNCACHED)) as server:
        yield Web(store, elsewhere, server.url, web.clock)


def made_there(theirs: Web) -> tuple[httpx.Client, dict[str, Any]]:
    """Somebody who may do anything there, and an id of everything there is."""
    theirs.publish(5, prefix="t")
    admin = theirs.client("admin")
    voted, held = admin.post("/assignments:lease", json={"n": 2}).json()["cards"]
    vote = admin.post(
        "/votes",
        json={"assignment_id": voted["assignment_id"], "choice": "a"},
        headers={"Idempotency-Key": "k"},
    ).json()
    sent = admin.post("/feedback", json={"kind": "detailed", "text": "x", "completion": "y"}).json()
    version = admin.post(
        "/guidelines", json={"text": "theirs"}, headers={"If-Match": '"0"'}
    ).json()["version"]
    theirs.store.calibrations.add(report(0), {"temperature": 1.5})
    look(theirs, 80)
    (alert,) = theirs.store.alerts.page()
    decision_id = ask_people(theirs.store)
    message = add_dead_message(theirs.store, alert_id=alert.alert_id)
    silence = theirs.store.silences.add(
        rule=None,
        subject=None,
        reason="holidays",
        ends_at=utc_now() + timedelta(hours=1),
        actor="theirs",
    )
    user, kept = admin.user.user_id, theirs.store.votes.get(vote["vote_id"])
    return admin, {
        "user_id": theirs.add("annotator").user_id,
        "annotator_id": user,
        "created_by": user,
        "actor": user,
        "object_id": kept.vote_id,
        "comparison_id": kept.comparison_id,
        "ids": [kept.comparison_id],
        "assignment_id": held["assignment_id"],
        "token_id": admin.get("/me/tokens").json()["items"][0]["token_id"],
        "feedback_id": sent["feedback_id"],
        "message_id": message.message_id,
        "alert_id": alert.alert_id,
        "decision_id": decision_id,
        "silence_id": silence.silence_id,
        "supersedes": kept.vote_id,
        "version": version,
        "guideline_version": version,
        "reward_model": MODEL,
        "calibrator": "temperature@1",
    }


def answer(
    client: httpx.Client, hole: Hole, ids: dict[str, Any], own: dict[str, Any]
) -> tuple[int, Any]:
    """Of an operation into whose hole an id is put, and into all others what is the caller's
    own.
    """
    document = {**own, **{hole.name: ids[hole.name]}}
    path = hole.path.removeprefix("/api/v1")
    for name in re.findall(r"\{(\w+)\}", path):
        path = path.replace(
            f"{{{name}}}", str(ids[name] if hole.where == "path" else document[name])
        )
    bodies: dict[str, dict[str, Any]] = {
        "/votes": {"assignment_id": own["assignment_id"], "choice": "a"},
        "/comparisons:offer": {"ids": own["ids"]},
    }
    if path == "/votes:batch":
        sent: Any = {
            "votes": [
                {
                    **bodies["/votes"],
                    "idempotency_key": "f",
                    **({hole.name: ids[hole.name]} if hole.where == "body" else {}),
                }
            ]
        }
    else:
        sent = {
            **bodies.get(path, {}),
            **({"reason": "x"} if path.endswith((":answer", ":lift")) else {}),
            **({"answer": "nothing"} if path.endswith(":answer") else {}),
            **({hole.name: ids[hole.name]} if hole.where == "body" else {}),
        }
    for one in [sent, *sent.get("votes", ())]:
        if hole.name == "comparison_id":
            one.pop("assignment_id", None)
    query = {hole.name: ids[hole.name]} if hole.where == "query" else {}
    if path.endswith("/pairs"):
        query["bin"] = 0.72
    headers = {"Idempotency-Key": f"{hole}/{ids['comparison_id']}"[:128], "If-Match": '"anything"'}
    body = sent if hole.method not in ("get", "delete") else None
    deadline = time.monotonic() + 120
    while True:
        found = client.request(
            hole.method, path, params=query, json=body, headers=headers, timeout=120
        )
        # what is being counted is told a moment later
        if found.status_code != 503 or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    try:
        told: Any = found.json()
    except ValueError:
        told = found.text
    sent_ids = [
        ids[name] for name in (hole.name, *re.findall(r"\{(\w+)\}", hole.path)) if name not in FREE
    ]
    words = {
        str(one) for value in sent_ids for one in (value if isinstance(value, list) else [value])
    }
    return found.status_code, without(told, words)


def without(told: Any, words: set[str]) -> Any:
    """An answer in which the id that was sent cannot be told from another, nor one moment from the
    next.
    """
    if isinstance(told, dict):
        return {
            name: without(value, words)
            for name, value in told.items()
            if not name.endswith("_at") and name != "is_current"
        }
    if isinstance(told, list):
        return [without(value, words) for value in told]
    for word in sorted(words, key=len, reverse=True):  # a number may stand within another id
        told = (
            re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "ID", told)
            if isinstance(told, str)
            else told
        )
    return told


@on_sqlite
def test_every_id_that_an_operation_takes_is_known_to_these_tests(web: Web):
    found = {hole.name for hole in holes(web)}
    assert found <= NOBODYS.keys() | FREE.keys(), "say of each what it names"
    assert NOBODYS.keys() | FREE.keys() <= found
    assert len(holes(web)) > 30


def test_an_id_of_somebody_elses_is_answered_as_one_that_nobody_has(web: Web, theirs: Web):
    admin, foreign = made_there(theirs)
    ours = web.client("admin")
    web.publish(3, prefix="o")
    mine = ours.post("/assignments:lease", json={"n": 1}).json()["cards"][0]["assignment_id"]
    own = {
        **NOBODYS,
        "assignment_id": mine,
        "ids": ["o0002"],
        "comparison_id": "o0001",
        "user_id": ours.user.user_id,
        "figure": "speed",
    }
    n_paths = 0
    for hole in holes(web):
        if hole.name in FREE:
            continue
        of_foreign, of_nobody = (answer(ours, hole, ids, own) for ids in (foreign, NOBODYS))
        assert of_foreign == of_nobody, hole
        if hole.where == "path":
            assert of_foreign[0] == 404, (hole, of_foreign)
            n_paths += 1
    assert n_paths >= 10
    # They are there for those whose they are: else every 404 would prove nothing.
    for hole in holes(theirs):
        if hole.where == "path" and hole.method == "get" and hole.name not in FREE:
            assert answer(admin, hole, foreign, foreign)[0] == 200, hole
    assert web.store.votes.count() == 0
    assert theirs.store.audit.verify() > 0


@on_sqlite
def test_no_list_and_no_figure_tells_what_others_have(web: Web, theirs: Web):
    """All that is read without an id: lists, figures, files."""
    _, foreign = made_there(theirs)
    ours = web.client("admin")
    words = {
        str(one)
        for value in foreign.values()
        for one in (value if isinstance(value, list) else [value])
        if len(str(one)) > 4
    }
    document, n = document_of(web), 0
    for path, methods in document["paths"].items():
        if "get" not in methods or "{" in path or path.endswith("/events"):
            continue
        said = ours.get(
            path.removeprefix("/api/v1"), params={"bin": 0.72} if path.endswith("/pairs") else None
        ).text
        assert not [word for word in words if word in said], path
        n += 1
    assert n >= 15
    with ours.stream("GET", "/progress/events") as events:
        first = next(line for line in events.iter_lines() if line.startswith("data:"))
    assert '"n_slots":0' in first.replace(" ", "")
