"""Charts and the start page in Chromium: under the content security policy, by keyboard, live,
downloaded, and without a fault that axe finds.
"""

from datetime import date, timedelta
from typing import Any

import pytest

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Choice, Role, utc_now
from tests.browser.page_actions import log_in, until
from tests.browser.people import People
from tests.browser.test_pages import cast

FIRST = date(2026, 1, 1)
N_DAYS = 40
NASTY = "<img src=x onerror=alert(1)>"


def put(site: People, *days: int, accuracy: float = 0.7) -> None:
    """A model of a hostile name predicts from day 20 on; the ceiling is unknown on day 5."""
    figures = {"model.accuracy": accuracy, "model.accuracy_ceiling": 0.82, "model.ece": 0.04}
    points = [
        MetricPoint(
            day=FIRST + timedelta(days=day),
            name=name,
            labels={"reward_model": f"{NASTY}@2" if day >= 20 else "sky.reward_model@1"},
            n=1200 + day,
            value=value,
            low=value - 0.03,
            high=value + 0.03,
            measured_at=utc_now(),
        )
        for day in days
        for name, value in figures.items()
        if (name, day) != ("model.accuracy_ceiling", 5)
    ]
    points += [
        MetricPoint(
            day=FIRST + timedelta(days=day),
            name="drift.verdict",
            labels={"space": space},
            n=100,
            value=2 if day == 12 else 0,
            measured_at=utc_now(),
        )
        for day in days
        for space in ("overall", "errors")
    ]
    site.store.metric_points.put(points)


@pytest.fixture
def page(site: People, context: Any) -> Any:
    put(site, *range(N_DAYS))
    page = context.new_page()
    log_in(page, site, site.add("eve@example.org", Role.ENGINEER, name="Eve"), "/alignment")
    page.wait_for_selector("[data-chart] canvas")
    return page


def first_chart(page: Any) -> Any:
    return page.locator("[data-chart]").first


def open_table(page: Any) -> Any:
    first_chart(page).locator("summary").press("Enter")
    rows = first_chart(page).locator("tbody tr")
    rows.first.wait_for()
    return rows


def test_chart_has_drawing_legend_and_table(page: Any) -> None:
    drawing = first_chart(page).locator(".chart-drawing")
    assert drawing.get_attribute("role") == "img"
    assert drawing.get_attribute("aria-label").startswith("Accuracy beside its noise ceiling")
    accuracy = page.get_by_role("button", name="accuracy", exact=True)
    accuracy.press("Enter")
    assert accuracy.get_attribute("aria-pressed") == "false"
    rows = open_table(page)
    assert rows.count() == 3 * N_DAYS - 1 + 2 * N_DAYS + 1
    row = first_chart(page).locator("tbody tr", has_text="accuracy2026-01-01").last
    assert row.locator("td").all_inner_texts()[2:] == [
        *("2026-01-01", "70.0%", "67.0%", "73.0%", "1,200")
    ]


def test_a_phone_shows_the_name_and_unit_of_each_axis(site: People, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("[data-chart] canvas")
    panels = first_chart(page).locator(".chart-panel")
    names = [panel.locator("small").inner_text() for panel in panels.all()]
    assert names == ["share predicted right (%)", "ECE (%)", "space"]
    widths = panels.evaluate_all("all => all.map((one) => [one.scrollWidth, one.clientWidth])")
    assert all(needed <= room for needed, room in widths)


def test_filters_and_zoom_are_in_the_url(site: People, page: Any) -> None:
    page.get_by_role("textbox", name="From").fill("2026-01-11")
    page.wait_for_url("**since=2026-01-11**")
    page.wait_for_selector("[data-chart] canvas")
    assert open_table(page).count() == 5 * (N_DAYS - 10) + 1
    assert not page.get_by_role("button", name="Reset zoom").is_visible()
    drawing = first_chart(page).locator(".chart-drawing canvas").first
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_url("**zoom=2026-01-**")
    zoomed = page.url
    page.goto(zoomed)
    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_url(lambda url: "zoom" not in url and "since=2026-01-11" in url)


def test_chart_updates_and_shows_a_silent_server(site: People, page: Any, context: Any) -> None:
    page.clock.install()
    page.reload()
    page.wait_for_selector("[data-chart] canvas")
    rows = open_table(page)
    n_rows = rows.count()
    put(site, N_DAYS, accuracy=0.65)
    page.clock.run_for(9_500)
    until(lambda: rows.count() == n_rows + 5, "new rows")
    context.route("**/api/v1/charts/**", lambda route: route.abort())
    page.clock.run_for(9_500)
    first_chart(page).get_by_text("The server does not respond").wait_for()
    assert first_chart(page).locator(".chart-drawing canvas").first.is_visible(), (
        "the last drawing stays"
    )


def test_vote_appears_on_the_start_page_without_a_reload(site: People, page: Any) -> None:
    ids = site.furnish(2)
    ann = site.add("ann@example.org")
    page.goto(site.url)
    page.get_by_text("What to do next").wait_for()
    page.get_by_text("no daemon is running").wait_for()
    cast(site, ann, ids[0], Choice.A)
    page.locator("a.figure", has_text="votes today").filter(has_text="1").wait_for()
    page.wait_for_selector("[data-chart] canvas")
    page.locator("a.figure", has_text="votes today").focus()
    cast(site, ann, ids[1], Choice.B)
    page.locator("a.figure", has_text="votes today").filter(has_text="2").wait_for()
    assert page.evaluate("document.activeElement.className") == "figure", "the focus stays"
    assert page.locator("[data-chart] canvas").count() == 1
