"""A new curator works through fifty thumbs and corrections: by keys, by ticks and all at once."""

from typing import Any

from rlhf_pipeline.core.records import NewFeedback, Role
from tests.browser.page_actions import log_in, until
from tests.browser.people import People


def send_feedback(site: People) -> None:
    """Five corrections, then 45 thumbs, every fourth of them down."""
    for i in range(50):
        texts = {"prompt": f"question {i}", "completion": f"Open Settings, then Reset {i}."}
        entry = (
            NewFeedback(kind="correction", correction=f"Open Account, then Reset {i}.", **texts)
            if i < 5
            else NewFeedback(kind="thumbs", value=int(i % 4 != 0), **texts)
        )
        site.store.feedback.add(entry, created_by="chat")


def test_a_curator_reviews_fifty_thumbs_and_corrections(site: People, context: Any) -> None:
    send_feedback(site)
    page = context.new_page()
    log_in(page, site, site.add("cora@example.org", Role.CURATOR, name="Cora"), "/feedback")
    page.get_by_text("50 of 50 pending").wait_for()

    page.get_by_label("Kind").select_option("correction")
    page.wait_for_url("**kind=correction*")
    until(lambda: page.locator(".list details").count() == 5, "the corrections")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("details[open] mark.plus").get_by_text("Account").wait_for()
    for n in range(1, 5):
        page.keyboard.press("r" if n == 3 else "a")
        page.get_by_text(f"{50 - n} of 50 pending").wait_for()
        until(lambda: page.locator(".list details[open]").count() == 1, "the next one to open")
    page.keyboard.press("a")
    page.get_by_text("No matching feedback").wait_for()

    page.goto(f"{site.url}/feedback")
    page.get_by_label("Tick: feedback 50").check()
    page.get_by_label("All 45 that match").check()
    page.get_by_role("textbox", name="Tags").fill("checked")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Nothing is pending").wait_for()
    page.get_by_text("Approved 45 items.").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("45 of 50 pending").wait_for()
    counts = site.store.feedback_reviews.count_by_status()
    assert counts == {"pending": 45, "approved": 4, "rejected": 1}
    site.store.audit.verify()
