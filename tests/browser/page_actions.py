"""What a person does at the keyboard, and what they see. Knows the annotate page's elements; knows
no store.
"""

import time
from collections.abc import Callable
from typing import Any

from rlhf_pipeline.core.records import User
from tests.browser.people import People

GONE = (
    '{"type": "about:blank", "detail": "There is no such card any more. Look with `rlhf '
    'comparisons offer`.", "errors": []}'
)
# the longest pause of outbox.js between two tries, which a slow machine's test may come to, and a
# try
SECONDS = 18.75 + 60
# titles of the page between two cards, where a machine is slow
ON_ITS_WAY = ("Loading comparisons", "Sending your votes")


def log_in(page: Any, site: People, user: User, path: str = "/annotate") -> None:
    """By a one-time link, as somebody new does."""
    page.set_default_timeout(60_000)
    page.goto(site.login_link(user))
    page.get_by_role("button", name="Log in with this link").press("Enter")
    page.wait_for_url(lambda url: "/login" not in url)
    if page.url != site.url + path:
        page.goto(site.url + path)


def wait_for_card(page: Any) -> None:
    """Wait for a card; the guidelines of a first visit are closed unread."""
    page.wait_for_selector("#desk:not([hidden]), #guidelines[open]")
    if page.is_visible("#guidelines"):
        page.keyboard.press("Escape")
    page.wait_for_selector("#desk:not([hidden])")
    accepts_votes(page)


def accepts_votes(page: Any) -> None:
    """Wait until the page takes votes on the card it shows, which it does not at once; where it
    shows none, there is nothing to wait for.
    """
    page.wait_for_selector(
        "#annotate[data-accepts-votes], #annotate:not([data-shows=desk])", state="attached"
    )


def read_card(page: Any) -> tuple[str, str, str]:
    """Prompt, left and right as they are seen."""
    return page.inner_text("#prompt"), page.inner_text("#left"), page.inner_text("#right")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        accepts_votes(page)
        page.keyboard.press(key)


def vote(page: Any, key: str) -> tuple[str, str, str]:
    """Press a key and see another comparison, or the end; what was judged. While the page waits for
    cards, a key would judge nothing.
    """
    before = read_card(page)
    accepts_votes(page)
    page.keyboard.press(key)

    def is_next() -> bool:
        if page.is_visible("#desk"):
            return read_card(page) != before
        if page.is_visible("#outbox.waiting"):  # no connection: no card is on its way
            return True
        return page.is_visible("#empty") and page.inner_text("#empty-title") not in ON_ITS_WAY

    until(is_next, "the next comparison")
    return before


def all_sent(page: Any) -> None:
    until(lambda: not page.is_visible("#outbox"), "an empty outbox")


def voted(page: Any, site: People, user: User, n: int) -> bool:
    """Whether so many votes have arrived. The page is asked as well: what a test has put before its
    requests is done while it is.
    """
    page.title()
    return len(site.votes(user)) == n


def until(holds: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def select(page: Any, pane: str, words: str) -> None:
    """Select the first place of these words within one text node, as a mouse would."""
    page.evaluate(
        """([pane, words]) => {
            const walker = document.createTreeWalker(
                document.querySelector(pane), NodeFilter.SHOW_TEXT);
            for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                const at = node.data.indexOf(words);
                if (at < 0) continue;
                document.getSelection().setBaseAndExtent(node, at, node, at + words.length);
                return;
            }
            throw new Error(`no text node holds ${words}`);
        }""",
        [pane, words],
    )


def look(page: Any) -> Any:
    """The rows of what waits."""
    page.get_by_role("button", name="Show votes").click()
    return page.locator("#waiting-list li")


def discard(rows: Any, n: int) -> None:
    before = rows.count()
    rows.nth(n).get_by_role("button", name="Discard").click()
    rows.nth(n).get_by_role("button", name="Discard permanently").click()
    until(lambda: rows.count() < before, "a row less")


def refuse(
    context: Any, refused: Callable[[dict[str, Any]], bool], status: int = 404, problem: str = GONE
) -> None:
    def answered(route: Any) -> None:
        if refused(route.request.post_data_json):
            route.fulfill(status=status, content_type="application/problem+json", body=problem)
        else:
            route.continue_()

    context.route("**/api/v1/votes", answered)
