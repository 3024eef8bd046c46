"""Evolution and compare in Chromium: from a version to its evaluation page and its prompts."""

from typing import Any

from rlhf_pipeline.records import Role
from tests.browser.hands import log_in
from tests.browser.people import People
from tests.browser.test_access import SIZES, faults
from tests.policy_versions import put_versions


def test_a_version_leads_to_its_evaluation_page_and_to_its_prompts(
    site: People, context: Any
) -> None:
    put_versions(site.store, site.settings.frames, site.settings.project)
    page = context.new_page()
    width, height = SIZES["phone"]
    page.set_viewport_size({"width": width, "height": height})
    log_in(page, site, site.add("eve@example.org", Role.ENGINEER, name="Eve"), "/evolution")
    page.wait_for_selector("[data-chart] canvas")
    table = page.locator("[data-chart] summary")
    table.click()
    first = page.locator("[data-chart] tbody tr").first
    first.get_by_text("version 2", exact=True).wait_for()  # filled when the table opens
    table.click()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("link", name="Evaluation page of policy 2").click()
    assert page.locator("p").evaluate("p => getComputedStyle(p).margin") == "0px", "style applies"
    page.go_back()
    page.get_by_role("link", name="Compare policy 2 with policy 1").click()
    page.wait_for_url("**/compare?a=1&b=2")
    page.get_by_label("Category").select_option("coding")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(lambda url: "category=coding" in url and "a=1" in url)
    assert page.locator("article").first.get_by_text("B scores 2.80 higher").is_visible()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_menu_marks_the_gates_where_the_address_names_them(site: People, context: Any) -> None:
    page = context.new_page()
    log_in(page, site, site.add("eve@example.org", Role.ENGINEER, name="Eve"), "/evolution")
    current = page.locator("#nav [aria-current=page]")
    page.goto(f"{site.url}/evolution#policies")
    assert current.all_inner_texts() == ["Gates"]
    page.evaluate("location.hash = ''")
    page.wait_for_function("document.querySelector('#nav [aria-current]').text === 'Evolution'")
    assert current.all_inner_texts() == ["Evolution"]
