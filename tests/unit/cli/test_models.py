"""What `rlhf models` shows, and a champion moved by hand."""

import json
import shutil

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ModelHashMismatch,
    ModelNotFound,
    ModelRefused,
    ReleaseConflict,
)
from rlhf_pipeline.core.records import CalibrationReport, GateCheck, GateDecision, Refusal, Role
from rlhf_pipeline.core.releases import ReleaseEvent
from rlhf_pipeline.generate.policy import load_policy
from rlhf_pipeline.learn.calibration import calibration_metrics
from tests.foreign_policies import build_foreign_policy


@pytest.fixture(scope="module")
def promoted(initialised, tiny_policy, tmp_path_factory):
    """A project whose second policy was promoted after its first."""
    folder = tmp_path_factory.mktemp("promoted")
    home, other = folder / "home", folder / "other"
    shutil.copytree(initialised, home)
    shutil.copytree(tiny_policy, other)
    (other / "note.txt").write_text("another one")
    champions = world(home).champions
    with champions.registry.run("second") as run:
        second = champions.registry.register(
            "policy",
            other,
            run=run,
            metrics={"reward_accuracy": 0.75},
            parent="demo.policy@1",
            data_seq=40,
        )
    champions.promote("policy", second, reason="won", actor="test")
    return home


@pytest.fixture
def home(promoted, tmp_path):
    return shutil.copytree(promoted, tmp_path / "home")


def world(home):
    return Workspace(Settings(home=home))


def history(home):
    return [
        (p.version, p.previous_version, p.reason)
        for p in world(home).store.promotions.history("demo.policy")
    ]


FIRST = (1, None, "first policy of the project")


@pytest.mark.parametrize("target", ["demo.policy@1", "demo.policy@previous"])
def test_earlier_champion_is_restored_in_registry_and_history(rlhf, home, target):
    output = rlhf("models", "promote", target, "--reason", "answers got worse", home=home).output
    assert output == "demo.policy@1 is champion, before it demo.policy@2\n"
    assert world(home).champions.policy().label == "demo.policy@1"
    assert world(home).registry.get("policy", "previous").version == 2
    assert history(home) == [FIRST, (2, 1, "won"), (1, 2, "answers got worse")]
    champion = world(home).store.promotions.champion("demo.policy")
    assert (champion.version, champion.actor) == (1, "rlhf models promote")
    listed = rlhf("models", "list", home=home).output
    assert [
        [cell.strip() for cell in line.split("│")[2:5]]
        for line in listed.splitlines()
        if line.startswith("│ demo.policy@1 ")
    ] == [["1.0.0", "deployed", "champion"]]
    assert "reward_accuracy 0.75" in listed


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("demo.policy@7", r"'demo\.policy@7'.*demo\.policy@1"),
        ("demo.policy@99999999999999999999", "demo.policy@1"),
        ("demo.policy@0", "demo.policy@1"),
        ("demo.policy@-1", "demo.policy@1"),
        ("demo.policy@", "demo.policy@1"),
        ("demo.policy", "demo.policy@1"),
        ("demo.reward_model@1", "There are: none"),
        ("other.policy@1", r"'other\.policy'.*demo\.policy, demo\.reward_model"),
        ("", "demo.policy, demo.reward_model"),
    ],
)
def test_unknown_version_is_named_with_the_existing_ones(rlhf, initialised, target, named):
    with pytest.raises(ModelNotFound, match=named):
        rlhf("models", "promote", target, "--reason", "because")
    assert world(initialised).champions.policy().label == "demo.policy@1"


def test_version_with_changed_files_is_not_promoted(rlhf, home):
    registry = world(home).registry
    (registry.fetch_folder(registry.get("policy", 1), home) / "config.json").write_text("{}")
    with pytest.raises(ModelHashMismatch, match=r"demo\.policy@1"):
        rlhf("models", "promote", "demo.policy@1", "--reason", "because", home=home)
    assert world(home).champions.policy().label == "demo.policy@2"
    assert len(history(home)) == 2


@pytest.fixture
def refused(rlhf, home, tiny_policy):
    """A project with a reward model that may not become champion."""
    champions = world(home).champions
    with champions.registry.run("weak") as run:
        weak = champions.registry.register("reward_model", tiny_policy, run=run, data_seq=40)
    measured = calibration_metrics([0.7, 0.6] * 20, [1.0, 0.0, 1.0, 1.0] * 10)
    report = CalibrationReport(
        reward_model=weak.label,
        method="none",
        params={},
        raw=measured,
        calibrated=measured,
        candidates={},
        data_hash="h",
        n_fit=9,
        refusal=Refusal(cause="accuracy 0.558 is below 0.913", data_seq=40),
    )
    champions.store.calibrations.add(report, {"method": "none"})
    return weak.label


def test_refused_reward_model_is_promoted_by_force_only(rlhf, home, refused):
    with pytest.raises(
        ModelRefused,
        match=r"demo\.reward_model@1 was refused: accuracy 0\.558 is below 0\.913\. .*--force",
    ):
        rlhf("models", "promote", refused, "--reason", "we know why", home=home)
    assert world(home).registry.get("reward_model", "champion") is None
    assert (
        "demo.reward_model@1 is champion"
        in rlhf(
            "models", "promote", refused, "--force", "--reason", "we know why", home=home
        ).output
    )
    (promotion,) = world(home).store.promotions.history("demo.reward_model")
    assert promotion.reason == "we know why (forced, although accuracy 0.558 is below 0.913)"
    assert world(home).champions.refusal(refused) is None


def test_release_waits_for_an_approver_and_is_rolled_back(rlhf, home, monkeypatch):
    monkeypatch.setenv("RLHF_CONFIG", str(home / "rlhf.yaml"))
    (home / "rlhf.yaml").write_text("loop: {release: {approval: required, checklist: [ethics]}}\n")
    users = world(home).store.users
    for email, role in (("ann@x.org", Role.ADMIN), ("bob@x.org", Role.APPROVER)):
        users.add(email=email, name="", roles=[role], actor="test")
    users.add(email="eve@x.org", name="", roles=[Role.ENGINEER], actor="test")
    ask = ("models", "promote", "demo.policy@1", "--reason", "shorter")
    with pytest.raises(ConfigurationError, match="add --by EMAIL"):
        rlhf(*ask, home=home)
    with pytest.raises(ConfigurationError, match=r"eve@x\.org has no permission models\.promote"):
        rlhf(*ask, "--by", "eve@x.org", home=home)
    output = rlhf(*ask, "--by", "ann@x.org", home=home).output
    assert output == "demo.policy@1 waits for an approver: `rlhf models approve 1`\n"
    assert "ethics" in rlhf("models", "requests", home=home).output
    approve = ("models", "approve", "1", "--reason", "read", "--checked", "ethics", "--by")
    with pytest.raises(ReleaseConflict, match="second person"):
        rlhf(*approve, "ann@x.org", home=home)
    output = rlhf(*approve, "bob@x.org", home=home).output
    assert output == "demo.policy@1 is champion, before it demo.policy@2\n"
    back = rlhf("models", "rollback", "--reason", "rude", home=home).output
    assert back == "demo.policy@2 is champion, before it demo.policy@1\n"
    events = json.loads(rlhf("models", "history", "--json", home=home).output)
    assert [event["act"] for event in events[2:]] == ["request", "approve", "deploy", "roll back"]
    at = rlhf("models", "history", "--at", "2020-01-01", home=home).output
    assert at == "Nothing was deployed.\n"


def test_model_card_is_printed_or_written_as_a_page(rlhf, home, tmp_path):
    printed = rlhf("models", "card", "demo.policy@champion", home=home).output
    assert printed.startswith("# Model card: demo.policy@2\n")
    assert "deploy by test: won" in printed
    page = tmp_path / "card.html"
    rlhf("models", "card", "demo.policy@2", "--html", "--out", str(page), home=home)
    assert "deploy by test: won" in page.read_text()
    with pytest.raises(ModelNotFound, match="holds no"):
        rlhf("models", "card", "demo.reward_model@1", home=home)


def test_history_of_releases_is_printed_as_csv(rlhf, home):
    header, *rows = rlhf("models", "history", "--csv", home=home).output.splitlines()
    assert header == ",".join(ReleaseEvent.model_fields)
    assert [row.split(",")[1:6] for row in rows] == [
        ["deploy", "demo.policy@1", "", "pipeline", "first policy of the project"],
        ["deploy", "demo.policy@2", "demo.policy@1", "test", "won"],
    ]


def test_exported_policy_loads_with_transformers(rlhf, home, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "out" / "policy"
    output = rlhf("models", "export", "demo.policy@champion", str(folder), home=home).output
    assert "demo.policy@2 in" in output
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ConfigurationError, match="is not empty"):
        rlhf("models", "export", "demo.policy@1", str(folder), home=home)


def test_registered_policy_waits_for_its_promotion(rlhf, home, tiny_policy, tmp_path):
    changed = tmp_path / "mine"
    shutil.copytree(tiny_policy, changed)
    config = changed / "generation_config.json"
    config.write_text(config.read_text().replace("{", '{"top_k": 7,', 1))
    why = "tuned elsewhere"
    output = rlhf("models", "register", "policy", str(changed), "--reason", why, home=home).output
    assert "demo.policy@3 is registered" in output
    assert world(home).champions.policy().label == "demo.policy@2"


def test_notices_of_a_foreign_policy_stand_on_its_version(rlhf, home, tmp_path):
    HomeFacts(project="demo").write(home)
    source = build_foreign_policy("chatml_other_end", tmp_path / "theirs")
    output = rlhf("models", "register", "policy", str(source), "--reason", "x", home=home).output
    notice = "its template ends an answer with <|im_end|>, but generation stopped at <|endoftext|>"
    assert f"Notice: {notice}" in " ".join(output.split())
    version = world(home).champions.find("demo.policy@3")[1]
    assert version.params["notices"][0].startswith(notice)
    policy = load_policy(world(home).champions.policy_folder(version))
    assert set(policy.end_ids()) < set(policy.stop_ids())
    assert HomeFacts.load(home).policy_notices["demo.policy@3"][0].startswith(notice)


def test_a_policy_that_the_gate_refused_is_promoted_by_force_only(rlhf, home, tiny_policy):
    champions = world(home).champions
    with champions.registry.run("third") as run:
        third = champions.registry.register("policy", tiny_policy, run=run, parent="demo.policy@2")
    check = GateCheck(name="mean_length", passed=False, reason="A change of +28%.")
    champions.store.gates.record(
        GateDecision(
            candidate=third.label, champion="demo.policy@2", promoted=False, checks=(check,)
        )
    )
    arguments = ("models", "promote", third.label, "--reason", "steps are wanted")
    with pytest.raises(ModelRefused, match=r"was refused: A change of \+28%\. .*--force"):
        rlhf(*arguments, home=home)
    rlhf(*arguments, "--force", home=home)
    reasons = [reason for _, _, reason in history(home)]
    assert reasons[-1] == "steps are wanted (forced, although A change of +28%)"
    rlhf("models", "promote", "demo.policy@2", "--reason", "back", home=home)
    rlhf("models", "promote", third.label, "--reason", "it has served before", home=home)
