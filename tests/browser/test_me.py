"""One's own page: how sure one said one was, drawn beside how right one was."""

from datetime import timedelta
from typing import Any

import pytest

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
    assert page.locator(".curve").count() == 0, "nothing is drawn of no votes"
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
    curve = page.get_by_role("img", name="Share of right votes by stated confidence")
    assert curve.is_visible()
    box = curve.bounding_box()
    assert min(box["width"], box["height"]) > 100
    points = curve.locator("circle")
    drawn = [
        tuple(float(points.nth(i).get_attribute(name)) for name in ("cx", "cy", "r"))
        for i in range(points.count())
    ]
    for (x, y, _), (stated, choices) in zip(drawn, STATED.items(), strict=True):
        assert (x, y) == pytest.approx(
            (10 + 200 * stated, 210 - 200 * choices.count("a") / len(choices))
        )
    assert [radius for *_, radius in drawn] == sorted(radius for *_, radius in drawn), (
        "more votes, larger"
    )
    words = [points.nth(i).locator("title").text_content() for i in range(3)]
    assert words == [
        "Confidence 50%: 1 of 2 right",
        "Confidence 70%: 2 of 3 right",
        "Confidence 90%: 8 of 9 right",
    ]
    rows = page.locator("table").first.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["50%", "2", "50%"],
        ["70%", "3", "67%"],
        ["90%", "9", "89%"],
    ]
