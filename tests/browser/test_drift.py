"""Drift in Chromium: from a point to its day, an answer to a decision, and no fault for axe."""

from typing import Any

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.watch.drift.cluster_history import ClusterDay
from tests.browser.page_actions import log_in
from tests.browser.people import People
from tests.browser.test_access import SIZES, faults
from tests.clusters import failing_cluster, write_clusters
from tests.web.test_alerts import look
from tests.web.test_decisions import ask_people
from tests.web.test_drift import write_report

DAYS = ("2026-01-05", "2026-01-06")
CLUSTER = "2026-01-05-A"


def test_drift_pages_pass_axe_and_answer_a_decision(site: People, browser: Any) -> None:
    number = ask_people(site.store)
    look(site, 80)
    for day in DAYS:
        write_report(site, day, "drift" if day == DAYS[-1] else "stable")
    trend = tuple(ClusterDay(day=d, n_prompts=20, error=0.6, is_failing=True) for d in DAYS)
    cluster = failing_cluster(CLUSTER, site.furnish(2)).model_copy(update={"trend": trend})
    write_clusters(Artefacts(site.settings.frames), DAYS[-1], cluster)
    user = site.add("eve@example.org", Role.ENGINEER, name="Eve")
    width, height = SIZES["phone"]
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = context.new_page()
    log_in(page, site, user, "/drift")
    for path in (
        *("/drift", f"/drift/{DAYS[-1]}", "/drift-events", "/clusters", f"/clusters/{CLUSTER}"),
        *("/alerts", "/decisions", f"/decisions/{number}"),
    ):
        page.goto(site.url + path)
        if page.locator("[data-chart]").count():
            page.wait_for_selector("[data-chart] canvas")
            page.locator("[data-chart] summary").press("Enter")
            page.locator("[data-chart] tbody a").last.wait_for()
        assert faults(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.get_by_label("Count these votes, and retrain").check()
    page.get_by_label("Reason").fill("both tastes count")
    page.get_by_role("button", name="Answer").click()
    assert page.url.endswith(f"/decisions/{number}"), "the box that confirms it is not ticked"
    page.get_by_label("Yes, do this now").check()
    page.get_by_role("button", name="Answer").click()
    page.wait_for_url(f"**/decisions/{number + 1}")
    page.goto(f"{site.url}/drift")
    page.wait_for_selector("[data-chart] canvas")
    page.locator("[data-chart] summary").press("Enter")
    page.locator("[data-chart] tbody tr", has_text="drift").last.get_by_role("link").click()
    page.wait_for_url(f"**/drift/{DAYS[-1]}")
    context.close()


def test_an_event_is_listed_without_a_reload(site: People, context: Any) -> None:
    page = context.new_page()
    log_in(page, site, site.add("eve@example.org", Role.ENGINEER, name="Eve"), "/drift-events")
    page.get_by_text("No drift events").wait_for()
    ask_people(site.store)
    event = page.locator("tbody tr", has_text="sequential test")
    event.wait_for()
    assert event.count() == 1
