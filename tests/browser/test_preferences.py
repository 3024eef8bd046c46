"""The page of preferences in Chromium: its views, its filters in the address, no fault."""

from typing import Any

import pytest

from rlhf_pipeline.core.records import NewVote, Role
from tests.browser.page_actions import log_in
from tests.browser.people import People
from tests.browser.test_access import SIZES, faults


def cast(site: People, n: int) -> None:
    """Three people judge each of `n` comparisons."""
    ids = site.publish([("?", "short", "a longer text") for _ in range(n)])
    now = site.store.database.clock.now()
    site.store.votes.cast_many(
        [
            NewVote(
                comparison_id=ids[i],
                annotator_id=who,
                annotator_kind="human",
                choice=choice,
                strength=2 if choice != "tie" else None,
                voted_at=now,
                origin="page",
                idempotency_key=f"{i}/{who}",
            )
            for i in range(n)
            for who, choice in (("ann", "a"), ("bob", "a" if i % 3 else "b"), ("eve", "tie"))
        ]
    )


@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_views_and_filters_are_in_the_url(site: People, browser: Any, size: str) -> None:
    cast(site, 21)
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = context.new_page()
    user = site.add("eve@example.org", Role.ENGINEER, name="Eve")
    log_in(page, site, user, "/preferences")
    page.wait_for_selector("[data-chart] canvas")
    day = site.store.database.clock.now().date().isoformat()
    page.get_by_role("textbox", name="From").fill(day)
    page.wait_for_url(f"**since={day}**")
    page.get_by_role("link", name="by category").click()
    page.wait_for_url(lambda url: "by=category" in url and f"since={day}" in url)
    page.wait_for_selector("[data-chart] canvas")
    page.get_by_text("How strongly a side is preferred, by category").wait_for()
    page.locator("[data-chart] summary").nth(2).click()
    row = page.locator("[data-chart] tbody tr").first
    assert "33.3%" in row.inner_text()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
