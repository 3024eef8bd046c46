"""Pages as the server writes them, read without a browser: hints of an empty project, hostile
words, comparisons offered to one person.
"""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, ShiftedClock, Web


class Seen(HTMLParser):
    """What of a page is read by a person: its texts, and by themselves those set as code."""

    def __init__(self, page: str):
        super().__init__()
        self.texts: list[str] = []
        self.code: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag in ("script", "style", "code"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.texts.append(data)
            if "code" in self._open:
                self.code.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture
def paged(
    settings: Settings, open_store: Callable[[], Store], clock: ShiftedClock
) -> Iterator[Web]:
    """The app with its pages."""
    store = open_store()
    with WebServer(create_app(settings, store, cache_times=UNCACHED)) as server:
        yield Web(store, settings, server.url, clock)


def get(paged: Web, browser: httpx.Client, path: str) -> Seen:
    answer = browser.get(f"{paged.url}{path}", follow_redirects=True)
    assert answer.headers["content-type"].startswith("text/html"), path
    return Seen(answer.text)


def test_hostile_code_spans_are_escaped(paged: Web):
    paged.publish(1)
    browser = paged.browser(paged.add(Role.CURATOR))
    hostile = "`<script>alert(1)</script>`<img/src=x>`&amp"
    answer = browser.post(f"{paged.url}/comparisons/offer", data={"which": "ids", "ids": hostile})
    assert answer.status_code == 404
    page = Seen(answer.text)
    assert "<script>alert(1)</script>" in page.code
    assert "<img/src=x>`&amp" in page.text, "a backtick without another is one"
    assert "img" not in page.tags
    assert "<script>alert" not in answer.text


def test_404_page_keeps_the_menu(paged: Web):
    browser = paged.browser(paged.add(Role.ANNOTATOR))
    answer = browser.get(f"{paged.url}/nowhere", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert '<a href="/annotate">Annotate</a>' in answer.text
    assert '<a href="/audit">' not in answer.text
    assert "Log out" in answer.text
    assert "Nothing exists at this address." in answer.text
    stranger = paged.anonymous().get(f"{paged.url}/nowhere")
    assert (stranger.status_code, '<nav id="nav"' in stranger.text) == (404, False)
    forged = paged.anonymous().get(
        f"{paged.url}/nowhere", headers={"Authorization": "Bearer rlhf_nope"}
    )
    assert (forged.status_code, '<nav id="nav"' in forged.text) == (404, False)
    missing = browser.get("/nowhere")
    assert (missing.status_code, missing.headers["content-type"]) == (
        404,
        "application/problem+json",
    )


def choices(page: str) -> dict[str, str]:
    """value -> words of the annotators that the form offers to."""
    inside, _ = re.findall(r'<select name="annotator_id">(.*?)</select>', page, re.DOTALL)
    return dict(re.findall(r'<option value="([^"]*)">([^<]*)</option>', inside))


def offered(paged: Web, browser: httpx.Client, **more: str) -> httpx.Response:
    """As a browser sends the form: with every field, those nobody touched too."""
    fields = {
        "which": "all_unvoted",
        "day": "",
        "ids": "",
        "annotator_id": "",
        "overlap": "1",
        "priority": "0",
    }
    return browser.post(f"{paged.url}/comparisons/offer", data=fields | more)


def test_comparisons_are_offered_to_one_person_by_the_form(paged: Web):
    paged.rule(repeat_share=0, gold_share=0)
    named = paged.publish(2, offer=False)
    ann, bo = paged.client("annotator"), paged.client("annotator")
    engineer = paged.browser(paged.add("engineer"))
    engineer.follow_redirects = True
    who = ann.user.user_id
    assert who in choices(engineer.get(f"{paged.url}/comparisons").text)
    assert (
        f"Requested 2 judgements of 2 comparisons from {ann.user.name}."
        in offered(paged, engineer, annotator_id=who).text
    )
    assert "No new judgements requested" in offered(paged, engineer, annotator_id=who).text
    leased = [
        len(client.post("/cards:lease", json={"n": 5}).json()["cards"]) for client in (bo, ann)
    ]
    assert leased == [0, len(named)]
    assert "Requested 2 judgements of 2 comparisons" in offered(paged, engineer).text, (
        "anybody is asked beside"
    )


def test_page_names_a_wrong_filter_and_links_to_itself(paged: Web):
    browser = paged.browser(paged.add("admin"))
    for address, reason, back, words in (
        (
            "/preferences?since=2026-01-09&until=2026-01-01&category=coding",
            "From 2026-01-09 is after To 2026-01-01: exchange them",
            "/preferences?category=coding",
            "Show all days",
        ),
        (
            "/drift-events?decision_id=abc&is_open=true",
            "decision_id: &#39;abc&#39; is not a whole number.",
            "/drift-events?is_open=true",
            "Show it without this",
        ),
    ):
        refused = browser.get(f"{paged.url}{address}")
        assert (refused.status_code, reason in refused.text) == (422, True)
        assert f'href="{back}">{words}</a>' in refused.text
        assert "query." not in refused.text


def test_form_after_logout_links_back_after_login(paged: Web):
    browser = paged.browser(paged.add("admin"))
    browser.cookies.clear()
    path = "/comparisons?q=prompt"
    response = browser.post(f"{paged.url}/comparisons/flag", headers={"Referer": paged.url + path})
    assert parse_qs(urlsplit(response.headers["location"]).query)["next"] == [path]
    page = browser.get(f"{paged.url}{response.headers['location']}").text
    assert "You were logged out; the last change was not saved." in page
    for foreign in ("https://evil.example/x", f"{paged.url}//evil.example"):
        response = browser.post(f"{paged.url}/comparisons/flag", headers={"Referer": foreign})
        assert response.headers["location"] == "/login"
    assert browser.post(f"{paged.url}/logout").headers.get("set-cookie") is None


def test_list_download_uses_the_filters_of_the_url(paged: Web):
    ids = paged.publish(3)
    browser = paged.browser(paged.add("admin"))
    file = browser.get(f"{paged.url}/comparisons?status=waiting&format=csv")
    assert file.headers["content-disposition"] == 'attachment; filename="comparisons.csv"'
    assert [ids[0] in file.text, len(file.text.splitlines())] == [True, 4]
    assert browser.get(f"{paged.url}/comparisons?format=xml").status_code == 422
    assert browser.get(f"{paged.url}/api/v1/comparisons?format=csv").status_code == 422
    file = browser.get(f"{paged.url}/progress?format=csv")
    assert file.headers["content-disposition"] == 'attachment; filename="annotators.csv"'
