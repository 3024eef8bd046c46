"""The other pages: login, menu, empty states, forms, lists, downloads; by keyboard, in both themes,
for those who may.
"""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest

from rlhf_pipeline.datasets.formats.csv import unprotect_cell
from rlhf_pipeline.records import AnnotatorKind, Choice, NewFeedback, NewVote, Role, utc_now
from rlhf_pipeline.web.consensus import queries as consensus
from tests.browser.hands import log_in, until
from tests.browser.people import MODELS, People

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
    "/settings",
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


def test_every_page_is_honest_while_there_is_nothing(site: People, page: Any, admin: Any) -> None:
    said = {
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
        "/annotate": "Nothing to judge yet",
    }
    for path, words in said.items():
        page.goto(site.url + path)
        page.get_by_text(words).first.wait_for()
        assert page.locator("h1").count() == 1, path


def test_a_link_logs_in_once_and_only_by_its_button(site: People, context: Any, page: Any) -> None:
    link = site.login_link(site.add("ann@example.org", name="Ann"))
    for _ in range(2):
        page.goto(link)  # a program that looks at links uses none up
    page.get_by_role("button", name="Log in with this link").click()
    page.wait_for_url("**/annotate")
    context.clear_cookies()
    page.goto(link)
    page.get_by_role("button", name="Log in with this link").click()
    page.get_by_text("was already used").wait_for()
    assert "/annotate" not in page.url


def test_a_page_asked_for_without_a_login_is_shown_after_it(
    site: People, context: Any, page: Any
) -> None:
    user = site.add("ann@example.org", Role.CURATOR)
    log_in(page, site, user, "/me")
    page.get_by_label("New password").fill("correct horse battery")
    page.get_by_role("button", name="Set password").click()
    page.get_by_label("Old password").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(site.url + "/guidelines")
    page.get_by_label("E-mail address").fill("ann@example.org")
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("Wrong e-mail address or password").wait_for()
    page.get_by_label("Password").fill("correct horse battery")
    page.keyboard.press("Enter")
    page.wait_for_url("**/guidelines")
    assert page.locator("h1").inner_text() == "Guidelines"


def test_the_menu_shows_what_one_may_and_the_rest_is_refused_in_words(
    site: People, page: Any
) -> None:
    log_in(page, site, site.add("ann@example.org"), "/me")
    shown = [link.inner_text() for link in page.get_by_role("navigation").get_by_role("link").all()]
    assert shown == ["Annotate", "Guidelines", "Me", "Rules"]
    answer = page.goto(site.url + "/users")
    assert answer.status == 403
    assert "Ask an admin" in page.inner_text("main")
    assert page.goto(site.url + "/nowhere").status == 404
    assert page.get_by_role("link", name="Back to the start page").is_visible()


def test_live_figures_say_that_the_server_does_not_respond(
    site: People, page: Any, context: Any, admin: Any
) -> None:
    refresh = "() => globalThis.htmx.trigger(document.querySelector('[data-refresh]'), 'refresh')"
    page.goto(f"{site.url}/alerts")
    outage = page.locator("#outage")
    context.set_offline(True)
    page.evaluate(refresh)
    outage.get_by_text("The server does not respond; the page is loaded again soon.").wait_for()
    context.set_offline(False)
    page.evaluate(refresh)
    outage.wait_for(state="detached")
    context.clear_cookies()
    page.evaluate(refresh)
    outage.get_by_text("You are logged out. Log in and reload the page.").wait_for()
    assert page.locator("[data-refresh]").count() == 2


def test_work_is_offered_and_taken_back_by_forms(site: People, page: Any, admin: Any) -> None:
    site.furnish(5, offered=False)
    page.goto(site.url + "/comparisons")
    page.get_by_text("Offer comparisons to annotators").click()
    page.get_by_label("People per comparison").fill("2")
    page.get_by_role("button", name="Offer", exact=True).click()
    page.get_by_text("Requested 10 judgements of 5 comparisons").wait_for()
    assert site.store.assignments.remaining_work().n_slots == 10
    page.get_by_role("link", name="Explain to a curious").first.click()
    page.get_by_role("button", name="Withdraw open judgements").click()
    page.get_by_text("Withdrew 2 open judgements").wait_for()
    assert site.store.assignments.remaining_work().n_slots == 8


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
    assert len(site.store.assignments.deal(ann.user_id, 5, site.store.rules.latest()[1])) == 3


def test_what_a_form_gets_wrong_is_said_beside_it(site: People, page: Any, admin: Any) -> None:
    page.goto(site.url + "/rules")
    page.get_by_label("Share of repeats").fill("7")
    page.get_by_label("Rubric").fill("clear, Loud")
    page.get_by_role("button", name="Save as version").click()
    page.wait_for_selector("[aria-invalid=true]")
    assert page.input_value("#rule-repeat_share") == "7", "what was written is not lost"
    page.get_by_label("Share of repeats").fill("0.1")
    page.get_by_label("Rubric").fill("clear, kind to readers")
    page.get_by_label("A reason is required").check()
    page.get_by_role("button", name="Save as version").click()
    page.get_by_text("Saved as version").wait_for()
    rules = site.store.rules.latest()[1]
    assert (rules.repeat_share, rules.dimensions, rules.requires_reason) == (
        0.1,
        ("clear", "kind to readers"),
        True,
    )


def test_the_newer_version_of_somebody_else_is_not_overwritten(
    site: People, page: Any, admin: Any
) -> None:
    page.goto(site.url + "/guidelines")
    site.store.guidelines.add("Theirs", after=0, actor="somebody")
    page.get_by_label("Text, in Markdown").fill("Mine, **bold**")
    assert page.inner_text("#preview strong") == "bold"
    page.get_by_role("button", name="Publish version 1").click()
    page.get_by_text("the edit is based on version 0").wait_for()
    assert page.input_value("textarea") == "Mine, **bold**"
    page.get_by_role("button", name="Publish version 2").click()
    page.get_by_text("version 1").first.wait_for()
    assert [one.text for one in site.store.guidelines.all()] == ["Mine, **bold**", "Theirs"]


def test_users_are_added_changed_and_disabled(site: People, page: Any, admin: Any) -> None:
    page.goto(site.url + "/users")
    page.get_by_label("E-mail address").fill("bo@example.org")
    page.locator("form[action='/users']").get_by_label("Name").fill("Bo")
    page.get_by_role("button", name="Add and create login link").click()
    link = page.inner_text("#secret")
    assert link.startswith("http")
    assert "/login?token=rlhf_" in link
    bo = site.store.users.with_email("bo@example.org")
    assert bo is not None
    assert bo.roles == (Role.ANNOTATOR,)
    page.get_by_text("Change Bo").click()
    form = page.locator(f"form[action='/users/{bo.user_id}']")
    form.get_by_label("curator").check()
    form.get_by_role("button", name="Save").click()
    page.get_by_text("Saved Bo").wait_for()
    assert site.store.users.get(bo.user_id).roles == (Role.ANNOTATOR, Role.CURATOR)
    page.get_by_text("Change Bo").click()
    page.get_by_role("button", name="Disable").last.click()
    page.get_by_text("can no longer log in").wait_for()
    assert site.store.users.get(bo.user_id).disabled_at is not None
    page.get_by_text("Change Ada").click()
    page.locator(f"form[action='/users/{admin.user_id}/disable']").get_by_role("button").click()
    page.get_by_text("This is the last admin").wait_for()


def test_a_token_is_shown_once_and_revoked(site: People, page: Any, admin: Any) -> None:
    page.goto(site.url + "/me")
    page.get_by_text("Create a token").click()
    page.locator("form[action='/me/tokens']").get_by_label("Name").fill("script")
    page.get_by_label("metrics.read").check()
    page.get_by_role("button", name="Create", exact=True).click()
    secret = page.inner_text("#secret")
    assert secret.startswith("rlhf_")
    token = site.store.tokens.find(secret)
    assert token is not None
    assert token.scopes == ("metrics.read",)
    page.goto(site.url + "/me")
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke script").click()
    page.get_by_text("revoked").wait_for()
    assert site.store.tokens.find(secret) is None


def test_votes_are_filtered_by_the_address_and_searched(
    site: People, page: Any, admin: Any
) -> None:
    ids = site.furnish(60)
    ann = site.add("ann@example.org", name="Ann Lee")
    for i, c in enumerate(ids):
        cast(site, ann, c, Choice.A, "the ocean is no mirror" if i == 7 else "ok")
    page.goto(site.url + "/votes")
    assert page.locator(".row").count() == 50
    page.get_by_role("link", name="More").click()
    until(lambda: page.locator(".row").count() == 60, "the rest of the list")
    page.get_by_label("Words in reason or prompt").fill("mirror")
    page.keyboard.press("Enter")
    page.wait_for_url("**/votes?q=mirror*")
    assert page.locator(".row").count() == 1
    page.goto(site.url + f"/votes?comparison_id={ids[3]}")
    assert page.locator(".row").count() == 1
    assert "Ann Lee" in page.inner_text(".row")
    assert page.goto(site.url + "/votes?day=tomorrow").status == 422
    assert "day: 'tomorrow' is not a date" in page.inner_text("main")
    page.goto(site.url + "/votes?q=nothing+like+it")
    page.get_by_text("No matching votes").wait_for()


def test_back_leads_to_the_list_as_it_was_left(site: People, page: Any, admin: Any) -> None:
    site.furnish(130, offered=False)
    page.goto(site.url + "/comparisons?q=why")
    rows = page.locator(".row")
    for shown in (100, 130):
        page.get_by_role("link", name="More").click()
        until(lambda shown=shown: rows.count() == shown, "more of the list")
    row = rows.nth(120).get_by_role("link").first
    address = row.get_attribute("href")
    row.click()
    page.wait_for_url(f"**{address}")
    page.go_back()
    until(lambda: rows.count() == 130, "the list as it was left")
    until(lambda: page.evaluate("scrollY") > 1000, "its place")
    assert row.bounding_box()["y"] < 800
    assert (row.get_attribute("href"), page.url) == (address, site.url + "/comparisons?q=why")


def test_one_box_ticks_all_rows_also_those_loaded_later(
    site: People, page: Any, admin: Any
) -> None:
    site.furnish(60, offered=False)
    page.goto(site.url + "/comparisons?q=a")
    page.get_by_label("all shown").check()
    page.get_by_role("link", name="More").click()
    until(lambda: page.locator("input[name=id]:checked").count() == 60, "all rows ticked")
    page.get_by_role("button", name="Flag ticked").click()
    page.get_by_text("Flagged 60 comparisons.").wait_for()
    assert "q=a" in page.url


def test_lists_follow_what_is_new_and_keep_what_a_person_did(
    site: People, page: Any, admin: Any
) -> None:
    ids = site.furnish(3, offered=False)
    rows, tick = page.locator(".row"), page.locator("input[name=id]").first
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def wait() -> set[str]:
        """What the page asks for when it looks for what is new."""
        asked.clear()
        page.clock.run_for(6_000)
        page.evaluate("0")
        return set(asked)

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


def test_a_download_starts_no_formula_and_is_read_as_it_was(
    site: People, page: Any, admin: Any
) -> None:
    ids = site.furnish(6)
    ann = site.add("ann@example.org")
    reasons = ["=1+1", "+cmd|' /C calc'!A0", "-2", "@SUM(A1)", 'two\nlines, "quoted"', "'tis"]
    for c, reason in zip(ids, reasons, strict=True):
        cast(site, ann, c, Choice.B, reason)
    text = page.request.get(site.url + "/votes.csv").text()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [unprotect_cell(row["reason"]) for row in reversed(rows)] == reasons
    assert not any(cell.startswith(tuple("=+-@")) for row in rows for cell in row.values())
    for name in ("comparisons", "consensus", "feedback", "progress"):
        assert page.request.get(site.url + f"/{name}.csv").status == 200


def test_the_progress_page_follows_the_votes(site: People, page: Any, admin: Any) -> None:
    ids = site.furnish(5)
    ann = site.add("ann@example.org", name="Ann Lee")
    cast(site, ann, ids[0], Choice.A)
    page.goto(site.url + "/progress")
    page.get_by_text("live", exact=True).wait_for()
    assert "Ann Lee" in page.inner_text("main table")
    for c in ids[1:3]:
        cast(site, ann, c, Choice.B)
    until(
        lambda: page.locator("main tbody tr td").nth(1).inner_text() == "3",
        "the table without a reload",
    )


def test_disputes_are_the_list_for_adjudication(
    site: People, page: Any, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = site.furnish(3, overlap=3)
    for i, choices in enumerate(
        (
            (Choice.A, Choice.A, Choice.A),
            (Choice.A, Choice.B, Choice.TIE),
            (Choice.TIE, Choice.TIE, Choice.A),
        )
    ):
        user = site.add(f"u{i}@example.org")
        for c, choice in zip(ids, choices, strict=True):
            cast(site, user, c, choice)
    page.goto(site.url + "/consensus")
    n_disputed = page.locator(".row").count()
    page.goto(site.url + "/consensus?state=open")
    page.get_by_text("Every judged comparison has judgements by 2 or more people").wait_for()
    page.goto(site.url + "/consensus?state=all")
    assert page.locator(".row").count() == 3
    assert n_disputed == 1
    assert MODELS[0] not in page.content()
    monkeypatch.setattr(consensus, "LOOKS_AT", 1)  # the newest comparison is not disputed
    page.goto(site.url + "/progress")  # a curator's first page
    page.locator("main .row .tag").wait_for()
    assert page.locator("main .row .tag").all_inner_texts() == ["disputed"]
    assert page.title().startswith("Progress")


def test_feedback_is_read_by_session(site: People, page: Any, admin: Any) -> None:
    for session in ("s1", "s2"):
        new = NewFeedback(kind="thumbs", value=1, prompt="2+2?", completion="4", session_id=session)
        site.store.feedback.add(new, created_by=admin.user_id)
    page.goto(site.url + "/feedback")
    assert page.locator(".row").count() == 2
    page.get_by_role("link", name="s2").click()
    page.wait_for_url("**session_id=s2")
    assert page.locator(".row").count() == 1


def test_the_chain_is_verified_by_a_button(site: People, page: Any, admin: Any) -> None:
    page.goto(site.url + "/audit")
    page.get_by_role("button", name="Verify the chain").click()
    page.get_by_text("The chain is intact").wait_for()
    assert page.url.endswith("/audit"), "put in by htmx, without another page"
    page.goto(site.url + "/audit?action=users.*")
    assert "users.add" in page.inner_text("table")


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


def test_data_quality_leads_from_a_figure_to_its_votes_by_keyboard(
    site: People, page: Any, admin: Any
) -> None:
    held, careful = (site.add(f"{name}@example.org", name=name) for name in ("Held", "Careful"))
    ids = site.furnish(12, offered=False)
    for i, comparison_id in enumerate(ids):
        for user, choice in ((held, Choice.TIE), (careful, (Choice.TIE, Choice.A)[i % 2])):
            cast(site, user, comparison_id, choice)
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        page.goto(site.url + "/quality")
        names = page.locator("tbody th").all_inner_texts()
        assert names == ["Held", "Careful"]  # the most doubtful first
        inside = page.locator("table").bounding_box()["width"]
        assert inside <= page.locator("main").bounding_box()["width"]
    link = page.get_by_role("link", name="votes of Held: same side as before")
    assert "11 of 11" in link.inner_text()
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/votes?*mark=same_as_before")
    assert page.locator("article.row").count() == 11
    assert page.get_by_label("Mark").input_value() == "same_as_before"
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(site.url + "/quality")
    page.get_by_role("link", name="Held", exact=True).click()
    page.wait_for_selector("[data-chart] canvas")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(site.url + "/quality")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_more_users_and_older_tokens_are_a_link_away(site: People, page: Any, admin: Any) -> None:
    for i in range(60):
        site.add(f"user{i:02}@example.org")
    page.goto(f"{site.url}/users")
    assert page.locator("article").count() == 50
    page.get_by_role("link", name="More").click()
    until(lambda: page.locator("article").count() == 61, "the rest")
    for i in range(25):
        site.store.tokens.issue(
            admin.user_id, kind="api", lifetime=timedelta(days=1), actor="test", name=f"token {i}"
        )
    page.goto(f"{site.url}/me")
    assert page.locator("tbody tr").count() == 20
    page.get_by_role("link", name="Older tokens").click()
    until(lambda: page.locator("tbody tr").count() == 5, "the older ones")
    page.get_by_text("token 0", exact=True).wait_for()
