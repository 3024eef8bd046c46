"""The other pages: login, menu, empty states, forms, lists, downloads; by keyboard, in both themes,
for those who may.
"""

from typing import Any

import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote, Role, utc_now
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
    "/releases",
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
        "/releases": "Nothing was deployed",
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


def test_late_refresh_replaces_nothing_that_is_read(site: People, page: Any, admin: Any) -> None:
    site.furnish(53, offered=False)
    rows, url = page.locator(".list details"), site.url + "/comparisons"
    late: list[Any] = []
    page.clock.install()
    page.goto(url)
    page.route(url, lambda route: late.append(route))  # noqa: PLW0108 playwright marks it
    page.clock.run_for(6_000)
    until(lambda: page.evaluate("1") and late, "the refresh")
    page.get_by_role("link", name="More").click()
    until(lambda: rows.count() == 53, "the rest of the list")
    page.evaluate("""window.ended = new Promise(resolve =>
        document.addEventListener("htmx:finally:request", resolve, {once: true})); 0""")
    for route in late:
        route.continue_()
    page.evaluate("window.ended.then(() => 0)")
    assert rows.count() == 53


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
