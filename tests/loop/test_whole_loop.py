"""One run of the whole loop, in this process: three days, a reward model, a change of taste, a
retraining, a verdict.
"""

from collections.abc import Callable
from typing import Any

from rlhf_pipeline.core.frames import SCHEMAS
from rlhf_pipeline.core.records import (
    CalibrationReport,
    DriftEvent,
    Evaluation,
    GateDecision,
    ModelVersion,
)

DAILY = (
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
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
    },
    "evaluation": {"max_new_tokens": 16},
}


def report_drift(project: Any) -> None:
    """The sequential test confirms a change at the first vote of the last day."""
    change = int(project.files.read_frame("votes", project.day(2))["seq"].min())
    more: dict[str, Any] = {
        "kind": "drift",
        "model_version": project.judge,
        "params_hash": "p",
        "stream": "errors",
        "evidence": {},
    }
    event = DriftEvent(
        detector="sequential_test", seq=1_000_000, day=project.day(2), change_seq=change, **more
    )
    project.store.events.add([event])


def test_the_loop_turns_from_prompts_to_a_verdict(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    for stage in DAILY:
        for index in range(3):
            assert list(project.files.read_frame(stage, project.day(index)).columns) == list(
                SCHEMAS[stage].columns
            )
    assert (
        len(project.files.read_frame("reflection_log", project.day(2)).dropna(subset=["vote_id"]))
        > 300
    )

    report_drift(project)
    (request,) = project.tick("retraining").run_requests
    project.run_request(
        request,
        "retraining",
        config={"ops": {stage: {"config": config} for stage, config in QUICK.items()}},
    )
    assert not project.tick("retraining").run_requests

    (fired,) = [decision for decision in project.store.decisions.all() if decision.action == "fire"]
    verdict = project.files.read_record("gate", GateDecision)
    evaluated = project.files.read_record("evaluation", Evaluation)
    assert fired.state == "succeeded"
    assert 40 <= len(project.files.read_frame("retraining_set")) <= 64
    assert (
        project.files.read_record("calibration", CalibrationReport).reward_model
        == project.files.read_record("reward_model", ModelVersion).label
    )
    assert (
        verdict.candidate
        == evaluated.candidate
        == project.files.read_record("candidate_model", ModelVersion).label
    )
    (won,) = project.store.metric_points.latest(["policy.win_rate"])
    assert (won.labels["policy"], won.value) == (evaluated.candidate, evaluated.win_rate.value)
    champion = project.registry.get("policy", "champion")
    assert champion.label == (verdict.candidate if verdict.promoted else verdict.champion)
