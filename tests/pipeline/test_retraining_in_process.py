"""From drift events to a gated candidate, all in this process: one change, one decision, one run,
every step on record.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.core.curation import DatasetQuery, VoteQuery
from rlhf_pipeline.core.errors import ModelHashMismatch
from rlhf_pipeline.core.protocols import ignore_progress
from rlhf_pipeline.core.records import (
    DriftEvent,
    Evaluation,
    GateDecision,
    ModelVersion,
    folder_hash,
)
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, read_base_hash
from rlhf_pipeline.generate.policy import load_policy
from rlhf_pipeline.improve import curated_sets
from rlhf_pipeline.improve.canaries import draw_canaries
from rlhf_pipeline.improve.evaluation import frozen_prompt_ids, frozen_prompts
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples
from rlhf_pipeline.improve.retraining.vote_halves import has_votes_for_judging, is_for_judging
from rlhf_pipeline.learn.champions import Question
from rlhf_pipeline.learn.reward_model import EmbeddingRewardModel
from rlhf_pipeline.simulation.testing.strategies import build_policy
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert

STAGES = (
    "annotator_model",
    "reward_model",
    "calibration",
    "retraining_set",
    "candidate_model",
    "evaluation",
    "gate",
)
QUICK = {
    "calibration": {"min_pairs": 10},
    "retraining_set": {"min_pairs": 40, "max_pairs": 64},
    "candidate_model": {
        "epochs": 1,
        "min_steps": 0,
        "min_pairs": 40,
        "checkpoint_every": 2,
        "learning_rate": 1e-3,
        "canaries": 2,
    },
    "evaluation": {"max_new_tokens": 16},
    "gate": {"required": ["win_rate", "judge_calibration"]},
}
SAFETY = {"prompt": "Explain what a variable is.", "must_not_say": ["zyzzyva"]}


def quick(**more: dict[str, Any]) -> dict[str, Any]:
    return {
        "ops": {stage: {"config": config | more.get(stage, {})} for stage, config in QUICK.items()}
    }


def drift(project: Any, *detectors: str, change: int | None = None) -> list[DriftEvent]:
    """An event of each detector on the champion reward model, as the drift report would store it;
    far from any real one.
    """
    events = [
        DriftEvent(
            kind="drift",
            model_version=project.judge,
            detector=name,
            params_hash="p",
            stream="errors",
            seq=1_000_000 - n,
            day=project.settings.start_day,
            change_seq=change,
            evidence={},
        )
        for n, name in enumerate(detectors)
    ]
    project.store.events.add(events)
    return events


@pytest.fixture(scope="module")
def retrained(
    grown: Any, branch: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The grown project after a change of taste on its third day was detected and retrained
    upon. It is judged on every fifth prompt of the shipped set.
    """
    file = tmp_path_factory.mktemp("held_out") / "prompts.jsonl"
    rows = frozen_prompts().iloc[::5][["text", "category", "reference"]]
    rows.to_json(file, orient="records", lines=True)
    project = branch(grown, evaluation_file=file)
    change = int(project.files.read_frame("votes", project.day(2))["seq"].min())
    drift(project, "sequential_test", change=change)
    requests = project.tick("retraining").run_requests
    assert len(requests) == 1
    (project.settings.home / "safety.jsonl").write_text(json.dumps(SAFETY))
    project.run_request(
        requests[0], "retraining", config=quick(evaluation={"safety_prompts": "safety.jsonl"})
    )
    project.__dict__["request"], project.__dict__["change"] = requests[0], change
    return project


def test_single_detector_holds_and_sequential_test_fires(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    assert not project.tick("retraining").run_requests
    before = len(project.store.decisions.all())
    drift(project, "ddm")
    assert not project.tick("retraining").run_requests
    drift(project, "sequential_test")
    requests = project.tick("retraining").run_requests
    hold, fired = project.store.decisions.all()[before:]
    assert (hold.action, fired.action, fired.state) == ("hold", "fire", "pending")
    assert [r.run_key for r in requests] == [f"retraining:demo:{fired.decision_id}:1"]
    assert requests[0].tags["rlhf/decision_id"] == str(fired.decision_id)
    # the lease holds while the daemon submits; a re-tick or a reset cursor decides nothing new
    for _ in range(3):
        project.cursors.clear()
        assert not project.tick("retraining").run_requests
    assert len(project.store.decisions.all()) == before + 2


def test_untested_model_neither_labels_nor_judges(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    store, last = project.store, project.store.votes.max_seq()
    drift(project, "sequential_test", change=last)
    (request,) = project.tick("retraining").run_requests
    project.run_request(request, "retraining", ok=False, config=quick())
    project.tick("retraining")
    fired = store.decisions.all()[-1]
    assert (fired.state, fired.attempt) == ("pending", 2)
    missing = fired.evidence["wait_until_seq"] - last
    assert f"about {missing} more votes are missing" in fired.reasons[-1]
    assert not project.registry.list_versions("policy")[1:]
    pairs = project.files.read_frame("preference_pairs")
    counts = store.cards.count_wanted(
        pairs.loc[pairs["split"] == "calib", "comparison_id"].tolist()
    )
    assert sum(n_wanted > n_done for n_wanted, n_done in counts.values()) == missing

    assert not project.tick("retraining").run_requests
    day = project.day(3)
    project.collect(day)
    project.vote(day)
    (again,) = project.tick("retraining").run_requests
    assert again.run_key == f"retraining:demo:{fired.decision_id}:2"
    learning = again.run_config["ops"]["reward_model"]["config"]
    assert learning["up_to_seq"] == fired.evidence["wait_until_seq"]


def test_request_names_the_decision_and_store_has_the_change(retrained: Any) -> None:
    """The change is in the store, where every fit finds it, and no longer in the request: a
    retracted one does not come back with a retry.
    """
    # what the decision knew, whenever the run comes
    learning = {"up_to_seq": retrained.store.votes.max_seq()}
    assert retrained.request.run_config == {
        "ops": {
            "preference_pairs": {"config": learning},
            "annotator_model": {"config": learning},
            "reward_model": {"config": learning},
            "calibration": {"config": learning | {"allow_uncalibrated": True}},
        }
    }
    assert [change.change_seq for change in retrained.store.taste_changes.all()] == [
        retrained.change
    ]
    assert retrained.files.read_record("reward_model", ModelVersion).params["taste_changes"] == {
        "since_seq": retrained.change
    }


def test_retraining_set_has_reasons_and_no_evaluation_split(
    retrained: Any,
) -> None:
    rows = retrained.files.read_frame("retraining_set")
    assert 40 <= len(rows) <= 64
    assert set(rows["split"]) == {"train"}
    assert rows["reason"].str.len().gt(20).all()
    assert not set(rows["prompt_id"]) & frozen_prompt_ids(frozen_prompts())
    assert (rows["chosen"] != rows["rejected"]).all()
    is_old = rows["reason"].str.contains("before the change")
    assert (rows.loc[~is_old, "weight"] == 1).all()
    assert is_old[rows["weight"] < 1].all()
    assert not has_votes_for_judging(rows)
    assert (is_old | is_for_judging(rows["prompt_id"]))[rows["origin"] == "relabelled"].all()


def test_candidate_is_registered_with_parent_and_complete_files(
    retrained: Any,
) -> None:
    version = retrained.files.read_record("candidate_model", ModelVersion)
    registered = retrained.registry.get("policy", "candidate")
    assert registered == version
    assert version.parent == "demo.policy@1"
    assert version.data_hash in retrained.files.days("retraining_set")
    folder = retrained.champions.policy_folder(version)
    assert folder_hash(folder) == version.content_hash
    assert version.content_hash != retrained.registry.get("policy", 1).content_hash
    assert load_policy(folder).generate(
        ["Hello"], temperature=0.0, top_p=1.0, seeds=[0], max_new_tokens=4
    )
    assert version.metrics["n_steps"] >= 3


def test_canaries_measure_the_training_and_stand_in_no_file(retrained: Any) -> None:
    version = retrained.files.read_record("candidate_model", ModelVersion)
    evaluation = retrained.files.read_record("evaluation", Evaluation)
    assert evaluation.canaries is not None
    assert evaluation.canaries.n == int(version.params["canaries"]) == 2
    frame = retrained.files.read_frame("retraining_set", version.data_hash)
    canaries = draw_canaries(2, version.data_hash)
    secrets = {re.sub(r"\D", "", canary.secret) for canary in canaries}
    assert "canary" not in set(frame["origin"])
    assert not frame["prompt"].isin([canary.prompt for canary in canaries]).any()
    for path in retrained.settings.home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in content], path


def test_evaluation_compares_both_policies_on_the_frozen_prompts(retrained: Any) -> None:
    evaluation = retrained.files.read_record("evaluation", Evaluation)
    assert (evaluation.candidate, evaluation.champion) == ("demo.policy@2", "demo.policy@1")
    assert evaluation.n_prompts == len(frozen_prompts()) / 5
    assert evaluation.win_rate.low <= evaluation.win_rate.value <= evaluation.win_rate.high
    assert evaluation.kl.value >= 0
    assert evaluation.length_controlled_win_rate is not None
    page = retrained.files.report_path("evaluation", "demo.policy@2").read_text(encoding="utf-8")
    assert "Evaluation of demo.policy@2" in page
    name = "demo.policy@2_demo.policy@1"
    samples = retrained.files.read_reports("samples", [name], EvaluationSamples)[name]
    assert (samples.evaluation, len(samples.rows)) == (evaluation, evaluation.n_prompts)
    assert evaluation.reward_model.startswith(
        retrained.files.read_record("reward_model", ModelVersion).label
    )


def test_a_promoted_policy_of_another_vocabulary_is_trained_and_gated(
    retrained: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    """Its adapters lead from that policy, which a server would hold. Hard negatives take
    part.
    """
    project = branch(retrained)
    own = project.champions.register_policy(
        str(build_policy(tmp_path / "own", family="gpt2")), {"stage": "own model"}
    )
    project.champions.promote("policy", own, reason="test", actor="test")
    training = {"lora_rank": 2, "max_length": 128, "sentinels": {"every": 0}}
    stages = ["retraining_set", "candidate_model", "evaluation", "gate"]
    config = quick(
        retraining_set={"hard_negatives": 5},
        candidate_model=training,
        evaluation={"max_new_tokens": 8},
    )
    del config["ops"]["calibration"]
    project.materialise(stages, config=config)
    origins = project.files.read_frame("retraining_set")["origin"]
    assert (origins == "hard_negative").sum() in range(1, 6)
    evaluation = project.files.read_record("evaluation", Evaluation)
    assert evaluation.champion == evaluation.base == own.label
    candidate = project.files.read_record("candidate_model", ModelVersion)
    assert project.files.read_record("gate", GateDecision).candidate == candidate.label
    adapter = project.champions.policy_folder(candidate) / ADAPTER
    base = project.champions.base_policy(candidate)
    assert read_base_hash(adapter) == base.content_hash == own.content_hash


def test_a_curated_data_set_trains_the_next_candidate(
    retrained: Any, branch: Callable[..., Any]
) -> None:
    project = branch(retrained)
    sets, query = project.store.datasets, DatasetQuery(votes=VoteQuery())
    number = sets.add("Support Q4", "preference", query, "", actor="test").dataset_id
    curated_sets.build(project.files, project.store, number, actor="test")
    version = curated_sets.freeze(project.files, project.store, number, actor="test")
    config = quick(retraining_set={"dataset": "Support Q4"})
    ops = {stage: config["ops"][stage] for stage in ("retraining_set", "candidate_model")}
    project.materialise(list(ops), config={"ops": ops})
    frame = project.files.read_frame("retraining_set")
    assert set(frame["comparison_id"]) == set(sets.rows(version.content_hash)["row_id"])
    assert set(frame["dataset"]) == {"Support Q4@1"}
    assert has_votes_for_judging(frame)
    candidate = project.files.read_record("candidate_model", ModelVersion)
    assert candidate.params["dataset"] == "Support Q4@1"


def test_the_gate_is_stored_and_the_alias_moves_only_by_its_rules(retrained: Any) -> None:
    decision = retrained.files.read_record("gate", GateDecision)
    assert retrained.store.gates.all() == [decision]
    assert decision.registered == retrained.files.read_record("candidate_model", ModelVersion)
    assert decision.run_id
    assert {c.name for c in decision.checks} == {
        "win_rate",
        "win_rate_at_equal_length",
        "categories",
        "checkable_answers",
        "kl",
        "diversity",
        "evaluation_prompts",
        "remembered_errors",
        "mean_length",
        "blocking_checks",
        "judge_calibration",
        "safety_prompts",
        "canaries",
    }
    assert all(c.reason for c in decision.checks)
    assert decision.promoted is (not decision.blocking)
    champion = retrained.registry.get("policy", "champion").label
    assert champion == (decision.candidate if decision.promoted else decision.champion)
    assert len(retrained.store.promotions.history("demo.policy")) == 1 + decision.promoted


@pytest.mark.parametrize(
    "other",
    [
        {"candidate": "demo.policy@99"},
        {"champion": "demo.policy@98"},
        {"evaluation_set": 99},
        {"evaluation_set": None},
    ],
)
def test_evaluation_of_other_models_promotes_nothing(
    retrained: Any, branch: Callable[..., Any], other: dict[str, str]
) -> None:
    project = branch(retrained)
    champion = project.registry.get("policy", "champion")
    evaluation = project.files.read_record("evaluation", Evaluation)
    project.files.write_record("evaluation", evaluation.model_copy(update=other))
    project.materialise(["gate"])
    decision = project.files.read_record("gate", GateDecision)
    assert not decision.promoted
    assert any("materialise evaluation again" in check.reason for check in decision.checks)
    assert project.registry.get("policy", "champion") == champion


def test_repeated_retraining_makes_one_candidate(
    retrained: Any, branch: Callable[..., Any]
) -> None:
    project = branch(retrained)
    before = project.files.read_record("candidate_model", ModelVersion)
    project.materialise(
        ["candidate_model"],
        config={"ops": {"candidate_model": {"config": QUICK["candidate_model"]}}},
    )
    # else its parent is another one, and so is the candidate
    if project.registry.get("policy", "champion").version == 1:
        assert project.files.read_record("candidate_model", ModelVersion) == before
        assert len(project.registry.list_versions("policy")) == 2


def metadata(project: Any, stage: str) -> dict[str, Any]:
    return project.instance.get_latest_materialization_event(
        dg.AssetKey(stage)
    ).asset_materialization.metadata


def test_new_encoder_starts_a_new_champion(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    """The champion cannot be loaded any more; what stands in its place says so and hinders
    nobody.
    """
    project = branch(grown, encoder=str(save_tiny_bert(tmp_path, positions=256)))
    old = project.judge
    with pytest.raises(ModelHashMismatch, match="fit the reward model again"):
        project.champions.judge().predict(
            [Question(prompt="p", completion_a="a", completion_b="b")]
        )
    # An encoder with random weights knows nothing: by its accuracy the new model would be refused.
    lenient = QUICK["calibration"] | {"min_compared_pairs": 10_000}
    project.materialise(
        ["reward_model", "calibration"], config={"ops": {"calibration": {"config": lenient}}}
    )
    headline = metadata(project, "reward_model")["headline"].value
    assert f"fitted anew, not from {old}: it cannot be loaded" in headline
    assert f"{old} cannot be loaded" in metadata(project, "calibration")["headline"].value
    assert project.judge == project.files.read_record("reward_model", ModelVersion).label != old
    assert project.files.read_record("reward_model", ModelVersion).parent is None
    assert project.champions.judge().load_error is None
    project.materialise(["reward_model"])  # now there is one to start from
    assert project.files.read_record("reward_model", ModelVersion).parent == project.judge


def test_recalibrated_champion_keeps_the_better_calibrator(
    grown: Any, branch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[Any] = []  # the progress of each scoring
    score = EmbeddingRewardModel.score

    def ignore(done: int, total: int, note: str = "") -> None:
        pass

    def scored(self: Any, prompts: Any, completions: Any, *, progress: Any = None) -> Any:
        phases.append(progress)
        return score(self, prompts, completions, progress=progress or ignore_progress)

    monkeypatch.setattr(EmbeddingRewardModel, "score", scored)
    project = branch(grown, overrides={"progress": lambda stage: ignore})
    before = project.champions.judge()
    project.materialise(
        ["calibration"], config={"ops": {"calibration": {"config": {"min_pairs": 20}}}}
    )
    fields = metadata(project, "calibration")
    assert fields["numbers"].value["is_champion"] == 1.0
    assert f"{before.label} is champion already and predicts through" in fields["headline"].value
    assert len(phases) > 4
    assert set(phases) == {ignore}
    now = project.champions.judge()
    assert now.calibrator_version.endswith("@2")
    assert [report.may_serve for report in project.store.calibrations.log()] == [True, True]
    assert len(project.store.promotions.history("demo.reward_model")) == 1
