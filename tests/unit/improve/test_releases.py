"""Deploying with and without a second person, rolling back, and what an interruption leaves."""

import shutil

import pytest

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ModelNotFound, NotFound, ReleaseConflict
from rlhf_pipeline.core.records import GateDecision
from rlhf_pipeline.core.releases import ReleaseAct, find_deployed
from rlhf_pipeline.improve.gate_decisions import carry_out
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.learn.champions import Champions, Release
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store

APPROVAL = "loop:\n  release:\n    approval: required\n    checklist: [ethics, rights]\n"


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A home with four policies in its registry, none deployed."""
    home = tmp_path_factory.mktemp("registered")
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "artifacts", "demo")
    for number in range(1, 5):
        folder = home / str(number)
        folder.mkdir()
        (folder / "weights").write_text(str(number))
        parent = f"demo.policy@{number - 1}" if number > 1 else None
        with registry.run("made", run_key=str(number)) as run:
            registry.register("policy", folder, run=run, parent=parent)
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
    return home


@pytest.fixture
def releases(registered, tmp_path):
    for file in registered.glob("*.db*"):  # with the journals of SQLite
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "rlhf.yaml").write_text("loop: {}\n")
    settings = Settings(home=tmp_path, project="demo", config=tmp_path / "rlhf.yaml")
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", registered / "artifacts", "demo")
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        yield Releases(Champions(store, registry, tmp_path / "cache"), settings)


def deploy(releases, *versions):
    for version in versions:
        releases.deploy(f"demo.policy@{version}", reason="better", actor="ann")


def require_approval(releases):
    (releases.settings.home / "rlhf.yaml").write_text(APPROVAL)
    return Releases(releases.champions, releases.settings)


def ask(releases, version, actor="ann"):
    return releases.deploy(f"demo.policy@{version}", reason="better", actor=actor)


def champion(releases):
    return releases.champions.policy().version


def list_acts(releases):
    links = releases.champions.store.audit.page(AuditFilter())[0]
    return [(link.action, link.actor) for link in reversed(links)]


def test_roll_back_names_actor_reason_from_and_to(releases):
    deploy(releases, 1, 2, 3)
    promotion = releases.roll_back("demo.policy", reason="rude", actor="bob")
    assert (promotion.version, promotion.previous_version) == (2, 3)
    assert (promotion.actor, promotion.reason, promotion.rolls_back) == ("bob", "rude", True)
    assert promotion.deployment["backend"] == releases.settings.completion_backend
    assert releases.champions.registry.aliases("policy") == {2: ("champion",), 3: ("previous",)}
    assert list_acts(releases)[-1] == ("model.roll_back", "bob")
    assert releases.roll_back("demo.policy", reason="also", actor="bob").version == 1
    with pytest.raises(ReleaseConflict, match="nothing to roll back to"):
        releases.roll_back("demo.policy", reason="more", actor="bob")


def test_an_interrupted_roll_back_is_finished_by_the_next_reader(releases, monkeypatch):
    deploy(releases, 1, 2)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Registry, "follow", die)
        with pytest.raises(KeyboardInterrupt):
            releases.roll_back("demo.policy", reason="rude", actor="bob")
    assert releases.champions.registry.get("policy", "champion").version == 2
    assert champion(releases) == 1
    assert releases.champions.registry.get("policy", "champion").version == 1


def test_of_two_promotions_at_once_one_wins(releases):
    deploy(releases, 1)
    deploy(releases, 2)
    late = releases.champions.find("demo.policy@3")[1]
    with pytest.raises(ReleaseConflict, match="version 2 is deployed now"):
        releases.champions.promote(
            "policy", late, reason="r", actor="a", release=Release(expected=1)
        )
    with pytest.raises(ReleaseConflict, match="not deployed any more"):
        releases.deploy("demo.policy@3", reason="r", actor="a", expected=1)
    with pytest.raises(ReleaseConflict, match="version 2 is deployed now"):
        releases.roll_back("demo.policy", reason="r", actor="a", expected=1)
    assert champion(releases) == 2


def test_archived_version_is_not_deployed_until_restored(releases):
    deploy(releases, 1, 2)
    with pytest.raises(ReleaseConflict, match="is deployed"):
        releases.archive("demo.policy@2", reason="old", actor="ann")
    releases.archive("demo.policy@1", reason="old", actor="ann")
    with pytest.raises(ReleaseConflict, match="archived already"):
        releases.archive("demo.policy@1", reason="old", actor="ann")
    with pytest.raises(ReleaseConflict, match="--restore"):
        ask(releases, 1)
    with pytest.raises(ReleaseConflict, match="nothing to roll back"):
        releases.roll_back("demo.policy", reason="r", actor="a")
    states = [model.state for model in releases.list_models()]
    assert states == ["archived", "deployed", "candidate", "candidate"]
    releases.archive("demo.policy@1", reason="needed", actor="ann", is_restored=True)
    assert ask(releases, 1).version == 1
    semvers = [model.semver for model in releases.list_models()]
    assert semvers == ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]


def test_release_waits_for_a_second_person(releases):
    deploy(releases, 1)
    releases = require_approval(releases)
    request = ask(releases, 2)
    assert isinstance(request, ReleaseAct)
    assert ask(releases, 2) == request, "asked once"
    assert champion(releases) == 1
    number = request.act_id
    with pytest.raises(ReleaseConflict, match="second person"):
        releases.approve(number, reason="ok", actor="ann", ticked=["ethics", "rights"])
    with pytest.raises(ReleaseConflict, match=r"1 of 2 lines .* rights"):
        releases.approve(number, reason="ok", actor="bob", ticked=["ethics"])
    promotion = releases.approve(number, reason="ok", actor="bob", ticked=["ethics", "rights"])
    assert (promotion.version, promotion.actor, promotion.request_id) == (2, "bob", number)
    assert champion(releases) == 2
    approved = releases.champions.store.release_acts.all()[-1]
    assert (approved.act, approved.actor, approved.checklist) == (
        "approve",
        "bob",
        ("ethics", "rights"),
    )
    assert list_acts(releases)[-3:] == [
        ("release_act.request", "ann"),
        ("release_act.approve", "bob"),
        ("model.promote", "bob"),
    ]
    with pytest.raises(ReleaseConflict, match="waits no more"):
        releases.approve(number, reason="ok", actor="eve", ticked=["ethics", "rights"])
    with pytest.raises(NotFound, match="no release request 99"):
        releases.reject(99, reason="r", actor="bob")


def test_another_deployment_voids_a_request(releases):
    deploy(releases, 1)
    releases = require_approval(releases)
    second, third = ask(releases, 2), ask(releases, 3)
    releases.approve(third.act_id, reason="ok", actor="bob", ticked=["ethics", "rights"])
    with pytest.raises(ReleaseConflict, match="waits no more"):
        releases.approve(second.act_id, reason="ok", actor="bob", ticked=["ethics", "rights"])
    releases.roll_back("demo.policy", reason="rude", actor="ann")
    assert releases.list_waiting() == [], "not even against the version that it was judged against"


def test_author_of_the_training_does_not_approve_it(releases):
    deploy(releases, 1)
    store = releases.champions.store
    now = store.database.clock.now()
    store.decisions.fire_by_hand("a test", actor="eve", now=now, run_id="run-2")
    releases = require_approval(releases)
    passed = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=True,
        checks=(),
        run_id="run-2",
        registered=releases.champions.find("demo.policy@2")[1],
    )
    assert carry_out(passed, releases.champions, releases.settings).not_served is None
    (request,) = releases.list_waiting()
    assert (request.actor, champion(releases)) == ("run run-2", 1)
    with pytest.raises(ReleaseConflict, match="second person"):
        releases.approve(request.act_id, reason="r", actor="eve", ticked=["ethics", "rights"])
    rejected = releases.reject(request.act_id, reason="rude", actor="bob")
    assert (rejected.act, rejected.request_id) == ("reject", request.act_id)
    assert (releases.list_waiting(), champion(releases)) == ([], 1)


def test_an_interrupted_approval_is_kept_whole_or_not_at_all(releases, monkeypatch):
    deploy(releases, 1)
    releases = require_approval(releases)
    request = ask(releases, 2)
    store = releases.champions.store
    ticked = ["ethics", "rights"]

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr("rlhf_pipeline.store.audit.Ledger.write", die)
        with pytest.raises(KeyboardInterrupt):
            releases.approve(request.act_id, reason="ok", actor="bob", ticked=ticked)
    assert releases.list_waiting() == [request]
    assert store.promotions.champion("demo.policy").version == 1
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Registry, "follow", die)
        with pytest.raises(KeyboardInterrupt):
            releases.approve(request.act_id, reason="ok", actor="bob", ticked=ticked)
    assert releases.list_waiting() == []
    assert champion(releases) == 2
    assert releases.champions.registry.get("policy", "champion").version == 2


def test_history_says_what_was_deployed_at_a_time(releases):
    deploy(releases, 1, 2)
    releases.roll_back("demo.policy", reason="rude", actor="bob")
    events = releases.list_events()
    assert [(event.act, event.model, event.replaces) for event in events] == [
        ("deploy", "demo.policy@1", None),
        ("deploy", "demo.policy@2", "demo.policy@1"),
        ("roll back", "demo.policy@1", "demo.policy@2"),
    ]
    assert find_deployed(events, events[1].at) == [events[1]]
    assert find_deployed(events, events[2].at) == [events[2]]


def test_unknown_models_are_refused(releases):
    with pytest.raises(ModelNotFound, match=r"There are: demo\.policy, demo\.reward_model"):
        releases.roll_back("demo.other", reason="r", actor="a")
    with pytest.raises(ModelNotFound, match=r"demo\.policy@9"):
        releases.archive("demo.policy@9", reason="r", actor="a")
