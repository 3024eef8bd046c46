"""A candidate made by drift is judged by votes cast on the page, approved by a second person,
deployed and rolled back; each act is in the audit chain with its person.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.records import Role, User
from rlhf_pipeline.improve.evaluation.gate import GateParams, decide_promotion, leave_to_people
from rlhf_pipeline.improve.gate_decisions import conclude
from rlhf_pipeline.improve.gate_sessions import advance, open_session
from tests.browser.page_actions import all_sent, log_in, read_card, vote, wait_for_card
from tests.browser.people import People, people
from tests.policy_versions import evaluate, register_versions
from tests.unit.improve.test_gate_sessions import make_samples
from tests.web.test_decisions import ask_people

APPROVAL = "loop:\n  release: {approval: required, checklist: [Read 20 completions]}\n"
CHAMPION = "sky.policy@2"
RUN = "run-of-the-answer"
APPROVE_ANYWAY = """async (key) => {
    const form = {act: "approve", key, reason: "mine", checklist: "Read 20 completions"};
    return (await fetch("/releases", {method: "POST", body: new URLSearchParams(form)})).status;
}"""


@pytest.fixture
def site(tmp_path: Path, migrated: Path) -> Iterator[People]:
    (tmp_path / "rlhf.yaml").write_text(APPROVAL)
    with people(tmp_path / "home", migrated, config=tmp_path / "rlhf.yaml") as running:
        register_versions(running.settings)
        yield running


def open_page(site: People, browser: Any, user: User, path: str) -> Any:
    page = browser.new_context(reduced_motion="reduce").new_page()
    log_in(page, site, user, path)
    return page


def answer_drift(site: People, page: Any, number: int) -> None:
    """A person lets the confirmed change be retrained; its run is what the sensor starts."""
    page.goto(f"{site.url}/decisions/{number}")
    page.get_by_label("Count these votes, and retrain").check()
    page.get_by_label("Reason").fill("both tastes count")
    page.get_by_label("Yes, do this now").check()
    page.get_by_role("button", name="Answer").click()
    page.wait_for_url(f"**/decisions/{number + 1}")
    site.store.training_jobs.mark_submitted(number + 1, 1, RUN)


def ask_about_candidate(site: People) -> None:
    """What the stages of the run leave: a candidate, and people to be asked about it."""
    registry = Workspace(site.settings).registry
    params = GateParams(decided_by="people")
    decision = decide_promotion(evaluate("sky", 3, 0.7), params)
    registered = {"registered": registry.get("policy", 3), "run_id": RUN}
    asking = leave_to_people(decision.model_copy(update=registered))
    open_session(site.store, asking, params, make_samples())


def tick(site: People) -> str:
    """What the gate's sensor does; the verdict so far."""
    progress = advance(site.store, CHAMPION, site.store.database.clock.now())
    assert progress is not None
    return progress.verdict


def vote_on_page(page: Any) -> int:
    """Prefer the candidate's text until no card is left; how many were judged."""
    n_votes = 0
    page.reload()
    while page.is_visible("#desk") or n_votes == 0:
        if n_votes == 0:
            wait_for_card(page)
        _, left, _ = read_card(page)
        vote(page, "1" if left.startswith("New") else "9")
        n_votes += 1
    all_sent(page)
    return n_votes


def press(page: Any, name: str, reason: str) -> None:
    form = page.locator("form", has=page.get_by_role("button", name=name, exact=True))
    form.get_by_role("textbox").fill(reason)
    form.get_by_role("button", name=name, exact=True).click()
    page.wait_for_load_state()


def test_candidate_of_drift_is_judged_approved_deployed_and_rolled_back(
    site: People, browser: Any
) -> None:
    number = ask_people(site.store)
    ann = site.add("ann@example.org", Role.ENGINEER, Role.APPROVER, name="Ann")
    bob = site.add("bob@example.org", Role.APPROVER, name="Bob")
    kim = site.add("kim@example.org", name="Kim")
    asking = open_page(site, browser, ann, "/")
    answer_drift(site, asking, number)
    ask_about_candidate(site)
    voting = open_page(site, browser, kim, "/annotate")
    n_votes = 0
    while tick(site) == "open":
        n_votes += vote_on_page(voting)
    assert len(site.votes(kim)) == n_votes >= 20
    asking.goto(f"{site.url}/evolution")
    assert "Policy 3 waits for people" in asking.inner_text("main")

    decision = conclude(Workspace(site.settings).champions, site.settings)
    assert decision is not None
    assert decision.promoted
    asking.goto(f"{site.url}/releases")
    assert "1 release waits for an approver" in asking.inner_text("h1")
    assert asking.get_by_role("button", name="Approve and deploy").count() == 0
    (request,) = site.store.release_acts.all()
    status = asking.evaluate(APPROVE_ANYWAY, str(request.act_id))
    assert status == 409
    assert site.store.promotions.champion("sky.policy").label == CHAMPION

    approving = open_page(site, browser, bob, "/releases")
    approving.get_by_label("Read 20 completions").check()
    press(approving, "Approve and deploy", "read them")
    assert "Policy 3 is deployed" in approving.inner_text("h1")
    press(approving, "Roll back to version 2", "rude")
    assert "Policy 2 is deployed" in approving.inner_text("h1")

    links = site.store.audit.page(AuditFilter(limit=200))[0]
    acts = {(link.action, link.actor) for link in links}
    assert acts >= {
        ("decision.pending", ann.user_id),
        ("gate_session.open", "pipeline"),
        ("vote.cast", kim.user_id),
        ("gate_session.decided", "pipeline"),
        ("release_act.request", f"run {RUN}"),
        ("release_act.approve", bob.user_id),
        ("model.promote", bob.user_id),
        ("model.roll_back", bob.user_id),
    }, acts
    site.store.audit.verify()
