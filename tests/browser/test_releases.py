"""Each button of a release, and who sees it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.records import Role
from tests.browser.page_actions import log_in
from tests.browser.people import People, people
from tests.policy_versions import register_versions

APPROVAL = "loop:\n  release: {approval: required, checklist: [Read 20 completions]}\n"


@pytest.fixture
def site(tmp_path: Path, migrated: Path) -> Iterator[People]:
    """A project whose deployments wait for approval."""
    (tmp_path / "rlhf.yaml").write_text(APPROVAL)
    with people(tmp_path / "home", migrated, config=tmp_path / "rlhf.yaml") as running:
        register_versions(running.settings)
        yield running


def test_buttons_of_a_release_and_their_permission(site: People, browser: Any) -> None:
    def open_page(name: str, role: Role, path: str) -> Any:
        page = browser.new_context(reduced_motion="reduce").new_page()
        log_in(page, site, site.add(f"{name}@example.org", role, name=name), path)
        return page

    def press(page: Any, name: str, reason: str = "for a test") -> None:
        form = page.locator("form", has=page.get_by_role("button", name=name, exact=True))
        form.get_by_role("textbox").fill(reason)
        form.get_by_role("button", name=name, exact=True).click()
        page.wait_for_load_state()

    ann = open_page("Ann", Role.APPROVER, "/evolution")
    ann.get_by_text("Policy 1", exact=True).click()
    press(ann, "Serve policy 1")
    assert "Policy 1 waits for another approver." in ann.inner_text("body")
    ann.goto(f"{site.url}/releases")
    assert ann.get_by_role("button", name="Approve and deploy").count() == 0
    press(ann, "Reject", "asked too early")
    assert "Policy 1 is rejected." in ann.inner_text("body")
    ann.goto(f"{site.url}/evolution")
    ann.get_by_text("Policy 1", exact=True).click()
    press(ann, "Serve policy 1")

    eve = open_page("Eve", Role.AUDITOR, "/releases")
    assert "1 release waits for an approver" in eve.inner_text("h1")
    assert "Read 20 completions" in eve.inner_text("main")
    assert eve.locator("main form[method=post]").count() == 0

    bob = open_page("Bob", Role.APPROVER, "/releases")
    bob.get_by_label("Read 20 completions").check()
    press(bob, "Approve and deploy", "read them")
    assert "Policy 1 is deployed" in bob.inner_text("h1")
    press(bob, "Roll back to version 2", "rude")
    assert "Policy 2 is deployed" in bob.inner_text("h1")
    for act, tag in (("Archive", True), ("Restore", False)):
        bob.goto(f"{site.url}/evolution")
        bob.get_by_text("Policy 1", exact=True).click()
        bob.get_by_text(f"{act} it", exact=True).click()
        press(bob, f"{act} policy 1", "old")
        bob.goto(f"{site.url}/evolution")
        assert (bob.get_by_text("archived", exact=True).count() > 0) is tag
    assert [act.act for act in site.store.release_acts.all()] == [
        "request",
        "reject",
        "request",
        "approve",
        "archive",
        "restore",
    ]
