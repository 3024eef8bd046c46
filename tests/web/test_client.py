"""The client against the live server, and against servers that fail as servers do."""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from rlhf_pipeline.api_types.project import Metrics
from rlhf_pipeline.client import AsyncClient, Client, calls, exchange
from rlhf_pipeline.errors import (
    ConfigurationError,
    ConflictingRequest,
    InvalidRequest,
    MissingResource,
    NotAuthorised,
    ServerUnavailable,
    TooManyRequests,
)
from rlhf_pipeline.records import AnnotationRules, Choice, NewFeedback, Role
from tests.web.conftest import Web
from tests.web.served import Served, served
from tests.web.test_calibration import MODEL, publish, report
from tests.web.test_calibration import vote as cast_votes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("client")
    with served(f"sqlite:///{folder / 'store.db'}", folder / "home") as server:
        server.furnish(60, overlap=2)
        server.start()
        yield server


@pytest.fixture(scope="module")
def ann(server: Served) -> str:
    return server.token("ann@client.test", Role.ANNOTATOR)


@pytest.fixture(scope="module")
def admin(server: Served) -> Iterator[Client]:
    with Client(server.address, server.token("admin@client.test", Role.ADMIN)) as client:
        yield client


@pytest.fixture
def annotator(server: Served, ann: str) -> Iterator[Client]:
    with Client(server.address, ann) as client:
        yield client


def test_somebody_is_told_who_they_are(annotator: Client) -> None:
    me = annotator.me()
    assert (me.email, me.roles, me.project) == ("ann@client.test", (Role.ANNOTATOR,), "bench")
    assert "votes.cast" in me.permissions


def test_cards_are_leased_voted_on_changed_and_given_back(annotator: Client, admin: Client) -> None:
    lease = annotator.lease(3)
    assert len(lease.cards) == 3
    assert lease.reason_empty is None
    assert annotator.extend() >= 3
    first, second, third = lease.cards
    receipt = annotator.vote(
        "a",
        assignment_id=first.assignment_id,
        strength=3,
        reason="ok — ü",
        stated_confidence=0.8,
        duration_s=4.5,
    )
    assert (receipt.choice, receipt.strength, receipt.extra, receipt.comparison_id) == (
        Choice.A,
        3,
        None,
        None,
    )
    changed = annotator.vote(
        Choice.B, assignment_id=first.assignment_id, strength=1, supersedes=receipt.vote_id
    )
    assert changed.supersedes == receipt.vote_id
    marks = [{"side": "a", "start": 0, "end": 4, "sign": "+"}]
    annotator.vote(
        "tie",
        assignment_id=second.assignment_id,
        dimensions={"helpful": "a"},
        highlights=marks,
        flags=["pii"],
    )
    annotator.release(third.assignment_id)
    stored = {vote.vote_id: vote for vote in admin.votes(annotator_id=annotator.me().user_id)}
    assert stored[receipt.vote_id].is_superseded
    assert stored[receipt.vote_id].reason == "ok — ü"
    assert stored[changed.vote_id].is_counting
    assert annotator.statistics().votes_total >= 2


def test_the_same_key_is_the_same_vote(annotator: Client) -> None:
    (card, *_) = annotator.lease(5).cards
    moment = datetime.now(UTC)
    said = {
        "assignment_id": card.assignment_id,
        "voted_at": moment,
        "idempotency_key": "my-own-key",
    }
    first, again = (annotator.vote("both_bad", **said) for _ in range(2))
    assert first == again
    with pytest.raises(InvalidRequest) as refused:
        annotator.vote("a", **said)
    assert refused.value.kind == "idempotency_conflict"


def test_a_batch_is_answered_vote_by_vote(annotator: Client) -> None:
    cards = annotator.lease(5).cards
    good = [
        {"assignment_id": card.assignment_id, "choice": "a", "strength": 2} for card in cards[:2]
    ]
    results = annotator.vote_batch([good[0], {"assignment_id": "nobody's", "choice": "a"}, good[1]])
    assert [result.status for result in results] == [201, 404, 201]
    assert results[0].vote is not None
    assert results[1].problem is not None
    assert "nobody's" in results[1].problem.detail


def test_what_is_refused_raises_what_fits_and_says_where(
    server: Served, annotator: Client, admin: Client
) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        annotator.vote("a", assignment_id="x", strength=9)
    assert wrong.value.status == 422
    assert [path for path, _ in wrong.value.fields] == ["body.strength"]
    with pytest.raises(MissingResource, match="404"):
        admin.comparison("nothing")
    with pytest.raises(NotAuthorised) as forbidden:
        list(annotator.users())
    assert forbidden.value.status == 403
    with Client(server.address, "rlhf_wrong") as stranger, pytest.raises(NotAuthorised) as unknown:
        stranger.me()
    assert unknown.value.status == 401
    (card, *_) = annotator.lease(5).cards
    annotator.vote("a", assignment_id=card.assignment_id)
    with pytest.raises(ConflictingRequest) as judged:
        annotator.vote("b", assignment_id=card.assignment_id)
    assert judged.value.kind == "already_voted"


def test_lists_go_on_over_their_pages(admin: Client) -> None:
    ids = [comparison.comparison_id for comparison in admin.comparisons()]
    assert len(ids) == len(set(ids)) >= 60
    paged = [comparison.comparison_id for comparison in admin.iterate(calls.comparisons(limit=7))]
    assert paged == ids


def test_an_admin_works_by_it(server: Served, admin: Client) -> None:
    offered = admin.offer(ids=["c0000"], overlap=3)
    assert (offered.n_comparisons, offered.n_slots) == (1, 1)
    assert admin.withdraw(["c0000"]) >= 1
    assert admin.flag(["c0000"], "broken").n_comparisons == 1
    assert [one.comparison_id for one in admin.comparisons(flag="broken")] == ["c0000"]
    assert admin.flag(["c0000"], None).n_comparisons == 1
    assert admin.decide("c0000", "tie", reason="both are right").choice == "tie"
    with Client(server.address, server.token("named@client.test", Role.ANNOTATOR)) as named:
        assert admin.offer(ids=["c0050"], annotator_id=named.me().user_id).n_slots == 1
        assert [card.prompt for card in named.lease(1).cards] == ["prompt 50"]
    rules = admin.rules()
    newer = admin.put_rules(
        rules.rules.model_copy(update={"undo_seconds": 45.0}), version=rules.version
    )
    assert (newer.version, newer.rules.undo_seconds) == (rules.version + 1, 45.0)
    with Client(server.address, server.token("engineer@client.test", Role.ENGINEER)) as engineer:
        assert (newer.rules.seed is not None, engineer.rules().rules.seed) == (True, None)
    with pytest.raises(ConflictingRequest) as outdated:
        admin.put_rules(AnnotationRules(), version=rules.version)
    assert outdated.value.status == 412
    guideline = admin.add_guideline("Be fair.", version=0)
    assert [g.text for g in admin.guidelines()] == ["Be fair."]
    assert guideline.version == 1
    user = admin.add_user("new@client.test", name="New", roles=["annotator"])
    assert user.login_link is None  # asked for by a token, which makes none
    changed = admin.change_user(user.user_id, roles=[Role.CURATOR], disabled=True)
    assert changed.roles == (Role.CURATOR,)
    assert changed.disabled_at is not None
    assert admin.user(user.user_id) == changed
    assert admin.change_user(user.user_id, name="Newer").name == "Newer"
    # the answer is lost, the same call sent again
    call = calls.add_user("lost@client.test", name="Lost")
    made, again = admin.send(call), admin.send(call)
    assert again.model_dump(exclude={"login_link"}) == made.model_dump(exclude={"login_link"})
    listed = list(admin.users())
    assert {u.email for u in listed} >= {"ann@client.test", "new@client.test"}
    assert list(admin.iterate(calls.users(limit=1))) == listed
    assert [token.scopes for token in admin.tokens()] == [None]
    assert {row.state for row in admin.consensus()} <= {"open", "agreed", "disputed", "decided"}
    assert admin.progress().work.n_slots > 0
    quality = admin.quality()
    assert quality.n_annotators == len(quality.annotators)
    assert next(iter(admin.progress_events())).work.n_slots > 0
    assert admin.verify_audit().holds
    assert next(iter(admin.audit(action="users.*"))).action.startswith("users.")
    assert admin.metrics().comparisons >= 60


def test_feedback_is_sent_and_a_correction_becomes_chosen(admin: Client) -> None:
    correction = NewFeedback(
        kind="correction", session_id="s", turn=1, prompt="2 + 2?", completion="5", correction="4"
    )
    made = admin.send_feedback(correction, idempotency_key="once")
    assert admin.send_feedback(correction, idempotency_key="once").feedback_id == made.feedback_id
    assert made.comparison_id is not None
    shown = admin.comparison(made.comparison_id)
    (vote,) = admin.votes(comparison_id=made.comparison_id)
    assert {Choice.A: shown.completion_a, Choice.B: shown.completion_b}[vote.choice] == "4"
    assert [f.feedback_id for f in admin.feedback(session_id="s")] == [made.feedback_id]


def test_the_asynchronous_client_says_the_same_at_once(server: Served, admin: Client) -> None:
    token = server.token("async@client.test", Role.ANNOTATOR)

    async def work() -> tuple[set[str], int]:
        async with AsyncClient(server.address, token) as api:
            cards = (await api.lease(5)).cards
            receipts = await asyncio.gather(
                *(api.vote("a", assignment_id=card.assignment_id) for card in cards)
            )
            with pytest.raises(NotAuthorised):
                async for _ in api.users():
                    pass
            return {receipt.vote_id for receipt in receipts}, (await api.statistics()).votes_total

    # a browser test before it may have left a running loop in this thread
    with ThreadPoolExecutor(1) as pool:
        ids, total = pool.submit(lambda: asyncio.run(work())).result()
    assert len(ids) == total == 5
    assert ids <= {vote.vote_id for vote in admin.votes()}


def test_both_clients_read_calibrations_their_probe_and_the_pairs_of_a_bin(web: Web) -> None:
    reports = [report(hours) for hours in range(3)]
    for one in reports:
        web.store.calibrations.add(one, {"temperature": 1.5})
    ids = publish(web, [0.72, 0.73, 0.74, 0.9])
    cast_votes(web, ids, "aaba")
    secret = web.client("engineer").headers["Authorization"].partition(" ")[2]

    async def by_the_other() -> list[object]:
        async with AsyncClient(web.url, secret) as api:
            return [
                [one async for one in api.calibrations()],
                await api.calibration(MODEL, 2),
                (await api.calibration_probe(reward_model=MODEL)).bins,
                [
                    one
                    async for one in api.calibration_pairs(
                        0.72, reward_model=MODEL, calibrator="temperature@1"
                    )
                ],
            ]

    with Client(web.url, secret) as api:
        probe = api.calibration_probe()
        assert (probe.reward_model, probe.n_votes, probe.n_comparisons) == (MODEL, 4, 4)
        assert sum(one.n for one in probe.bins) == 4
        log = list(api.calibrations())
        assert [(one.version, one.state) for one in log] == [
            (3, "standby"),
            (2, "replaced"),
            (1, "replaced"),
        ]
        assert list(api.iterate(calls.calibrations(limit=1))) == log
        detail = api.calibration(MODEL, 2)
        own = {"raw_bins", "calibrated_bins", "by_group", "by_dimension"}
        assert detail.model_dump(exclude=own) == log[1].model_dump()
        assert (detail.raw_bins, detail.calibrated_bins) == (
            reports[1].raw_bins,
            reports[1].calibrated_bins,
        )
        with pytest.raises(MissingResource):
            api.calibration(MODEL, 4)
        pairs = list(api.calibration_pairs(0.72))
        (bin_,) = (one for one in probe.bins if one.low <= 0.72 < one.high)
        assert len(pairs) == bin_.n == 3
        assert [(one.comparison_id, one.wrong, one.choice) for one in pairs[:1]] == [
            (ids[2], True, Choice.B)
        ]
        assert list(api.iterate(calls.calibration_pairs(0.72, limit=1))) == pairs
        with pytest.raises(MissingResource) as empty:
            list(api.calibration_pairs(0.55))
        assert empty.value.kind == "empty_bin"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(by_the_other())).result() == [
            log,
            detail,
            probe.bins,
            pairs,
        ]


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            n: list(inspect.signature(m).parameters)
            for n, m in inspect.getmembers(kind, inspect.isfunction)
            if not n.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)


def test_every_route_of_the_api_is_a_call(server: Served) -> None:
    """But for those that need a session, files, and what a list holds already."""
    described = httpx.get(f"{server.address}/api/v1/openapi.json").json()
    routes = {
        (m.upper(), path.removeprefix("/api/v1/"))
        for path, methods in described["paths"].items()
        for m in methods
    }
    known = {
        ("GET", "me"),
        ("GET", "me/statistics"),
        ("GET", "practice"),
        ("POST", "practice/{comparison_id}:reveal"),
        ("POST", "assignments:lease"),
        ("POST", "assignments/{assignment_id}:release"),
        ("POST", "assignments:extend"),
        ("POST", "votes"),
        ("POST", "votes:batch"),
        ("GET", "votes"),
        ("GET", "comparisons"),
        ("GET", "comparisons/{comparison_id}"),
        ("GET", "clusters"),
        ("POST", "comparisons:offer"),
        ("POST", "comparisons:withdraw"),
        ("POST", "comparisons:flag"),
        ("POST", "consensus:decide"),
        ("GET", "consensus"),
        ("POST", "predictions"),
        ("GET", "guidelines"),
        ("POST", "guidelines"),
        ("GET", "rules"),
        ("PUT", "rules"),
        ("GET", "users"),
        ("GET", "users/{user_id}"),
        ("POST", "users"),
        ("PATCH", "users/{user_id}"),
        ("GET", "me/tokens"),
        ("GET", "progress"),
        ("GET", "progress/events"),
        ("GET", "metrics"),
        ("GET", "metrics/points"),
        ("POST", "metrics/production"),
        ("GET", "drift-tests"),
        ("GET", "drift-events"),
        ("GET", "decisions"),
        ("GET", "decisions/{decision_id}"),
        ("POST", "decisions/{decision_id}:answer"),
        ("POST", "decisions/{decision_id}:lift"),
        ("GET", "alerts"),
        ("GET", "alerts/{alert_id}"),
        ("POST", "alerts/{alert_id}:acknowledge"),
        ("POST", "alerts/{alert_id}:resolve"),
        ("GET", "alerts/rules"),
        ("GET", "alerts/silences"),
        ("POST", "alerts/silences"),
        ("DELETE", "alerts/silences/{silence_id}"),
        ("GET", "alerts/messages"),
        ("POST", "alerts/messages/{message_id}:replay"),
        ("POST", "alerts/targets/{target}:test"),
        ("GET", "quality"),
        ("POST", "feedback"),
        ("GET", "feedback"),
        ("GET", "audit"),
        ("POST", "audit:verify"),
        ("GET", "calibrations"),
        ("GET", "calibrations/{reward_model}/{version}"),
        ("GET", "calibrations/probe"),
        ("GET", "calibrations/probe/pairs"),
    }
    other = {
        ("POST", "auth/login"),
        ("POST", "auth/logout"),
        ("POST", "auth/redeem"),
        ("POST", "users/{user_id}:login-link"),
        ("POST", "me/tokens"),
        ("DELETE", "me/tokens/{token_id}"),
        ("POST", "consensus:undo"),
        ("POST", "me/password"),
        ("GET", "me/votes"),
        ("GET", "guidelines/{version}"),
        ("GET", "feedback/{feedback_id}"),
        ("GET", "audit/export"),
        ("GET", "healthz"),
        ("GET", "readyz"),
        ("POST", "completions:stream"),
        ("GET", "home"),
        ("GET", "runs"),
        ("GET", "automations"),
        ("GET", "spending"),
        ("GET", "settings"),
        ("GET", "evolution"),
        ("GET", "evolution/training"),
        ("GET", "evolution/pairs"),
        ("GET", "compare"),
        ("GET", "charts/evolution"),
        ("GET", "charts/alignment"),
        ("GET", "charts/versions"),
        ("GET", "charts/accuracy"),
        ("GET", "charts/votes"),
        ("GET", "charts/drift"),
        ("GET", "charts/clusters"),
        ("GET", "charts/calibration/{figure}"),
        ("GET", "charts/preferences/{figure}"),
        ("GET", "charts/annotator/{figure}"),
        ("GET", "charts/production"),
        ("GET", "charts/me/confidence"),
    }
    assert known <= routes
    assert routes <= known | other


def test_the_script_of_the_documents_votes_and_reads_metrics_in_under_thirty_lines(
    server: Served,
) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    script = re.search(r"<!-- example -->\n```python\n(.*?)```", page, re.DOTALL).group(1)
    assert len(script.splitlines()) < 30
    token = server.token("bot@client.test", Role.ANNOTATOR, Role.ENGINEER, kind="service")
    environ = {
        "TOKEN": token,
        "RLHF_WEB_URL": server.address,
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *votes, last = done.stdout.splitlines()
    assert len(votes) == 5
    assert re.fullmatch(
        r"\d+ votes that I may see, on \d+ comparisons; about \d+ judgements open for me", last
    )
    with server.opened() as store:
        cast = [store.votes.get(line.split()[0]) for line in votes]
    assert {vote.annotator_kind for vote in cast} == {"machine"}


# --- servers that fail
# --------------------------------------------------------------------------------------------------


METRICS = {
    "votes": 1,
    "machine_votes": 0,
    "votes_today": 0,
    "skips": 0,
    "annotators": 1,
    "comparisons": 2,
    "offered": 2,
    "slots": 3,
    "done": 1,
    "leased": 0,
    "open": 3,
    "feedback": {},
    "audit_links": 4,
    "guideline_version": None,
    "rules_version": 1,
}


class Failing(httpx.BaseTransport):
    """Answers what it is told, in turn; an exception is raised. Keeps what was asked."""

    def __init__(self, *answers: httpx.Response | Exception):
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def asking(*answers: httpx.Response | Exception) -> tuple[Client, Failing]:
    transport = Failing(*answers)
    return Client(
        "http://nowhere.test", "rlhf_x", longest_wait_s=0.01, transport=transport
    ), transport


RECEIPT = {
    "vote_id": "v",
    "assignment_id": "x",
    "comparison_id": None,
    "choice": "a",
    "strength": None,
    "voted_at": "2026-01-01T00:00:00Z",
    "received_at": "2026-01-01T00:00:00Z",
    "supersedes": None,
    "extra": False,
    "added_later": 1,
}


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(503, headers={"Retry-After": "0"}),
        httpx.Response(502),
        httpx.Response(
            409, headers={"Retry-After": "0"}, json={"type": "urn:rlhf:problem:already_running"}
        ),
    ],
)
def test_a_vote_without_an_answer_is_sent_again_under_its_key(
    failure: httpx.Response | Exception,
) -> None:
    client, transport = asking(failure, failure, httpx.Response(201, json=RECEIPT))
    assert client.vote("a", assignment_id="x").vote_id == "v"
    assert len({request.headers["Idempotency-Key"] for request in transport.asked}) == 1
    assert len({request.content for request in transport.asked}) == 1
    assert len(transport.asked) == 3


def test_a_server_that_stays_away_is_said_to_be_with_the_cure() -> None:
    client, transport = asking(*[httpx.ConnectError("refused")] * 20)
    with pytest.raises(
        ServerUnavailable, match=r"http://nowhere\.test does not answer: refused.*rlhf serve"
    ):
        client.metrics()
    assert len(transport.asked) == exchange.TRIES


def test_what_is_not_done_once_is_not_sent_twice() -> None:
    client, transport = asking(
        httpx.ConnectError("refused"), httpx.Response(200, json={"version": 1, "rules": {}})
    )
    with pytest.raises(ServerUnavailable):
        client.put_rules(AnnotationRules(), version=0)
    assert len(transport.asked) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(409, json={"detail": "judged"}), ConflictingRequest),
        (httpx.Response(429, headers={"Retry-After": "1"}), TooManyRequests),
        (httpx.Response(503, headers={"Retry-After": "3600"}), ServerUnavailable),
        (
            httpx.Response(503, headers={"Retry-After": "Fri, 01 Jan 2027 00:00:00 GMT"}),
            ServerUnavailable,
        ),
        (httpx.Response(500, text="<html>oops"), ServerUnavailable),
        (httpx.Response(413, text=""), InvalidRequest),
        (httpx.Response(200, text="<html>another server"), ServerUnavailable),
        (httpx.Response(200, json={"votes": "many"}), ServerUnavailable),
    ],
)
def test_an_answer_that_stands_is_asked_for_once(
    answer: httpx.Response, error: type[Exception]
) -> None:
    client, transport = asking(answer)
    with pytest.raises(error):
        client.metrics()
    assert len(transport.asked) == 1


def test_fields_of_a_newer_server_are_passed_over() -> None:
    client, _ = asking(httpx.Response(200, json=METRICS | {"new": 1}))
    assert client.metrics() == Metrics(**METRICS)


def test_a_body_a_key_and_a_version_are_where_the_api_wants_them() -> None:
    rules = AnnotationRules().model_dump(mode="json")
    client, transport = asking(
        httpx.Response(200, json={"version": 4, "rules": rules}), httpx.Response(201, json=RECEIPT)
    )
    client.put_rules(AnnotationRules(), version=3)
    client.vote(
        "a",
        assignment_id="x",
        reason=None,
        voted_at=datetime(2026, 1, 1, tzinfo=UTC),
        idempotency_key="k",
    )
    put, post = transport.asked
    assert (put.headers["If-Match"], put.headers["Authorization"]) == ('"3"', "Bearer rlhf_x")
    assert "Idempotency-Key" not in put.headers
    assert (post.headers["Idempotency-Key"], post.url.path) == ("k", "/api/v1/votes")
    assert (
        post.content == b'{"assignment_id":"x","voted_at":"2026-01-01T00:00:00+00:00","choice":"a"}'
    )


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://x", "http://", "http://x:y"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Invalid server address"):
        Client(url)
