"""The client against the live server, and against servers that fail as servers do."""

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from rlhf_pipeline.client import TRIES, Client
from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview
from rlhf_pipeline.core.api_types.filters import (
    ComparisonFilter,
    FeedbackFilter,
    FeedbackSelection,
    PairFilter,
    VoteFilter,
)
from rlhf_pipeline.core.curation import (
    DatasetChange,
    ExportOrder,
    NewDataset,
    NewPair,
    PairChange,
)
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ConflictingRequest,
    InvalidRequest,
    MissingResource,
    NotAuthorised,
    ServerUnavailable,
    TooManyRequests,
)
from rlhf_pipeline.core.records import Choice, NewFeedback, Role
from tests.web.served import Served, served

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("client")
    with served(f"sqlite:///{folder / 'store.db'}", folder / "home") as server:
        server.furnish(60, overlap=2)
        with server.opened() as store:
            version, rules = store.rules.latest()
            rules = rules.model_copy(update={"rating_share": 0.5})  # for clients that ask for them
            store.rules.put(rules, after=version, actor="test")
        server.start()
        yield server


@pytest.fixture(scope="module")
def admin(server: Served) -> Iterator[Client]:
    with Client(server.address, server.token("admin@client.test", Role.ADMIN)) as client:
        yield client


@pytest.fixture(scope="module")
def annotator(server: Served) -> Iterator[Client]:
    with Client(server.address, server.token("ann@client.test", Role.ANNOTATOR)) as client:
        yield client


def test_cards_are_leased_judged_and_returned(annotator: Client, admin: Client) -> None:
    first, second, third = annotator.lease(3).cards
    assert annotator.extend() >= 3
    receipt = annotator.vote(
        "a",
        card_id=first.card_id,
        strength=3,
        reason="ok — ü",
        voted_at=datetime.now(UTC),
    )
    changed = annotator.vote(Choice.B, card_id=first.card_id, supersedes=receipt.vote_id)
    good = {"card_id": second.card_id, "choice": "a"}
    results = annotator.vote_batch([good, {"card_id": "missing", "choice": "a"}])
    assert [result.status for result in results] == [201, 404]
    annotator.release(third.card_id)
    stored = {
        vote.vote_id: vote for vote in admin.votes(VoteFilter(annotator_id=annotator.me().user_id))
    }
    assert stored[receipt.vote_id].is_superseded
    assert stored[receipt.vote_id].reason == "ok — ü"
    assert stored[changed.vote_id].is_counting
    assert annotator.statistics().votes_total >= 2


def test_refusals_raise_their_error(server: Served, annotator: Client, admin: Client) -> None:
    with pytest.raises(InvalidRequest) as invalid:
        annotator.vote("a", card_id="x", strength=9)
    assert [path for path, _ in invalid.value.fields] == ["body.strength"]
    with pytest.raises(MissingResource, match="404"):
        admin.comparison("nothing")
    with pytest.raises(NotAuthorised):
        list(annotator.users())
    with Client(server.address, "rlhf_wrong") as stranger, pytest.raises(NotAuthorised):
        stranger.me()


def test_admin_reads_lists_offers_and_sends_feedback(admin: Client) -> None:
    ids = [comparison.comparison_id for comparison in admin.comparisons()]
    assert len(ids) == len(set(ids)) >= 60
    assert [
        comparison.comparison_id for comparison in admin.comparisons(ComparisonFilter(limit=7))
    ] == ids
    assert admin.offer(ids=["c0000"], overlap=3).n_comparisons == 1
    assert (admin.withdraw(["c0000"]) or 0) >= 1
    assert "ann@client.test" in {user.email for user in admin.users()}
    correction = NewFeedback(
        kind="correction", session_id="s", turn=1, prompt="2 + 2?", completion="5", correction="4"
    )
    corrections = [admin.send_feedback(correction, idempotency_key="once") for _ in range(2)]
    assert corrections[0].feedback_id == corrections[1].feedback_id
    assert admin.comparison(corrections[0].comparison_id or "").prompt == "2 + 2?"
    review = FeedbackReview(filter=FeedbackSelection(status="pending"), n_expected=1, notes="?")
    done = admin.review_feedback(review)
    assert next(admin.feedback(FeedbackFilter(status="pending"))).notes == "?"
    assert admin.undo_review(done.review_id or 0).n_changed == 1
    with pytest.raises(ConflictingRequest):
        admin.undo_review(done.review_id or 0)
    assert (list(admin.alerts()), list(admin.decisions())) == ([], [])
    with pytest.raises(MissingResource):
        admin.answer_decision(1, "nothing", "no such decision")


def test_curator_makes_freezes_and_exports_a_data_set(server: Served) -> None:
    with Client(server.address, server.token("cara@client.test", Role.CURATOR)) as curator:
        dataset = curator.create_dataset(NewDataset(name="By hand"))
        number = dataset.dataset_id
        texts = {"prompt": "2 + 2?", "chosen": "4", "rejected": "It is five."}
        first = curator.add_pair(NewPair(dataset_id=number, **texts))
        other = curator.add_pair(NewPair(dataset_id=number, **texts | {"prompt": "1 + 3?"}))
        changed = curator.change_pair(first.pair_id, PairChange(chosen="Four."))
        assert (changed.revision, changed.chosen, changed.rejected) == (2, "Four.", "It is five.")
        assert curator.reject_pair(other.pair_id).status == "rejected"
        pairs = list(curator.pairs(PairFilter(dataset_id=number, limit=1)))
        assert [pair.pair_id for pair in pairs] == [other.pair_id, first.pair_id]
        with pytest.raises(InvalidRequest, match="does not exist"):
            curator.add_pairs(number, [999])
        for status in ("curating", "ready"):
            dataset = curator.change_dataset(number, DatasetChange(status=status))
        assert (dataset.status, dataset.n_rows, dataset.description) == ("ready", 1, "")
        exported = curator.export_dataset(number, ExportOrder(format="csv"))
        assert exported.n_rows == 1
        details = curator.dataset(number)
        assert (details.last_export, details.versions[0].version) == (exported, 1)
        assert [each.dataset_id for each in curator.datasets()] == [number]
        assert curator.archive_dataset(number).status == "archived"
        assert list(curator.datasets()) == []


def test_rating_card_is_rated(annotator: Client) -> None:
    cards = annotator.lease(20, ratings=True).cards
    card = next(card for card in cards if card.kind == "rating")
    receipt = annotator.rate(card.card_id, 5, text="complete", key="once")
    assert annotator.rate(card.card_id, 5, text="complete", key="once").value == 5
    assert (receipt.card_id, receipt.value) == (card.card_id, 5)


def test_script_of_the_documents_runs_in_under_thirty_lines(server: Served) -> None:
    page = (ROOT / "docs" / "guides" / "api.md").read_text(encoding="utf-8")
    script = re.search(r"<!-- example -->\n```python\n(.*?)```", page, re.DOTALL).group(1)
    assert len(script.splitlines()) < 30
    token = server.token("bot@client.test", Role.ANNOTATOR, Role.ENGINEER, kind="service")
    environ = {"TOKEN": token, "RLHF_WEB_URL": server.address, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *votes, last = done.stdout.splitlines()
    assert len(votes) == 5
    assert re.match(r"\d+ votes that I may see, on \d+ comparisons", last)


RECEIPT = {
    "vote_id": "v",
    "card_id": "x",
    "comparison_id": None,
    "choice": "a",
    "strength": None,
    "voted_at": "2026-01-01T00:00:00Z",
    "received_at": "2026-01-01T00:00:00Z",
    "supersedes": None,
    "added_later": 1,
}


class Failing(httpx.BaseTransport):
    """Gives the answers in turn; an exception is raised. Keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception):
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def client_of(*answers: httpx.Response | Exception) -> tuple[Client, Failing]:
    transport = Failing(*answers)
    return Client("http://nowhere.test", longest_wait_s=0.01, transport=transport), transport


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(503, headers={"Retry-After": "0"}),
    ],
)
def test_unanswered_vote_is_resent_under_its_key(
    failure: httpx.Response | Exception,
) -> None:
    client, transport = client_of(failure, failure, httpx.Response(201, json=RECEIPT))
    assert client.vote("a", card_id="x").vote_id == "v"
    assert len({request.headers["Idempotency-Key"] for request in transport.requests}) == 1
    assert len({request.content for request in transport.requests}) == 1
    assert len(transport.requests) == 3


def test_unreachable_server_is_named_with_the_cure() -> None:
    client, transport = client_of(*[httpx.ConnectError("refused")] * 20)
    with pytest.raises(
        ServerUnavailable, match=r"http://nowhere\.test does not answer.*rlhf serve"
    ):
        client.metrics()
    assert len(transport.requests) == TRIES
    with pytest.raises(ServerUnavailable):
        client.offer(ids=["c0000"])
    assert len(transport.requests) == TRIES + 1  # a second offer would want more judgements


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
        (httpx.Response(200, text="<html>another server"), ServerUnavailable),
        (httpx.Response(200, json={"votes": "many"}), ServerUnavailable),
    ],
)
def test_final_answer_is_not_retried(answer: httpx.Response, error: type[Exception]) -> None:
    client, transport = client_of(answer)
    with pytest.raises(error):
        client.metrics()
    assert len(transport.requests) == 1


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://x", "http://", "http://x:y"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Invalid server address"):
        Client(url)
