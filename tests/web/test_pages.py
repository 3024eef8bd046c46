"""Pages as the server writes them, read without a browser: hints of an empty project, hostile
words, comparisons offered to one person.
"""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import event

from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import NewVote, Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.routing import PREFIX
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import NOON, UNCACHED, ShiftedClock, Web
from tests.web.databases import on_sqlite

# Where an empty project says something else than on the page as it is opened first, and where there
# is nothing.
MORE_PAGES = (
    "/consensus?method=joint_model",
    "/consensus?state=open",
    "/comparisons/none",
    "/comparisons?category=none",
    "/votes?q=none",
    "/none",
)


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


def pages_of(settings: Settings, store: Store) -> list[str]:
    return sorted(
        route.path
        for route in create_app(settings, store, cache_times=UNCACHED).routes
        if isinstance(route, APIRoute)
        and "GET" in route.methods
        and not route.path.startswith(PREFIX)
        and "{" not in route.path
        and not route.path.endswith((".csv", "/metrics"))
    )


@on_sqlite
@pytest.mark.parametrize("role", [None, *Role])
def test_no_page_of_an_empty_project_shows_a_backtick(paged: Web, role: Role | None):
    browser = httpx.Client(timeout=60) if role is None else paged.browser(paged.add(role))
    paths = [*pages_of(paged.settings, paged.store), *MORE_PAGES]
    assert len(paths) > 15
    for path in paths:
        assert "`" not in get(paged, browser, path).text, path


@on_sqlite
def test_commands_of_a_hint_are_set_as_code(paged: Web):
    browser = paged.browser(paged.add(Role.ENGINEER))
    assert "rlhf import comparisons FILE" in get(paged, browser, "/comparisons").code
    assert {"rlhf reward train", "rlhf reward calibrate"} <= set(
        get(paged, browser, "/calibration").code
    )
    assert (
        "rlhf votes annotators --publish"
        in get(paged, browser, "/consensus?method=joint_model").code
    )
    told = (
        paged.client(Role.ENGINEER)
        .get("/consensus", params={"method": "joint_model"})
        .json()["detail"]
    )
    assert "`rlhf votes annotators --publish`" in told, (
        "what is read without a page keeps its backticks"
    )


@on_sqlite
def test_hostile_words_between_backticks_stay_words(paged: Web):
    paged.publish(1)
    browser = paged.browser(paged.add(Role.CURATOR))
    hostile = "`<script>alert(1)</script>`<img/src=x>`&amp"
    answer = browser.post(f"{paged.url}/comparisons/offer", data={"which": "ids", "ids": hostile})
    assert answer.status_code == 404
    seen = Seen(answer.text)
    assert "<script>alert(1)</script>" in seen.code
    assert "<img/src=x>`&amp" in seen.text, "a backtick without another is one"
    assert "img" not in seen.tags
    assert "<script>alert" not in answer.text


@on_sqlite
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


@on_sqlite
def test_without_offers_no_page_counts_judgements(paged: Web):
    (one,) = paged.publish(1, offer=False)
    cast = NewVote(
        comparison_id=one,
        annotator_id="ann",
        annotator_kind="human",
        origin="api",
        choice="a",
        voted_at=NOON,
        idempotency_key="one",
    )
    paged.store.votes.cast(cast)
    browser = paged.browser(paged.add("engineer"))
    shown = browser.get(f"{paged.url}/comparisons/{one}").text
    assert "not offered" in shown
    assert "0 of 0" not in shown
    progress = browser.get(f"{paged.url}/progress").text
    assert re.findall("<b>(.+?)</b><span>(.+?)</span>", progress) == [
        ("none", "comparisons offered"),
        ("1", "votes in total"),
    ]


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


@on_sqlite
@pytest.mark.parametrize("path", ["/votes", "/comparisons", "/consensus"])
def test_page_of_a_list_reads_all_users_once(paged: Web, path: str):
    admin = paged.browser(paged.add("admin"))
    statements: list[str] = []
    event.listen(
        paged.store.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )
    assert admin.get(f"{paged.url}{path}").status_code == 200
    assert sum("ORDER BY users.email" in one for one in statements) == 1


@on_sqlite
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
        len(one.post("/assignments:lease", json={"n": 5}).json()["cards"]) for one in (bo, ann)
    ]
    assert leased == [0, len(named)]
    assert "Requested 2 judgements of 2 comparisons" in offered(paged, engineer).text, (
        "anybody is asked beside"
    )
    curator = paged.browser(paged.add("curator"))
    curator.follow_redirects = True
    assert "would reveal what others judged" in offered(paged, curator).text


@on_sqlite
def test_the_form_names_those_who_may_be_asked_and_hides_their_addresses(paged: Web):
    paged.publish(1, offer=False)
    ann = paged.add("annotator", email="ann@example.org")
    unnamed = paged.store.users.add(
        email="bo@example.org", name="", roles=[Role.ANNOTATOR], actor="test"
    )
    gone = paged.add("annotator")
    paged.add("auditor")
    paged.add("annotator", kind="service")
    twins = [
        paged.store.users.add(
            email=f"{i}@example.org", name="Eve", roles=[Role.ANNOTATOR], actor="test"
        )
        for i in range(2)
    ]
    admin, curator = paged.add("admin"), paged.add("curator")
    paged.store.users.disable(gone.user_id, actor="test")
    known = choices(paged.browser(admin).get(f"{paged.url}/comparisons").text)
    assert known == {
        "": "any annotator", ann.user_id: "ann (ann@example.org)",
        unnamed.user_id: "bo@example.org",
        admin.user_id: f"{admin.name} ({admin.email})",
        curator.user_id: f"{curator.name} ({curator.email})",
        twins[0].user_id: "Eve (0@example.org)", twins[1].user_id: "Eve (1@example.org)",
    }  # fmt: skip
    assert next(iter(known)) == ""
    page = paged.browser(curator).get(f"{paged.url}/comparisons").text
    assert choices(page) == {
        "": "any annotator", ann.user_id: "ann",
        unnamed.user_id: unnamed.user_id, admin.user_id: admin.name, curator.user_id: curator.name,
    } | {one.user_id: f"Eve (…{one.user_id[-6:]})" for one in twins}  # fmt: skip


@on_sqlite
@pytest.mark.parametrize("who", ["an auditor", "nobody"])
def test_who_is_not_to_be_asked_is_said_above_the_form(paged: Web, who: str):
    paged.publish(1, offer=False)
    annotator_id = paged.add("auditor").user_id if who == "an auditor" else "nobody"
    answer = offered(paged, paged.browser(paged.add("curator")), annotator_id=annotator_id)
    assert answer.status_code == (422 if who == "an auditor" else 404)
    assert '<p class="problem" role="alert">' in answer.text
    assert 'action="/comparisons/offer?"' in answer.text
    assert paged.store.assignments.remaining_work().n_slots == 0


@on_sqlite
def test_a_refused_offer_keeps_what_was_filled_in(paged: Web):
    (one,) = paged.publish(1, offer=False)
    admin, who = paged.add("admin"), paged.add("annotator").user_id
    browser = paged.browser(admin)
    filled = {"which": "ids", "ids": f"{one} <none>", "overlap": "3", "priority": "2"}
    page = offered(paged, browser, **filled).text
    assert '<details class="panel" open>' in page
    assert 'value="ids" checked>' in page
    for value in (f"{one} &lt;none&gt;", "3", "2"):
        assert f'value="{value}"' in page
    ticked = {"which": "ids", "id": [one, "c0060"], "annotator_id": who, "flag": "broken"}
    for act in ("offer", "flag"):
        page = browser.post(f"{paged.url}/comparisons/{act}", data=ticked).text
        assert '<details class="panel">' in page
        assert page.count('role="alert"') == 1
        assert re.findall(r'name="id" value="(\w+)"\s*checked', page) == ["c0060", one]
        assert re.findall(r'value="([^"]+)" selected', page) == [who, "broken"]


def test_a_shared_address_keeps_its_filters_through_the_login(paged: Web):
    asked = httpx.get(f"{paged.url}/votes?category=coding&since=2026-01-03", follow_redirects=False)
    assert asked.status_code == 303
    after = parse_qs(urlsplit(asked.headers["location"]).query)["next"]
    assert after == ["/votes?category=coding&since=2026-01-03"]


def test_who_sets_a_password_is_told_the_address_to_log_in_with(paged: Web):
    browser = paged.browser(paged.add("annotator", email="ann@example.org"))
    assert "You log in as ann@example.org." in get(paged, browser, "/me").text
    browser.follow_redirects = True
    done = browser.post(f"{paged.url}/me/password", data={"new_password": "correct horse battery"})
    assert "Password set. Log in as ann@example.org." in Seen(done.text).text


def test_a_page_names_a_wrong_filter_and_leads_to_itself_without_it(paged: Web):
    browser = paged.browser(paged.add("admin"))
    for address, reason, back, words in (
        (
            "/preferences?since=2026-01-09&until=2026-01-01&category=coding",
            "From 2026-01-09 is after To 2026-01-01.",
            "/preferences?category=coding",
            "Show all days",
        ),
        (
            "/drift-events?decision_id=abc&is_open=true",
            "decision: &#39;abc&#39; is not a whole number.",
            "/drift-events?is_open=true",
            "Show it without this",
        ),
    ):
        refused = browser.get(f"{paged.url}{address}")
        assert (refused.status_code, reason in refused.text) == (422, True)
        assert f'href="{back}">{words}</a>' in refused.text
        assert "query." not in refused.text


def test_a_form_after_a_session_says_what_was_lost_and_leads_back(paged: Web):
    browser = paged.browser(paged.add("admin"))
    browser.cookies.clear()
    sent = "/comparisons?q=prompt"
    asked = browser.post(f"{paged.url}/comparisons/flag", headers={"Referer": paged.url + sent})
    assert parse_qs(urlsplit(asked.headers["location"]).query)["next"] == [sent]
    page = browser.get(f"{paged.url}{asked.headers['location']}").text
    assert "You were logged out; the last change was not saved." in page
    for foreign in ("https://evil.example/x", f"{paged.url}//evil.example"):
        asked = browser.post(f"{paged.url}/comparisons/flag", headers={"Referer": foreign})
        assert asked.headers["location"] == "/login"
    assert browser.post(f"{paged.url}/logout").headers.get("set-cookie") is None
