"""One's own page: how sure one said one was, drawn beside how right one was."""

from datetime import timedelta
from typing import Any

import pytest

from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import NewVote, utc_now
from tests.browser.hands import log_in
from tests.browser.people import People
from tests.web.conftest import ShiftedClock, comparisons

# confidence -> votes on comparisons whose known answer is a
STATED = {0.5: "ab", 0.7: "aab", 0.9: "aaaaaaaab"}


def test_the_curve_of_ones_own_confidence_is_drawn(
    site: People, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = context.new_page()
    ann = site.add("ann@example.org")
    yesterday = utc_now() - timedelta(days=1)
    said = [(stated, choice) for stated, choices in STATED.items() for choice in choices]
    frame = comparisons(len(said), gold="a", day=yesterday.date().isoformat())
    site.store.comparisons.publish(frame, published_at=yesterday)
    log_in(page, site, ann, "/me")
    assert page.locator("[data-chart]").count() == 0, "nothing is drawn of no votes"
    clock = ShiftedClock()
    clock.shift = timedelta(days=-1)  # known answers count from the day after a vote arrived
    monkeypatch.setattr(site.store.database, "clock", clock)
    site.store.votes.cast_many(
        [
            NewVote(
                comparison_id=one,
                annotator_id=ann.user_id,
                annotator_kind="human",
                choice=choice,
                stated_confidence=stated,
                origin="page",
                idempotency_key=one,
                voted_at=yesterday,
            )
            for one, (stated, choice) in zip(frame["comparison_id"], said, strict=True)
        ]
    )
    monkeypatch.undo()
    page.goto(f"{site.url}/me")
    page.wait_for_selector("[data-chart] canvas")
    page.locator("[data-chart] summary").click()
    row = page.locator("[data-chart] tbody tr").last
    row.get_by_text("88.9%").first.wait_for()
    words = row.inner_text()
    low, high = wilson_bounds(8 / 9, 9)
    assert f"{low * 100:.1f}" in words
    assert f"{high * 100:.1f}" in words
