"""Deploying, rolling back and approving over HTTP: who may, what is refused, what the pages say."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_pipeline.client import Client
from rlhf_pipeline.core.api_types.filters import AuditFilter, ReleaseFilter
from rlhf_pipeline.core.config import HomeFacts, ServedCheck
from rlhf_pipeline.core.errors import ConflictingRequest, MissingResource
from rlhf_pipeline.improve.evaluation import GateParams, decide_promotion
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.policy_versions import evaluate, register_versions
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite

SETTINGS = "loop:\n  release: {approval: required, checklist: [read 20 completions]}\n"


@pytest.fixture
def released(web: Web, tmp_path: Path) -> Iterator[Web]:
    """A project with three policies, the second deployed, whose deployments wait for approval."""
    register_versions(web.settings)
    (tmp_path / "rlhf.yaml").write_text(SETTINGS)
    settings = web.settings.model_copy(update={"config": tmp_path / "rlhf.yaml"})
    with WebServer(create_app(settings, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, settings, server.url, web.clock)


def list_words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@on_sqlite
def test_versions_are_listed_deployed_and_rolled_back_by_the_api(released: Web):
    (released.settings.home / "rlhf.yaml").write_text("loop: {}\n")
    approver = released.client("approver")
    models = f"{released.url}/api/models"
    items = approver.get(models, params={"limit": 2}).json()
    assert [(m["id"], m["semver"], m["status"]) for m in items["items"]] == [
        ("demo.policy@3", "1.2.0", "testing"),
        ("demo.policy@2", "1.1.0", "deployed"),
    ]
    (rest,) = approver.get(models, params={"cursor": items["next"]}).json()["items"]
    assert (rest["id"], rest["status"]) == ("demo.policy@1", "deprecated")
    token = approver.headers["Authorization"].removeprefix("Bearer ")
    with Client(released.url, token) as api:
        (candidate,) = api.models(ReleaseFilter(status="testing", name="demo.policy"))
        with pytest.raises(ConflictingRequest, match="not deployed any more"):
            api.deploy(candidate.label, "shorter", expected=1)
        deployed = api.deploy(candidate.label, "shorter", expected=2).promotion
        assert deployed is not None
        assert (deployed.version, deployed.previous_version) == (3, 2)
        with pytest.raises(ConflictingRequest, match="version 3 is deployed now"):
            api.roll_back("demo.policy@2", "rude")
        with pytest.raises(MissingResource, match="registry holds no"):
            api.roll_back("demo.policy@30000000000", "rude")
        back = api.roll_back("demo.policy@3", "rude")
        assert (back.version, back.actor) == (2, approver.user.user_id)
        assert api.roll_back("demo.policy", "still rude").version == 1
        with pytest.raises(ConflictingRequest, match="nothing to roll back to"):
            api.roll_back("demo.policy", "still rude")
    links = released.store.audit.page(AuditFilter(action="model.*"))[0]
    assert [link.action.partition(".")[2] for link in reversed(links)][-3:] == [
        "promote",
        "roll_back",
        "roll_back",
    ]
    body = {"reason": "r"}
    for role in ("engineer", "auditor", "curator"):
        refused = released.client(role).post(f"{models}/demo.policy/rollback", json=body)
        assert refused.status_code == 403
    assert approver.post(f"{models}/demo.policy@9/deploy", json=body).status_code == 404
    assert approver.post(f"{models}/demo.policy/rollback", json={"reason": " "}).status_code == 422
    assert approver.post(f"{models}/other/rollback", json=body).status_code == 404
    assert approver.get(models, params={"status": "served"}).status_code == 422


@on_sqlite
def test_a_second_person_approves_on_the_page(released: Web):
    ann, bob = released.add("approver"), released.add("approver")
    first, second = released.browser(ann), released.browser(bob)
    page = f"{released.url}/releases"
    form = {"model": "demo.policy@3", "reason": "shorter"}
    assert first.post(f"{released.url}/evolution/promote", data=form).status_code == 303
    assert released.store.promotions.champion("demo.policy").version == 2
    assert "release waits for an approver" in list_words(first.get(page).text)
    assert "Approve and deploy" not in list_words(first.get(page).text)
    assert "Approve and deploy" in list_words(second.get(page).text)
    home = list_words(second.get(f"{released.url}/").text)
    assert "a release of policy 3 waits for an approver" in home
    answer = {"key": "1", "act": "approve", "reason": "read them"}
    assert first.post(page, data=answer | {"checklist": "read 20 completions"}).status_code == 409
    unticked = second.post(page, data=answer)
    assert (unticked.status_code, "not ticked" in unticked.text) == (409, True)
    assert second.post(page, data=answer | {"reason": " "}).status_code == 422
    ticked = second.post(page, data=answer | {"checklist": "read 20 completions"})
    assert ticked.status_code == 303
    assert released.store.promotions.champion("demo.policy").version == 3
    auditor = released.client("auditor").get("/releases").json()["items"]
    assert [(event["act"], event["actor"]) for event in auditor[:3]] == [
        ("deploy", bob.user_id),
        ("approve", bob.user_id),
        ("request", ann.user_id),
    ]
    csv = released.browser(released.add("auditor")).get(page, params={"format": "csv"}).text
    assert '[""read 20 completions""]' in csv


@on_sqlite
def test_page_rolls_back_archives_and_restores(released: Web):
    approver = released.browser(released.add("approver"))
    page = f"{released.url}/releases"
    back = {"key": "demo.policy@2", "act": "roll back", "reason": "rude"}
    assert approver.post(page, data=back).status_code == 303
    stale = approver.post(page, data=back)
    assert (stale.status_code, "there is nothing to roll back to" in stale.text) == (409, True)
    for act, state in (("archive", "archived"), ("restore", "deprecated")):
        form = {"key": "demo.policy@2", "act": act, "reason": "old"}
        assert approver.post(page, data=form).status_code == 303
        listed = released.client("auditor").get(f"{released.url}/api/models?status={state}")
        assert [model["id"] for model in listed.json()["items"]] == ["demo.policy@2"]
    assert approver.post(page, data={"act": "sell"}).status_code == 422
    reader = released.browser(released.add("auditor"))
    assert "Roll back to version" not in reader.get(page).text
    assert reader.post(page, data=back).status_code == 403
    today = reader.get(page, params={"day": "2020-01-01"}).text
    assert "Nothing was deployed" in today
    assert "policy" in reader.get(page, params={"day": "9999-12-31"}).text  # the last there is


@on_sqlite
def test_the_card_of_a_release_is_kept_and_auditors_read_it(released: Web):
    (released.settings.home / "rlhf.yaml").write_text("loop: {}\n")
    gate = decide_promotion(evaluate("demo", 3, 0.7), GateParams())
    released.store.gates.record(gate)
    released.client("approver").post(
        f"{released.url}/api/models/demo.policy@3/deploy", json={"reason": "shorter"}
    )
    deployment = released.store.promotions.champion("demo.policy").deployment or {}
    (file,) = (released.settings.home / "frames" / "reports").glob("model_card_*.md")
    assert hashlib.sha256(file.read_bytes()).hexdigest() == deployment["model_card"]
    assert file.name == f"model_card_demo.policy_3_{deployment['model_card'][:12]}.md"
    assert "0.700 (0.650 to 0.750" in file.read_text()

    auditor = released.browser(released.add("auditor"))
    assert "/evolution/3/card" in auditor.get(f"{released.url}/evolution").text
    page = auditor.get(f"{released.url}/evolution/3/card")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src")
    words = list_words(page.text)
    for words_of_page in ("demo.policy@3, 1.2.0", "0.700 (0.650 to 0.750", "shorter", "deployed"):
        assert words_of_page in words
    assert auditor.get(f"{released.url}/evolution/9/card").status_code == 404


@on_sqlite
def test_what_serves_other_than_judged_is_on_home_and_releases(released: Web):
    check = ServedCheck(
        version="demo.policy@2",
        checked_at=released.clock.now(),
        state="differs",
        reason="other weights: by 0.3 nats. It answers as demo.policy@1, a stale version",
        difference=0.3,
        tolerance=0.001,
    )
    browser = released.browser(released.add("engineer"))

    def read(path: str, changed: dict[str, object]) -> str:
        served = check.model_copy(update=changed)
        HomeFacts(project="demo", served=served).write(released.settings.home)
        return list_words(browser.get(f"{released.url}{path}").text)

    assert "what serves is not policy 2 as it was judged: other weights" in read("/", {})
    page = read("/releases", {})
    assert "differs other weights: by 0.3 nats. It answers as policy 1" in page
    assert "is not checkable whether policy 2" in read("/", {"state": "not checkable"})
    assert "rolled back" in read("/", {"rolled_back": True, "version": "demo.policy@3"})
    quiet = read("/", {"state": "as judged"})
    assert "judged" not in quiet
    clean = read("/releases", {"state": "as judged", "difference": 1e-5})
    assert "serves as judged" in clean
    assert "Difference 1e-05 nats, 0.001 tolerated" in clean
    assert "judged" not in read("/", {"version": "demo.policy@1"})
