"""The reliability diagram by mouse and by keyboard: a bin leads to exactly its votes; drawings are
seen in both themes and on a phone.
"""

from datetime import UTC, datetime
from typing import Any

import pandas as pd

from rlhf_pipeline.core.frames import PREDICTIONS, check_frame
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    Interval,
    NewVote,
    ReliabilityBin,
    Role,
    utc_now,
)
from tests.browser.page_actions import log_in, until
from tests.browser.people import People
from tests.browser.test_access import SIZES, faults
from tests.policy_versions import put_versions

MODEL = "sky.reward_model@1"
LATER_VOTES = "[data-chart*=later_votes]"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
P = (0.97, 0.93, 0.93, 0.88, 0.83, 0.78, 0.73, 0.68, 0.63, 0.58, 0.52, 0.08)


def furnish(site: People, texts: list[tuple[str, str, str]] | None = None) -> list[str]:
    """Predictions in every bin, four votes on each, one in four against the model; two calibrators
    and an imported report.
    """
    texts = texts or [
        (f"Why is the sky blue? {i}", f"It scatters. {i}", f"The ocean. {i}")
        for i in range(len(P) * 3)
    ]
    ids = site.publish(texts, offered=False)
    comparisons = site.store.comparisons.with_ids(ids).sort_values("position")
    p = [P[i % len(P)] for i in range(len(ids))]
    predicted = comparisons[["day", "comparison_id"]].assign(
        reward_model=MODEL,
        calibrator="platt@1",
        data_hash="d",
        features_hash="f",
        score_a=[2 * probability - 1 for probability in p],
        score_b=0.0,
        p_raw=p,
        p_calibrated=p,
        predicted_at=NOON,
        is_replayed=None,
    )
    site.store.predictions.replay(
        check_frame(pd.DataFrame(predicted)[list(PREDICTIONS.columns)], PREDICTIONS), data_seq=0
    )
    for person in range(4):
        site.store.votes.cast_many(
            [
                NewVote(
                    comparison_id=comparison_id,
                    annotator_id=f"ann{person}",
                    annotator_kind="human",
                    origin="api",
                    voted_at=utc_now(),
                    choice="a" if (p[i] > 0.5) != ((i + person) % 4 == 0) else "b",
                    idempotency_key=f"{comparison_id}/{person}",
                )
                for i, comparison_id in enumerate(ids)
            ]
        )
    for hours, method in enumerate(("temperature", "platt")):
        site.store.calibrations.add(report(hours, method), {"method": method})
    site.store.calibrations.import_reports([report(2, "isotonic")], actor="test")
    return ids


def report(hours: int, method: str) -> CalibrationReport:
    ece, most = 0.1 / (hours + 1), Interval(value=0.74, low=0.7, high=0.78, n=90)
    metrics = CalibrationMetrics(
        n=90,
        accuracy=most,
        binned_gap=Interval(value=ece, low=ece / 2, high=ece * 1.5, n=90),
        brier=most,
        log_loss=most,
        ece=Interval(value=ece / 2, low=0.0, high=ece, n=90),
        slope=Interval(value=0.8, low=0.6, high=1.0, n=90),
    )
    bins = tuple(
        ReliabilityBin(
            low=low,
            high=low + 0.05,
            n=30,
            mean_confidence=low + 0.02,
            accuracy=low,
            accuracy_low=low - 0.1,
            accuracy_high=low + 0.1,
        )
        for low in (0.6, 0.7, 0.8)
    )
    return CalibrationReport(
        reward_model=MODEL,
        calibrator_version=hours + 1,
        method=method,
        params={},
        raw=metrics,
        calibrated=metrics,
        candidates={"none": 0.7},
        raw_bins=bins,
        calibrated_bins=bins,
        noise_ceiling=Interval(value=0.82, low=0.79, high=0.86, n=90),
        data_hash="d",
        n_fit=300,
        fitted_at=NOON.replace(hour=12 + hours),
    )


def opened(browser: Any, site: People, path: str = "/calibration") -> Any:
    width, height = SIZES["desktop"]
    page = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    ).new_page()
    log_in(page, site, site.add("desktop@example.org", Role.ENGINEER, name="Ada"), path)
    return page


def settled(page: Any) -> None:
    """Until the predictions are counted and drawn."""

    def drawn() -> int:
        page.reload()
        page.wait_for_load_state("networkidle")
        return int(page.locator(f"{LATER_VOTES} canvas").count())

    until(drawn, "the drawing of later votes")


def open_bins(page: Any) -> Any:
    """Opens the table of the diagram by keyboard; returns the links of its bins, which the shares
    after calibration have, and their counts.
    """
    settled(page)
    page.locator(f"{LATER_VOTES} summary").press("Enter")
    rows = page.locator(f"{LATER_VOTES} tbody tr", has_text="share predicted right")
    rows.first.wait_for()
    return rows.filter(has=page.locator("a"))


def test_bins_of_drawing_and_table_link_to_their_votes(site: People, browser: Any) -> None:
    furnish(site)
    page = opened(browser, site)
    for i in (0, 9):
        bins = open_bins(page)
        assert bins.count() == 10
        n = int(bins.nth(i).locator("td").last.inner_text())
        bins.nth(i).locator("a").click()
        page.wait_for_url("**/calibration/pairs?*")
        assert page.locator(".list details").count() == n
        tags = page.locator(".list .tag").all_inner_texts()
        assert tags == sorted(tags, key=lambda tag: tag != "predicted wrong")
        page.locator(".list summary").first.click()
        page.get_by_role("link", name="Open").first.click()
        page.wait_for_url("**/comparisons/*")
        page.go_back()
        page.locator("h1 ~ a", has_text="Calibration").click()
        page.wait_for_url("**/calibration*")
    settled(page)
    drawing = page.locator(f"{LATER_VOTES} canvas").first
    width = drawing.bounding_box()["width"]
    drawing.click(position={"x": width * 0.94, "y": 250})  # a bin, far from its point
    page.wait_for_url("**/calibration/pairs?bin=0.9*")
    page.context.close()


def test_full_calibration_pages_pass_axe_and_fit(site: People, browser: Any) -> None:
    furnish(site)
    page = opened(browser, site)
    settled(page)
    for path in (
        "/calibration",
        f"/calibration?model={MODEL}&version=1",
        f"/calibration?model={MODEL}&version=3",
        "/calibration/pairs?bin=0.925",
    ):
        page.goto(site.url + path)
        page.wait_for_load_state("networkidle")
        assert faults(page, is_resized=True) == [], path
        for width, height in (SIZES["desktop"], SIZES["phone"]):
            page.set_viewport_size({"width": width, "height": height})
            # drawings follow a new width a moment later
            until(
                lambda width=width: page.evaluate("document.documentElement.scrollWidth") <= width,
                f"{path} to fit {width} pixels",
            )
    page.context.close()


def test_an_address_with_an_anchor_opens_that_version(site: People, browser: Any) -> None:
    put_versions(site.store, site.settings.frames, site.settings.project)
    page = opened(browser, site, path="/evolution")
    page.get_by_role("link", name="Why").click()
    page.locator("#policy-3 details[open]").wait_for()
    assert "not above 0.5" in page.locator("#policy-3 .aside li").first.inner_text()
    page.context.close()
