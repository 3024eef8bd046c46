"""A curator reviews feedback, picks comparisons, mends, freezes and exports a data set."""

import json
from typing import Any

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.records import NewFeedback, Role
from rlhf_pipeline.improve.curated_sets import take_training_pairs
from tests.browser.page_actions import log_in
from tests.browser.people import People
from tests.browser.test_access import faults
from tests.dataset_rows import build_vote_pairs

N_PAIRS, N_FEEDBACK = 4, 50


def fill(site: People) -> None:
    """Pairs that people voted on, two of them alike, and thumbs and corrections."""
    texts = [(f"Where is town {max(i, 1)}?", f"By river {max(i, 1)}.", "No.") for i in range(4)]
    ids = site.publish(texts)
    rows = [
        {
            "comparison_id": ids[i],
            "prompt_id": f"p{i}",
            "prompt": prompt,
            "chosen": a,
            "rejected": b,
        }
        for i, (prompt, a, b) in enumerate(texts)
    ]
    template = build_vote_pairs().iloc[[0]].drop(columns=list(rows[0]))
    pairs = pd.concat([template] * N_PAIRS, ignore_index=True).join(pd.DataFrame(rows))
    Artefacts(site.settings.frames).write_frame("preference_pairs", pairs)
    for i in range(N_FEEDBACK):
        answer = {"prompt": f"How deep is lake {i}?", "completion": f"Lake {i} is shallow."}
        kind = {"kind": "thumbs", "value": 1} if i % 2 else {"kind": "correction"}
        more = {} if i % 2 else {"correction": f"The depth of lake {i} is {i + 2} metres."}
        site.store.feedback.add(NewFeedback(**answer, **kind, **more), created_by="app")


def download(page: Any, name: str) -> list[dict[str, Any]]:
    with page.expect_download() as started:
        page.get_by_role("link", name=name, exact=True).click()
    return [json.loads(line) for line in started.value.path().read_text().splitlines()]


def test_a_curator_makes_a_data_set(site: People, context: Any) -> None:
    fill(site)
    page = context.new_page()
    log_in(page, site, site.add("cara@example.org", Role.CURATOR, name="Cara"), "/feedback")
    page.locator("input[name=id]").first.check()
    page.get_by_label("All 50 that match").check()
    page.get_by_role("button", name="Approve", exact=True).first.click()
    page.get_by_text("0 of 50 pending").wait_for()
    page.goto(f"{site.url}/comparisons")
    boxes = page.locator("input[name=id]")
    for i in range(boxes.count()):
        if "town" in boxes.nth(i).get_attribute("aria-label"):
            boxes.nth(i).check()
    page.get_by_label("Name of a new data set").fill("Support Q4")
    assert faults(page) == []
    page.get_by_role("button", name="Add ticked").click()
    page.get_by_text("4 comparisons picked by hand").click()
    page.get_by_text("Change what it holds").click()
    page.get_by_label("corrections").check()
    page.get_by_label("thumbs").check()
    page.get_by_role("button", name="Save and build").click()
    page.get_by_role("heading", name="of 29 rows").wait_for()
    assert faults(page) == []
    page.get_by_role("row", name="No duplicates").get_by_role("link").click()
    page.locator("input[name=row_id]").check()
    page.get_by_role("button", name="Leave out ticked rows").click()
    page.get_by_role("heading", name="of 28 rows").wait_for()
    page.get_by_role("button", name="Freeze as version 1").click()
    page.get_by_role("heading", name="Versions").wait_for()
    assert {*download(page, "TRL")[0]} == {"prompt", "chosen", "rejected"}
    assert len(download(page, "OpenAI chat")) == 28
    pairs, label = take_training_pairs(site.store, "Support Q4")
    assert (len(pairs), label) == (28, "Support Q4@1")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_text("Change what it holds").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
