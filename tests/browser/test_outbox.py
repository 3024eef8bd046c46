"""A dead network, a closed tab, a refused vote: nothing is lost, nothing is doubled."""

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlhf_pipeline.records import utc_now
from rlhf_pipeline.web.schemas import Batch, VoteInBatch
from tests.browser.hands import all_sent, at_the_desk, log_in, press, shown, until, vote, voted
from tests.browser.people import People

AGE_ANSWERS = """() => new Promise((resolve, reject) => {
    const opening = indexedDB.open("rlhf-outbox", 1);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
        const transaction = opening.result.transaction("answers", "readwrite");
        const cursor = transaction.objectStore("answers").openCursor();
        cursor.onsuccess = () => {
            if (!cursor.result) return;
            cursor.result.update({ ...cursor.result.value, at: cursor.result.value.at - 7_200_000 });
            cursor.result.continue();
        };
        transaction.oncomplete = () => { opening.result.close(); resolve(); };
    };
})"""


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


def unsent(page: Any) -> int:
    return int(page.inner_text("#outbox").split()[0]) if page.is_visible("#outbox") else 0


def test_votes_cast_without_a_network_are_sent_when_it_is_back(site: People, context: Any, page: Any) -> None:
    site.furnish(12)
    site.rules(prefetch=8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    until(lambda: site.store.assignments.work_left().n_leased >= 8, "cards leased ahead")
    page.wait_for_timeout(200)
    context.set_offline(True)
    for key in "12345":
        vote(page, key)
    assert unsent(page) == 5
    page.get_by_text("No connection. Go on judging").wait_for()
    press(page, "u")
    vote(page, "9")
    assert site.votes(ann) == []
    context.set_offline(False)
    all_sent(page)
    votes = site.votes(ann)
    assert len(votes) == 7, "five votes, one taken back, one cast anew"
    assert len({v.idempotency_key for v in votes}) == 7
    assert [v.strength for v in votes] == [4, 3, 2, 1, None, None, 4]
    assert len(site.store.votes.snapshot([votes[0].day.isoformat()])) == 5
    assert page.inner_text("#today") == "5"
    assert not page.is_visible("#banner")


@pytest.mark.parametrize("site", ["sqlite", "postgres"], indirect=True)
def test_a_minute_without_a_network_loses_and_doubles_nothing(
    site: People, context: Any, page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    site.furnish(40)
    site.rules(prefetch=20)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    until(lambda: site.store.assignments.work_left().n_leased >= 20, "cards leased ahead")
    page.wait_for_timeout(300)
    n = n_waited = 0
    for is_offline, seconds in ((False, 3), (True, 60), (False, 3)):
        context.set_offline(is_offline)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if page.is_visible("#desk"):
                vote(page, "123456789"[n % 9])
                n += 1
            page.wait_for_timeout(1000)
        assert (unsent(page) > 10) == is_offline
        n_waited = max(n_waited, unsent(page))
    all_sent(page)
    votes = site.votes(ann)
    with capsys.disabled():
        where = site.store.database.engine.dialect.name
        print(
            f"\na minute without a network on {where}: {n} votes cast, {n_waited} of them waited, {len(votes)} stored, {unsent(page)} unsent"
        )
    assert n > 20
    assert len(votes) == n == int(page.inner_text("#today"))
    assert len({v.assignment_id for v in votes}) == n
    assert site.store.audit.verify() > n


def test_votes_wait_through_a_reload(site: People, context: Any, page: Any) -> None:
    site.furnish(10)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    context.route("**/api/v1/votes", lambda route: route.abort())
    judged = [vote(page, key) for key in "19"]
    until(lambda: unsent(page) == 2, "two unsent votes")
    page.reload()
    at_the_desk(page)
    assert unsent(page) == 2
    assert shown(page) not in judged, "what was judged is not shown again"
    vote(page, "5")
    context.unroute("**/api/v1/votes")
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [4, 4, None]


def test_a_lost_answer_does_not_double_a_vote(site: People, context: Any, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    n_lost = 0

    def lose(route: Any) -> None:
        nonlocal n_lost
        n_lost += 1
        if n_lost <= 3:
            route.fetch()  # the server records it, the answer never arrives
            route.abort()
        else:
            route.continue_()

    context.route("**/api/v1/votes", lose)
    for key in "123":
        vote(page, key)
    all_sent(page)
    assert n_lost > 3
    assert [v.strength for v in site.votes(ann)] == [4, 3, 2]


def test_a_server_that_is_busy_is_asked_again(site: People, context: Any, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    statuses = [503, 429, 409]

    def busy(route: Any) -> None:
        if statuses:
            route.fulfill(status=statuses.pop(), headers={"Retry-After": "1"}, content_type="application/problem+json", body="{}")
        else:
            route.continue_()

    context.route("**/api/v1/votes", busy)
    vote(page, "1")
    all_sent(page)
    assert statuses == []
    assert len(site.votes(ann)) == 1


def test_a_refused_vote_comes_back_on_top_with_the_reason(site: People, page: Any) -> None:
    site.furnish(5)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    judged = shown(page)
    site.rules(requires_reason=True)  # the page was told otherwise
    press(page, "r")
    press(page, "Escape")
    page.keyboard.press("1")
    until(lambda: page.is_visible("#notice"), "the refusal")
    assert "reason" in page.inner_text("#notice")
    assert shown(page) == judged
    assert page.inner_text("#today") == "0"
    press(page, "r")
    page.keyboard.type("clearer")
    press(page, "Enter")
    vote(page, "2")
    all_sent(page)
    assert [(v.strength, v.reason) for v in site.votes(ann)] == [(3, "clearer")]


def test_votes_wait_for_a_login_that_ended(site: People, context: Any, page: Any) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    for token in site.store.tokens.of_user(ann.user_id):
        if token.kind == "session":
            site.store.tokens.revoke(token.token_id, actor="test")
    page.wait_for_timeout(700)  # the app remembers a session for half a second
    vote(page, "1")
    page.get_by_text("You are logged out").wait_for()
    assert unsent(page) == 1
    log_in(page, site, ann)
    at_the_desk(page)
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [4]


def test_votes_of_one_login_are_not_sent_by_another(site: People, context: Any, page: Any) -> None:
    site.furnish(8)
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    context.route("**/api/v1/votes", lambda route: route.abort())
    vote(page, "1")
    until(lambda: unsent(page) == 1, "an unsent vote")
    context.unroute("**/api/v1/votes")
    context.clear_cookies()
    context.route("**/api/v1/votes", lambda route: route.abort())
    log_in(page, site, bo)
    at_the_desk(page)
    context.unroute("**/api/v1/votes")
    vote(page, "9")
    all_sent(page)
    page.get_by_text("1 unsent vote of another login").wait_for()
    assert (len(site.votes(ann)), len(site.votes(bo))) == (0, 1)
    context.clear_cookies()
    log_in(page, site, ann)
    until(lambda: voted(page, site, ann, 1), "Ann's vote")


def test_votes_survive_another_login_in_a_second_tab(site: People, context: Any) -> None:
    site.furnish(30)
    site.rules(prefetch=8)
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    anns, bos, again = context.new_page(), context.new_page(), context.new_page()
    log_in(anns, site, ann)
    at_the_desk(anns)
    until(lambda: site.store.assignments.work_left().n_leased >= 8, "cards leased ahead")
    vote(anns, "4")
    all_sent(anns)
    anns.wait_for_timeout(200)
    anns.route("**/api/v1/votes", lambda route: route.abort())
    press(anns, "u")
    for key in "12":
        vote(anns, key)
    until(lambda: unsent(anns) == 3, "two votes and an undo that wait")
    log_in(bos, site, bo)
    at_the_desk(bos)
    anns.unroute("**/api/v1/votes")
    vote(anns, "3")
    anns.get_by_text("Somebody else is logged in in this browser: 4 votes wait").wait_for()
    assert anns.locator("#banner-login").is_visible()
    # However long the undo waits, what it takes back stays known, whoever else votes here.
    anns.evaluate(AGE_ANSWERS)
    for key in "98":
        vote(bos, key)
    all_sent(bos)
    bos.get_by_text("4 unsent votes of another login").wait_for()
    assert [v.strength for v in site.votes(bo)] == [4, 3]
    assert unsent(anns) == 4
    assert len(site.votes(ann)) == 1
    log_in(again, site, ann)
    all_sent(anns)
    assert [v.strength for v in site.votes(ann)] == [1, None, 4, 3, 2]
    assert "undone" in site.votes(ann)[1].details.flags  # type: ignore[union-attr]
    until(lambda: not anns.is_visible("#banner-login"), "no more talk of a login")
    assert len(site.votes(bo)) == 2


def test_a_page_of_one_login_is_dealt_no_cards_of_another(site: People, context: Any) -> None:
    site.furnish(12)
    site.rules(prefetch=1)
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    anns, bos = context.new_page(), context.new_page()
    log_in(anns, site, ann)
    at_the_desk(anns)
    log_in(bos, site, bo)
    at_the_desk(bos)
    while anns.is_visible("#desk"):
        vote(anns, "1")
    anns.get_by_text("Somebody else is logged in").wait_for()
    n = unsent(anns)
    assert n > 0
    log_in(bos, site, ann)
    all_sent(anns)
    assert (len(site.votes(ann)), len(site.votes(bo))) == (n, 0)
    at_the_desk(anns)


def test_a_vote_that_is_not_taken_now_waits_and_lets_the_others_pass(site: People, context: Any, page: Any) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    problem = '{"type": "about:blank", "detail": "That card is being looked for.", "errors": []}'

    def lost(route: Any) -> None:
        if route.request.post_data_json["strength"] == 4:
            route.fulfill(status=404, content_type="application/problem+json", body=problem)
        else:
            route.continue_()

    context.route("**/api/v1/votes", lost)
    vote(page, "1")
    page.get_by_text("1 vote waits on this device and will be tried again. That card is being looked for.").wait_for()
    press(page, "u")  # waits for what it takes back
    vote(page, "2")  # waits for the undo
    vote(page, "3")
    until(lambda: voted(page, site, ann, 1), "the vote behind them")
    until(lambda: unsent(page) == 3, "its answer")
    page.reload()
    at_the_desk(page)
    assert unsent(page) == 3
    context.unroute("**/api/v1/votes")
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [2, 4, None, 3]
    assert not page.is_visible("#banner")


GONE = '{"type": "about:blank", "detail": "There is no such card any more. Look with `rlhf comparisons offer`.", "errors": []}'


@pytest.mark.parametrize("status", [404, 410])
def test_a_vote_that_is_never_taken_is_looked_at_kept_and_discarded(site: People, context: Any, page: Any, status: int) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    page.wait_for_timeout(300)
    prompts: list[str] = []

    def gone(route: Any) -> None:
        sent = route.request.post_data_json
        if sent["strength"] in (4, 3) or "undone" in sent["flags"]:
            route.fulfill(status=status, content_type="application/problem+json", body=GONE)
        else:
            route.continue_()

    context.route("**/api/v1/votes", gone)
    prompts = [vote(page, key)[0] for key in "12"]  # by far, clearly
    vote(page, "3")
    until(lambda: voted(page, site, ann, 1), "the vote behind them")
    page.get_by_text("2 votes wait on this device").wait_for()
    page.get_by_role("button", name="Look at them").click()
    rows = page.locator("#waiting-list li")
    until(lambda: rows.count() == 2, "both rows")
    assert [prompt.split("Item")[0][:40] in rows.nth(i).inner_text() for i, prompt in enumerate(prompts)] == [True, True]
    assert f"({status}): There is no such card any more. Look with rlhf comparisons offer." in rows.nth(0).inner_text()
    assert [rows.nth(i).locator("code").inner_text() for i in (0, 1)] == ["rlhf comparisons offer"] * 2

    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download all as JSON").click()
    kept = json.loads(Path(downloading.value.path()).read_text())
    assert [(one["choice"], one["strength"]) for one in kept["votes"]] == [("a", 4), ("a", 3)]
    assert len({one["idempotency_key"] for one in kept["votes"]}) == 2
    assert Batch.model_validate(kept).votes  # what the API takes as it lies there
    for one in kept["votes"]:
        VoteInBatch.model_validate(one)

    rows.nth(0).get_by_role("button", name="Discard").click()
    assert rows.count() == 2, "one press discards nothing"
    rows.nth(0).get_by_role("button", name="Discard it for good").click()
    until(lambda: rows.count() == 1, "the other row alone")
    assert "A clearly better" in rows.nth(0).inner_text()
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#today") == "2"
    page.reload()
    at_the_desk(page)
    assert unsent(page) == 1, "what was discarded does not come back"
    context.unroute("**/api/v1/votes")
    all_sent(page)  # what was kept goes as soon as the server takes it
    assert sorted(v.strength for v in site.votes(ann)) == [2, 3]
    assert not page.is_visible("#banner")


def test_a_vote_that_was_discarded_leaves_what_came_after_it(site: People, context: Any, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    one, two = page, context.new_page()
    log_in(one, site, ann)
    at_the_desk(one)
    one.wait_for_timeout(300)

    def gone(route: Any) -> None:
        if route.request.post_data_json["strength"] == 4:
            route.fulfill(status=404, content_type="application/problem+json", body=GONE)
        else:
            route.continue_()

    context.route("**/api/v1/votes", gone)
    vote(one, "1")
    one.get_by_role("button", name="Look at them").wait_for()
    press(one, "u")
    vote(one, "2")  # anew, after the undo of what is not taken
    until(lambda: unsent(one) == 3, "the vote, its undo and the vote anew")
    two.goto(site.url + "/annotate")
    until(lambda: unsent(two) == 3, "the same on the other tab")
    one.get_by_role("button", name="Look at them").click()
    one.get_by_role("button", name="Discard").click()
    one.get_by_role("button", name="Discard it for good").click()
    all_sent(one)
    all_sent(two)
    assert [v.strength for v in site.votes(ann)] == [3]


def look(page: Any) -> Any:
    """The rows of what waits."""
    page.get_by_role("button", name="Look at them").click()
    return page.locator("#waiting-list li")


def discard(rows: Any, n: int) -> None:
    before = rows.count()
    rows.nth(n).get_by_role("button", name="Discard").click()
    rows.nth(n).get_by_role("button", name="Discard it for good").click()
    until(lambda: rows.count() < before, "a row less")


def refuse(context: Any, refused: Callable[[dict[str, Any]], bool], status: int = 404, problem: str = GONE) -> None:
    def answered(route: Any) -> None:
        if refused(route.request.post_data_json):
            route.fulfill(status=status, content_type="application/problem+json", body=problem)
        else:
            route.continue_()

    context.route("**/api/v1/votes", answered)


def test_what_was_taken_back_is_not_in_the_file_and_the_file_is_taken_with_a_token_of_its_person(
    site: People, context: Any, page: Any
) -> None:
    site.furnish(12)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    vote(page, "2")
    all_sent(page)
    refuse(context, lambda sent: True)
    press(page, "u")  # of the vote that was sent
    vote(page, "6")
    vote(page, "7")  # and never taken back
    for key in "89":
        vote(page, key)
        press(page, "u")
    vote(page, "=")  # in place of the last one
    until(lambda: unsent(page) == 8, "an undo, four votes, two undos and a vote anew")
    look(page)
    assert ann.user_id in page.inner_text("#waiting")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download all as JSON").click()
    assert downloading.value.suggested_filename == f"unsent-votes-of-{ann.user_id}.json"
    kept = json.loads(Path(downloading.value.path()).read_text())
    secret, _ = site.store.tokens.issue(ann.user_id, kind="api", lifetime=timedelta(hours=1), actor="test")
    answer = httpx.post(f"{site.url}/api/v1/votes:batch", json=kept, headers={"Authorization": f"Bearer {secret}"})
    assert [one["status"] for one in answer.json()["results"]] == [201] * len(kept["votes"]), answer.text
    votes = site.votes(ann)
    assert [v.strength for v in votes] == [4, 3, None, 1, 2, None]
    assert [v.choice.value for v in votes][2::3] == ["skip", "tie"]
    assert (votes[2].supersedes, votes[3].supersedes) == (votes[1].vote_id, votes[2].vote_id)
    assert len(site.store.votes.snapshot([votes[0].day.isoformat()])) == 4, "of the two that were taken back nothing counts"


def test_an_undo_that_is_discarded_lets_its_vote_stand_and_takes_what_was_to_replace_it_along(
    site: People, context: Any, page: Any
) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    refuse(context, lambda sent: "undone" in sent["flags"])
    press(page, "u")
    page.get_by_role("button", name="Look at them").wait_for()
    vote(page, "2")  # in its place
    vote(page, "3")
    until(lambda: unsent(page) == 2 and len(site.votes(ann)) == 2, "the undo and what waits for it")
    assert page.inner_text("#today") == "2"
    discard(look(page), 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    said = page.inner_text("#notice-text")
    assert said == (
        "Not taken back: the vote stands (A by far better). Discarded with it, as it was to stand in its place: A clearly better."
    ), said
    all_sent(page)
    assert page.inner_text("#today") == "2"
    context.unroute("**/api/v1/votes")
    vote(page, "4")
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [4, 2, 1], "nothing was sent of what was discarded"
    assert len(site.store.votes.snapshot([site.votes(ann)[0].day.isoformat()])) == 3


def test_a_card_whose_undo_is_discarded_while_it_is_judged_anew_is_put_away(site: People, context: Any, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    judged = vote(page, "1")
    all_sent(page)
    refuse(context, lambda sent: "undone" in sent["flags"])
    press(page, "u")
    assert shown(page) == judged
    page.get_by_role("button", name="Look at them").wait_for()
    discard(look(page), 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#notice-text") == "Not taken back: the vote stands (A by far better)."
    assert shown(page) != judged
    assert page.inner_text("#today") == "1"
    context.unroute("**/api/v1/votes")
    while page.is_visible("#desk"):
        assert vote(page, "2") != judged
    all_sent(page)
    assert len(site.votes(ann)) == 4


def test_an_undo_that_is_discarded_lets_its_vote_stand_also_where_what_replaced_it_was_taken_back_too(
    site: People, context: Any, page: Any
) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    judged = vote(page, "1")
    all_sent(page)
    refuse(context, lambda sent: "undone" in sent["flags"], 403)
    press(page, "u")
    vote(page, "2")
    press(page, "u")
    assert shown(page) == judged
    page.get_by_role("button", name="Look at them").wait_for()
    rows = look(page)
    until(lambda: rows.count() == 3, "the undo, the vote anew and its undo")
    discard(rows, 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#today") == "1"
    assert shown(page) != judged, "its vote stands"
    context.unroute("**/api/v1/votes")
    while page.is_visible("#desk"):
        assert vote(page, "3") != judged
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [4, 2, 2, 2]


def test_an_undo_that_the_server_refuses_lets_its_vote_stand_also_where_what_replaced_it_was_taken_back_too(
    site: People, context: Any, page: Any
) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    judged = vote(page, "1")
    all_sent(page)
    context.set_offline(True)
    press(page, "u")
    vote(page, "2")
    press(page, "u")
    until(lambda: unsent(page) == 3, "the undo, the vote anew and its undo")
    refuse(context, lambda sent: "undone" in sent["flags"], 422)
    context.set_offline(False)
    until(lambda: unsent(page) == 2, "a refused undo")
    assert shown(page) != judged, "its vote stands"
    rows = look(page)
    until(lambda: "(409)" in rows.nth(0).inner_text(), "a vote that came too late to replace another")
    discard(rows, 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    all_sent(page)
    assert page.inner_text("#today") == "1"
    assert [v.strength for v in site.votes(ann)] == [4]


class Later:
    """The clock of a server that heard nothing of a device for two hours."""

    def now(self) -> datetime:
        return utc_now() + timedelta(hours=2)


def test_a_vote_cast_anew_is_not_lost_where_it_comes_too_late(site: People, context: Any, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    context.set_offline(True)
    press(page, "u")
    vote(page, "7")
    until(lambda: unsent(page) == 2, "the undo and the vote anew")
    site.store.database.clock = Later()
    context.set_offline(False)
    page.get_by_role("button", name="Look at them").wait_for()
    rows = look(page)
    until(lambda: "(409)" in rows.nth(0).inner_text(), "what the server said")
    assert "may be changed for" in rows.nth(0).inner_text()
    assert [rows.nth(i).locator("b").inner_text() for i in range(rows.count())] == ["Taken back", "B somewhat better"]
    page.reload()
    at_the_desk(page)
    assert unsent(page) == 2, "it is on the device until it is discarded"
    discard(look(page), 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    all_sent(page)
    assert [v.strength for v in site.votes(ann)] == [4]


def test_what_was_sent_from_the_file_and_is_sent_again_by_the_page_is_the_same(site: People, context: Any, page: Any) -> None:
    """The page said of a vote cast anew which undo it replaces, the file did not: recorded, it was refused as another vote."""
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    refuse(context, lambda sent: True, 403)
    press(page, "u")
    vote(page, "2")
    vote(page, "3")
    until(lambda: unsent(page) == 3, "the undo, the vote anew and another one")
    look(page)
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download all as JSON").click()
    page.locator("#waiting").get_by_role("button", name="Close").click()
    kept = json.loads(Path(downloading.value.path()).read_text())
    secret, _ = site.store.tokens.issue(ann.user_id, kind="api", lifetime=timedelta(hours=1), actor="test")
    answer = httpx.post(f"{site.url}/api/v1/votes:batch", json=kept, headers={"Authorization": f"Bearer {secret}"})
    assert [one["status"] for one in answer.json()["results"]] == [201] * 3, answer.text
    context.unroute("**/api/v1/votes")
    statuses: list[int] = []
    page.on("response", lambda got: statuses.append(got.status) if got.url.endswith("/api/v1/votes") else None)
    all_sent(page)
    assert statuses == [201] * 3
    assert not page.is_visible("#notice")
    first, undone, again, other = site.votes(ann)
    assert (undone.supersedes, again.supersedes, other.supersedes) == (first.vote_id, undone.vote_id, None)


def test_the_card_of_a_vote_that_is_discarded_may_be_judged_again(site: People, context: Any, page: Any) -> None:
    """It stayed among the judged ones, and as the server deals it first, no other came any more."""
    site.furnish(2)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    refuse(context, lambda sent: True)
    judged = {vote(page, key) for key in "12"}
    page.get_by_role("button", name="Look at them").wait_for()
    rows = look(page)
    until(lambda: rows.get_by_role("button").count() == 2, "both refused")
    context.unroute("**/api/v1/votes")
    context.route("**/api/v1/votes", lambda route: route.abort())
    discard(rows, 0)
    discard(rows, 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#today") == "0"
    at_the_desk(page)
    context.unroute("**/api/v1/votes")
    assert {vote(page, key) for key in "34"} == judged
    all_sent(page)
    assert sorted(v.strength or 0 for v in site.votes(ann)) == [1, 2]


def test_a_vote_that_was_taken_back_and_is_discarded_is_subtracted_once(site: People, context: Any, page: Any) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    refuse(context, lambda sent: sent["strength"] == 4)
    vote(page, "3")
    vote(page, "1")
    page.get_by_role("button", name="Look at them").wait_for()
    press(page, "u")
    assert page.inner_text("#today") == "1"
    discard(look(page), 0)
    page.locator("#waiting").get_by_role("button", name="Close").click()
    all_sent(page)
    assert page.inner_text("#today") == "1"
    assert [v.strength for v in site.votes(ann)] == [2]


def test_a_vote_that_this_login_may_not_cast_goes_aside_and_says_why(site: People, context: Any, page: Any) -> None:
    """No other login mends that; it was told as one that ended, and held up all votes behind it."""
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    forbidden = '{"type": "urn:rlhf:problem:forbidden", "detail": "This needs the permission votes.cast.", "errors": []}'
    refuse(context, lambda sent: sent["strength"] == 4, 403, forbidden)
    vote(page, "1")
    vote(page, "2")
    page.get_by_text("1 vote waits on this device and will be tried again. This needs the permission votes.cast.").wait_for()
    assert not page.is_visible("#banner-login")
    assert [v.strength for v in site.votes(ann)] == [3]
    assert "(403): This needs the permission votes.cast." in look(page).nth(0).inner_text()


@pytest.mark.parametrize("fails", ["getAll", "get", "delete", "put"])
def test_a_storage_that_fails_for_a_moment_is_asked_again(site: People, page: Any, fails: str) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    page.evaluate(
        """name => {
            const usual = IDBObjectStore.prototype[name];
            globalThis.failures = 0;
            IDBObjectStore.prototype[name] = function (...given) {
                if (globalThis.failures < 2) {
                    globalThis.failures += 1;
                    throw new DOMException("for a moment", "UnknownError");
                }
                return usual.apply(this, given);
            };
        }""",
        fails,
    )
    press(page, "u")
    until(lambda: page.evaluate("globalThis.failures") == 2, "two failures")
    all_sent(page)
    votes = site.votes(ann)
    assert [v.strength for v in votes] == [4, None]
    assert votes[1].supersedes == votes[0].vote_id


def test_an_undo_is_sent_although_the_device_keeps_no_more(site: People, page: Any) -> None:
    site.furnish(4)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    vote(page, "1")
    all_sent(page)
    page.evaluate("() => { IDBObjectStore.prototype.add = () => { throw new DOMException('full', 'QuotaExceededError'); }; }")
    press(page, "u")
    all_sent(page)
    votes = site.votes(ann)
    assert [v.strength for v in votes] == [4, None]
    assert votes[1].supersedes == votes[0].vote_id


def test_two_tabs_empty_one_outbox_once(site: People, context: Any) -> None:
    site.furnish(12)
    ann = site.add("ann@example.org")
    one, two = context.new_page(), context.new_page()
    log_in(one, site, ann)
    at_the_desk(one)
    two.goto(site.url + "/annotate")
    at_the_desk(two)
    one.wait_for_timeout(300)
    context.set_offline(True)
    for _ in range(2):
        vote(one, "1")
        vote(two, "9")
    context.set_offline(False)
    all_sent(one)
    all_sent(two)
    votes = site.votes(ann)
    assert len(votes) == 4
    assert len({v.comparison_id for v in votes}) == 4


def test_a_vote_on_a_lease_that_ended_is_kept_as_one_more(site: People, page: Any) -> None:
    site.furnish(1)
    site.rules(lease_minutes=0.02)  # 1.2 seconds
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    log_in(page, site, ann)
    at_the_desk(page)
    rules = site.store.rules.latest()[1]
    dealt: list[Any] = []
    until(lambda: dealt.extend(site.store.assignments.deal(bo.user_id, 1, rules)) or bool(dealt), "the card on another table")
    page.keyboard.press("1")
    page.get_by_text("kept as one more").wait_for()
    assert len(site.votes(ann)) == 1
