"""A dead network, a closed tab, a refused vote: nothing is lost, nothing is doubled."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.api_types.votes import Batch, VoteInBatch
from tests.browser.page_actions import (
    GONE,
    all_sent,
    log_in,
    press,
    read_card,
    until,
    vote,
    voted,
    wait_for_card,
)
from tests.browser.people import People

AGE_ANSWERS = """() => new Promise((resolve, reject) => {
    const opening = indexedDB.open("rlhf-outbox", 1);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
        const transaction = opening.result.transaction("answers", "readwrite");
        const cursor = transaction.objectStore("answers").openCursor();
        cursor.onsuccess = () => {
            if (!cursor.result) return;
            cursor.result.update(
                { ...cursor.result.value, at: cursor.result.value.at - 7_200_000 });
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


def test_a_lost_answer_does_not_double_a_vote(site: People, context: Any, page: Any) -> None:
    site.furnish(6)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
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


def test_refused_vote_returns_on_top_with_the_reason(site: People, page: Any) -> None:
    site.furnish(5)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    card = read_card(page)
    site.rules(requires_reason=True)  # the page was told otherwise
    press(page, "r")
    press(page, "Escape")
    page.keyboard.press("1")
    until(lambda: page.is_visible("#notice"), "the refusal")
    assert "reason" in page.inner_text("#notice")
    assert read_card(page) == card
    assert page.inner_text("#today") == "0"
    press(page, "r")
    page.keyboard.type("clearer")
    press(page, "Enter")
    vote(page, "2")
    all_sent(page)
    assert [(v.strength, v.reason) for v in site.votes(ann)] == [(3, "clearer")]


def test_votes_survive_another_login_in_a_second_tab(site: People, context: Any) -> None:
    site.furnish(30)
    site.rules(prefetch=8)
    ann, bo = site.add("ann@example.org"), site.add("bo@example.org")
    anns = context.new_page()
    bos = context.new_page()
    again = context.new_page()
    log_in(anns, site, ann)
    wait_for_card(anns)
    until(lambda: site.store.cards.remaining_work().n_leased >= 8, "cards leased ahead")
    vote(anns, "4")
    all_sent(anns)
    anns.wait_for_timeout(200)
    anns.route("**/api/v1/votes", lambda route: route.abort())
    press(anns, "u")
    for key in "12":
        vote(anns, key)
    until(lambda: unsent(anns) == 3, "two votes and an undo that wait")
    log_in(bos, site, bo)
    wait_for_card(bos)
    anns.unroute("**/api/v1/votes")
    vote(anns, "3")
    anns.get_by_text("Another user is logged in in this browser: 4 votes wait").wait_for()
    assert anns.locator("#banner-login").is_visible()
    # However long the undo waits, what it takes back stays known, whoever else votes here.
    anns.evaluate(AGE_ANSWERS)
    for key in "98":
        vote(bos, key)
    all_sent(bos)
    bos.get_by_text("4 unsent votes of another user").wait_for()
    assert [v.strength for v in site.votes(bo)] == [4, 3]
    assert unsent(anns) == 4
    assert len(site.votes(ann)) == 1
    log_in(again, site, ann)
    all_sent(anns)
    assert [v.strength for v in site.votes(ann)] == [1, None, 4, 3, 2]
    assert "undone" in site.votes(ann)[1].details.flags  # type: ignore[union-attr]
    until(lambda: not anns.is_visible("#banner-login"), "no more talk of a login")
    assert len(site.votes(bo)) == 2


def test_rejected_vote_is_listed_exported_and_discarded(
    site: People, context: Any, page: Any
) -> None:
    site.furnish(8)
    ann = site.add("ann@example.org")
    log_in(page, site, ann)
    wait_for_card(page)
    page.wait_for_timeout(300)
    prompts: list[str] = []

    def gone(route: Any) -> None:
        body = route.request.post_data_json
        if body["strength"] in (4, 3) or "undone" in body["flags"]:
            route.fulfill(status=404, content_type="application/problem+json", body=GONE)
        else:
            route.continue_()

    context.route("**/api/v1/votes", gone)
    prompts = [vote(page, key)[0] for key in "12"]  # much, clearly
    vote(page, "3")
    until(lambda: voted(page, site, ann, 1), "the vote behind them")
    page.get_by_text("2 votes wait on this device").wait_for()
    page.get_by_role("button", name="Show votes").click()
    rows = page.locator("#waiting-list li")
    until(lambda: rows.count() == 2, "both rows")
    assert [
        prompt.split("Item")[0][:40] in rows.nth(i).inner_text() for i, prompt in enumerate(prompts)
    ] == [True, True]
    assert (
        "(404): There is no such card any more. Look with rlhf comparisons offer."
        in rows.nth(0).inner_text()
    )
    assert [rows.nth(i).locator("code").inner_text() for i in (0, 1)] == [
        "rlhf comparisons offer"
    ] * 2

    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download all as JSON").click()
    export = json.loads(Path(downloading.value.path()).read_text())
    assert [(vote["choice"], vote["strength"]) for vote in export["votes"]] == [("a", 4), ("a", 3)]
    assert len({vote["idempotency_key"] for vote in export["votes"]}) == 2
    assert Batch.model_validate(export).votes  # what the API takes as it lies there
    for row in export["votes"]:
        VoteInBatch.model_validate(row)

    rows.nth(0).get_by_role("button", name="Discard").click()
    assert rows.count() == 2, "one press discards nothing"
    rows.nth(0).get_by_role("button", name="Discard permanently").click()
    until(lambda: rows.count() == 1, "the other row alone")
    assert "A clearly better" in rows.nth(0).inner_text()
    page.locator("#waiting").get_by_role("button", name="Close").click()
    assert page.inner_text("#today") == "2"
    page.reload()
    wait_for_card(page)
    assert unsent(page) == 1, "what was discarded does not come back"
    context.unroute("**/api/v1/votes")
    all_sent(page)  # what was kept goes as soon as the server takes it
    assert sorted(v.strength for v in site.votes(ann)) == [2, 3]
    assert not page.is_visible("#banner")
