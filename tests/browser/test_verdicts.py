"""Consensus by the annotator model as a page: in both themes, on a phone, before a fit and
after.
"""

from typing import Any

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.model_consensus import LABELS_FRAME
from tests.browser.people import People
from tests.browser.test_access import faults, opened
from tests.browser.test_pages import cast

BY_MODEL = "/consensus?method=joint_model"


def fit(site: People, p_a: dict[str, tuple[float, float, float]], up_to_seq: int) -> None:
    rows = [
        {
            "comparison_id": c,
            "prompt_id": "p",
            "utility": 0.0,
            "sd": 1.0,
            "p_a": p,
            "p_low": low,
            "p_high": high,
            "n_votes": 2,
        }
        for c, (p, low, high) in p_a.items()
    ]
    stage, part = LABELS_FRAME
    Artefacts(site.settings.frames).write_frame(
        stage, check_frame(pd.DataFrame(rows).assign(max_seq=up_to_seq), SOFT_LABELS), part
    )


@pytest.mark.parametrize("size", ["desktop", "phone", "zoom"])
def test_the_models_consensus_is_read_with_its_interval_and_what_came_since(
    site: People, browser: Any, size: str
) -> None:
    ids = site.furnish(3, overlap=2)
    people = [site.add(f"u{i}@example.org") for i in range(3)]
    for user, choice in zip(people[:2], (Choice.A, Choice.B), strict=True):
        for c in ids:
            cast(site, user, c, choice)
    page = opened(browser, site, size, path="/progress")
    page.goto(site.url + BY_MODEL)
    page.get_by_text("Not fitted yet").wait_for()
    assert "rlhf votes annotators --publish" in page.inner_text("main")
    assert faults(page) == []
    assert page.request.get(site.url + "/consensus.csv?method=joint_model").status == 409
    fit(
        site,
        {ids[0]: (0.83, 0.62, 0.95), ids[1]: (0.55, 0.3, 0.7), ids[2]: (0.7, 0.4, 0.9)},
        up_to_seq=6,
    )
    cast(site, people[2], ids[1], Choice.B)
    page.wait_for_timeout(100)
    page.goto(site.url + BY_MODEL)
    for _ in range(60):
        if page.locator("article.row").count():
            break
        page.wait_for_timeout(250)
        page.reload()
    rows = page.locator("article.row").all_inner_texts()
    assert len(rows) == 2, "the disputed ones"
    assert "55%" in rows[0]
    assert "(30% to 70%)" in rows[0]
    assert "1 of these after the fit" in rows[0]
    assert "70%" in rows[1]
    assert "after the fit" not in rows[1]
    assert "up to number 6. 1 vote was cast since then" in page.inner_text("main")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate(
        "window.innerWidth"
    )
    page.get_by_label("Show").select_option("agreed")
    assert page.get_by_label("Method").input_value() == "joint_model"
    page.get_by_role("button", name="Show").click()
    page.get_by_text("83%").wait_for()
    text = page.request.get(site.url + "/consensus.csv?method=joint_model&state=all").text()
    assert len(text.splitlines()) == 4
    assert "p_low" in text.splitlines()[0]
    page.context.close()
