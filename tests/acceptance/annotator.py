"""A person at the keyboard of the annotate page."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.acceptance.home import Person, Server, rows

# outbox.js waits up to 19 s between two tries; a try on a busy machine takes some seconds more.
PATIENCE_S = 180
Card = tuple[str, str, str]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)


@dataclass
class Annotator:
    """Somebody in a browser window."""

    server: Server
    person: Person
    context: Any
    page: Any = None

    def log_in(self) -> None:
        """By a one-time link, in a new tab."""
        self.page = self.context.new_page()
        self.page.goto(self.server.login_link(self.person))
        self.page.get_by_role("button", name="Log in with this link").press("Enter")
        self.page.wait_for_url(lambda url: "/login" not in url)
        self.open()

    def open(self) -> None:
        self.page.goto(f"{self.server.url}/annotate")
        self.page.wait_for_selector("#desk:not([hidden]), #guidelines[open]")
        if self.page.is_visible("#guidelines"):
            self.page.keyboard.press("Escape")
        self.page.wait_for_selector("#desk:not([hidden])")

    def in_another_tab(self) -> "Annotator":
        other = Annotator(self.server, self.person, self.context, self.context.new_page())
        other.open()
        return other

    def card(self) -> Card:
        """Prompt, left and right as they are seen."""
        prompt, left, right = (self.page.inner_text(s) for s in ("#prompt", "#left", "#right"))
        return prompt, left, right

    def press(self, key: str) -> None:
        """Once the page takes votes on the card it shows."""
        self.page.wait_for_selector("#annotate[data-accepts-votes]", state="attached")
        self.page.keyboard.press(key)

    def vote(self, key: str) -> Card:
        """Press a key and wait for another card; the card that was judged."""
        before = self.card()
        self.press(key)
        until(
            lambda: (
                (self.page.is_visible("#desk") and self.card() != before)
                or self.page.is_visible("#empty")
            ),
            "the next card",
        )
        return before

    def send_all(self) -> None:
        """Wait until no vote waits on this device."""
        until(lambda: not self.page.is_visible("#outbox"), "an empty outbox")

    def votes(self) -> list[dict[str, Any]]:
        """Oldest first; `a` is what stood left."""
        return rows(self.person.api, "me/votes", limit=200)[::-1]
