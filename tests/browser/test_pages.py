"""The other pages: login, menu, empty states, forms, lists, downloads; by keyboard, in both themes,
for those who may.
"""

import csv
import io
from typing import Any

import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote, Role, utc_now
from rlhf_pipeline.feedback.datasets.formats.csv import unprotect_cell
from tests.browser.page_actions import log_in, until
from tests.browser.people import People

PAGES = (
    "/",
    "/progress",
    "/votes",
    "/quality",
    "/comparisons",
    "/consensus",
    "/preferences",
    "/production",
    "/alignment",
    "/calibration",
    "/evolution",
    "/compare",
    "/drift",
    "/drift-events",
    "/clusters",
    "/decisions",
    "/alerts",
    "/runs",
    "/runs/spending",
    "/settings",
    "/settings/glossary",
    "/feedback",
    "/guidelines",
    "/rules",
    "/users",
    "/me",
    "/audit",
)


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


@pytest.fixture
def admin(site: People, page: Any) -> Any:
    user = site.add("ada@example.org", Role.ADMIN, name="Ada")
    log_in(page, site, user, "/progress")
    return user


def cast(
    site: People, user: Any, comparison_id: str, choice: Choice, reason: str | None = None
) -> None:
    site.store.votes.cast(
        NewVote(
            comparison_id=comparison_id,
            annotator_id=user.user_id,
            annotator_kind=AnnotatorKind.HUMAN,
            choice=choice,
            reason=reason,
            voted_at=utc_now(),
            origin="api",
            idempotency_key=f"{user.user_id}/{comparison_id}",
            duration_s=8.0,
            is_swapped=False,
        )
    )


def test_empty_pages_say_what_is_missing(site: People, page: Any, admin: Any) -> None:
    words_of = {
        "/": "What to do next",
        "/progress": "No comparisons offered yet",
        "/votes": "No votes yet",
        "/comparisons": "No comparisons yet",
        "/consensus": "No judgements yet",
        "/preferences": "No votes yet",
        "/production": "No figures yet",
        "/alignment": "No figures yet",
        "/calibration": "No calibrator yet",
        "/evolution": "No models yet",
        "/compare": "Nothing to compare yet",
        "/runs": "No runs yet",
        "/settings": "How the loop works",
        "/quality": "No judgements yet",
        "/feedback": "No feedback yet",
        "/guidelines": "No guidelines yet",
        "/me": "You have not voted yet",
        "/users": "Ada",
        "/annotate": "Nothing to judge now",
    }
    for path, words in words_of.items():
        page.goto(site.url + path)
        page.get_by_text(words).first.wait_for()
        assert page.locator("h1").count() == 1, path


def test_live_figures_show_a_silent_server(
    site: People, page: Any, context: Any, admin: Any
) -> None:
    refresh = "() => globalThis.htmx.trigger(document.querySelector('[data-refresh]'), 'refresh')"
    page.goto(f"{site.url}/alerts")
    outage, n_live = page.locator("#outage"), page.locator("[data-refresh]").count()
    context.set_offline(True)
    page.evaluate(refresh)
    outage.get_by_text("The server does not respond; the page is loaded again soon.").wait_for()
    context.set_offline(False)
    page.evaluate(refresh)
    outage.wait_for(state="detached")
    context.clear_cookies()
    page.evaluate(refresh)
    outage.get_by_text("You are logged out. Log in and reload the page.").wait_for()
    assert page.locator("[data-refresh]").count() == n_live > 0


def test_work_is_offered_to_one_person_by_keyboard(site: People, page: Any, admin: Any) -> None:
    ann = site.add("ann@example.org", name="Ann")
    site.add("bo@example.org", name="Bo")
    site.rules(repeat_share=0, gold_share=0)
    site.furnish(3, offered=False)
    page.goto(site.url + "/comparisons")
    page.get_by_text("Offer comparisons to annotators").press("Enter")
    whom = page.locator("details").get_by_label("Annotator")
    assert whom.input_value() == ""
    whom.focus()
    page.keyboard.type("Ann")
    assert whom.input_value() == ann.user_id
    page.get_by_role("button", name="Offer", exact=True).press("Enter")
    page.get_by_text("Requested 3 judgements of 3 comparisons from Ann.").wait_for()
    assert len(site.store.cards.deal(ann.user_id, 5, site.store.rules.latest()[1])) == 3


def test_back_restores_the_list(site: People, page: Any, admin: Any) -> None:
    site.furnish(130, offered=False)
    page.goto(site.url + "/comparisons?q=why")
    rows = page.locator(".list details")
    for n_rows in (100, 130):
        page.get_by_role("link", name="More").click()
        until(lambda n_rows=n_rows: rows.count() == n_rows, "more of the list")
    row = rows.nth(120)
    row.locator("summary").click()
    link = row.locator(".aside a.button")
    address = link.get_attribute("href")
    link.click()
    page.wait_for_url(f"**{address}")
    page.go_back()
    until(lambda: rows.count() == 130, "the list as it was left")
    until(lambda: page.evaluate("scrollY") > 1000, "its place")
    assert row.bounding_box()["y"] < 800
    assert (link.get_attribute("href"), page.url) == (address, site.url + "/comparisons?q=why")


def test_filter_applies_at_once_and_is_in_the_url(site: People, page: Any, admin: Any) -> None:
    site.furnish(3)
    site.publish([("Name a bird", "crow", "cow")], offered=False, prefix="d")
    page.goto(site.url + "/comparisons")
    rows, status = page.locator(".list details"), page.get_by_label("Judgements")
    status.focus()
    status.select_option("not_offered")
    until(lambda: rows.count() == 1, "the comparison that is not offered")
    assert page.url == site.url + "/comparisons?status=not_offered"
    assert page.locator("#count").inner_text() == "1 row"
    assert page.evaluate("document.activeElement.name") == "status", "the focus stays"
    page.go_back()
    until(lambda: rows.count() == 4, "all comparisons")
    page.get_by_role("searchbox").fill("bird")
    page.get_by_role("searchbox").press("Enter")
    page.wait_for_url("**/comparisons?q=bird")
    until(lambda: rows.count() == 1, "the comparison with the word")


def test_keys_move_through_rows_and_open_details(site: People, page: Any, admin: Any) -> None:
    site.furnish(3)
    page.goto(site.url + "/comparisons")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    aside = page.locator(".list details[open] .aside")
    first = aside.inner_text()
    assert "Sunlight looks white" in first
    page.keyboard.press("j")
    until(lambda: aside.inner_text() != first, "the next row")
    assert page.locator(".list details[open]").count() == 1
    page.keyboard.press("Escape")
    assert aside.count() == 0
    page.locator(".list tbody td.n").nth(1).click()
    assert aside.inner_text() == first
    page.keyboard.press("/")
    page.keyboard.type("j")
    assert page.get_by_role("searchbox").input_value() == "j"


def test_select_all_includes_rows_loaded_later(site: People, page: Any, admin: Any) -> None:
    site.furnish(60, offered=False)
    page.goto(site.url + "/comparisons?q=a")
    page.get_by_label("Tick all shown").check()
    page.get_by_role("link", name="More").click()
    until(lambda: page.locator("input[name=id]:checked").count() == 60, "all rows ticked")
    page.get_by_role("button", name="Flag ticked").click()
    page.get_by_text("Flagged 60 comparisons.").wait_for()
    assert "q=a" in page.url


def test_lists_update_and_keep_user_input(site: People, page: Any, admin: Any) -> None:
    ids = site.furnish(3, offered=False)
    rows, tick = page.locator(".list details"), page.locator("input[name=id]").first
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))

    def wait() -> set[str]:
        """What the page asks for when it looks for what is new."""
        urls.clear()
        page.clock.run_for(6_000)
        page.evaluate("0")
        return set(urls)

    page.clock.install()
    page.goto(site.url + "/comparisons")
    tick.check()
    tick.blur()
    site.furnish(50, offered=False, prefix="d")
    assert wait() == set()
    tick.uncheck()
    tick.blur()
    assert wait() == {site.url + "/comparisons"}
    until(lambda: rows.count() == 50, "the new comparisons")
    page.get_by_role("link", name="More").click()
    until(lambda: rows.count() == 53, "the rest of the list")
    assert wait() == set()
    page.goto(site.url + "/votes")
    page.get_by_text("No votes yet").wait_for()
    cast(site, admin, ids[0], Choice.A)
    assert wait() == {site.url + "/votes"}
    until(lambda: rows.count() == 1, "the new vote")
    assert page.get_by_text("No votes yet").count() == 0


def test_download_has_no_formula_and_round_trips(site: People, page: Any, admin: Any) -> None:
    ids = site.furnish(6)
    ann = site.add("ann@example.org")
    reasons = ["=1+1", "+cmd|' /C calc'!A0", "-2", "@SUM(A1)", 'two\nlines, "quoted"', "'tis"]
    for c, reason in zip(ids, reasons, strict=True):
        cast(site, ann, c, Choice.B, reason)
    text = page.request.get(site.url + "/votes?format=csv").text()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [unprotect_cell(row["reason"]) for row in reversed(rows)] == reasons
    assert not any(cell.startswith(tuple("=+-@")) for row in rows for cell in row.values())
    for name in ("comparisons", "consensus", "feedback", "progress"):
        answer = page.request.get(site.url + f"/{name}?format=csv")
        assert answer.headers["content-type"].startswith("text/csv"), name


def test_pages_work_without_scripts(site: People, browser: Any) -> None:
    site.furnish(3)
    user = site.add("ada@example.org", Role.ADMIN)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    log_in(page, site, user, "/progress")
    for path in PAGES:
        assert page.goto(site.url + path).status == 200
    page.get_by_role("button", name="Verify the chain").click()
    page.get_by_text("The chain is intact").wait_for()
    page.goto(site.url + "/annotate")
    assert "rlhf vote" in page.inner_text("main")
    context.close()


def test_the_theme_follows_the_system_and_is_remembered(site: People, browser: Any) -> None:
    user = site.add("ada@example.org", Role.ADMIN)
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    log_in(page, site, user, "/progress")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(ground)
    assert light != dark
    page.goto(site.url + "/me")
    assert page.evaluate(ground) == light
    assert page.get_attribute("html", "data-theme") == "light", (
        "by the server: no page flashes in the other theme"
    )
    context.close()


def test_quality_figures_open_their_votes_by_keyboard(site: People, page: Any, admin: Any) -> None:
    holder, careful = (site.add(f"{name}@example.org", name=name) for name in ("Held", "Careful"))
    ids = site.furnish(12, offered=False)
    for i, comparison_id in enumerate(ids):
        for user, choice in ((holder, Choice.TIE), (careful, (Choice.TIE, Choice.A)[i % 2])):
            cast(site, user, comparison_id, choice)
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        page.goto(site.url + "/quality")
        names = page.locator(".list summary").all_inner_texts()
        assert names == ["Held", "Careful"]  # the most doubtful first
        inside = page.locator("table").bounding_box()["width"]
        assert inside <= page.locator("main").bounding_box()["width"]
    link = page.get_by_role("link", name="votes of Held: same side as before")
    assert "11 of 11" in link.inner_text()
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/votes?*mark=same_as_before")
    assert page.locator(".list details").count() == 11
    assert page.get_by_label("Mark").input_value() == "same_as_before"
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(site.url + "/quality")
    page.locator(".list summary", has_text="Held").click()
    page.get_by_role("link", name="Charts by week").click()
    page.wait_for_selector("[data-chart] canvas")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(site.url + "/quality")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
