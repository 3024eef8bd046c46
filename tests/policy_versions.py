"""Three policy versions as a loop leaves them: the first, one that was promoted, one refused."""

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import RETRAINING_SET, check_frame
from rlhf_pipeline.core.object_stores import put
from rlhf_pipeline.core.records import (
    DimensionComparison,
    DimensionHead,
    Evaluation,
    Interval,
    ModelVersion,
    Promotion,
)
from rlhf_pipeline.improve.evaluation import GateParams, decide_promotion
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples, JudgedSample
from rlhf_pipeline.store import Store

N_PROMPTS = 30
CATEGORIES = ("coding", "creative")
PAGE = (
    b"<!doctype html><html><head><style>p{margin:0}</style></head><header></header>"
    b"<p>Evaluated</html>"
)


def interval(value: float, half: float = 0.05, n: int = N_PROMPTS) -> Interval:
    return Interval(value=value, low=value - half, high=value + half, n=n)


# Unsure in one, better in another, unknown in the third, worse in the last.
DIMENSIONS = (
    DimensionComparison(
        head=DimensionHead(
            dimension="correct",
            n_train=80,
            has_head=True,
            vote_accuracy=interval(0.53, n=40),
            ceiling=interval(0.8, n=300),
        ),
        win_rate=interval(0.48),
        score_difference=interval(-0.02),
    ),
    DimensionComparison(
        head=DimensionHead(
            dimension="helpful",
            n_train=120,
            has_head=True,
            vote_accuracy=interval(0.75, n=60),
            ceiling=interval(0.82, n=300),
        ),
        win_rate=interval(0.66),
        score_difference=interval(0.4, 0.1),
    ),
    DimensionComparison(head=DimensionHead(dimension="style", n_train=12, has_head=False)),
    DimensionComparison(
        head=DimensionHead(
            dimension="tone",
            n_train=120,
            has_head=True,
            vote_accuracy=interval(0.75, n=60),
            ceiling=interval(0.82, n=300),
        ),
        win_rate=interval(0.28),
        score_difference=interval(-0.5, 0.1),
    ),
)


def put_versions(
    store: Store, frames: Path, project: str = "demo", dataset: str | None = None
) -> str:
    """Version 2, started by a decision made by hand, beats 1; 3 is worse than 2. Returns the hash
    of the retraining set of 2; that of 3 is gone. `dataset`: the data set that both learnt from.
    """
    files = Artefacts(frames)
    set_hash = files.keep_version("retraining_set", _retraining_set())
    now = datetime(2026, 1, 2, 12, tzinfo=UTC)
    decision = store.decisions.fire_by_hand("a test", actor="eve", now=now, run_id="run-2")
    assert decision.decision_id is not None
    promote(store, f"{project}.policy", 1, "first policy of the project")
    for version, win_rate, data_hash in ((2, 0.7, set_hash), (3, 0.4, "gone")):
        evaluation = evaluate(project, version, win_rate)
        gate = decide_promotion(evaluation, GateParams()).model_copy(
            update={
                "registered": _register(project, version, data_hash, dataset),
                "run_id": f"run-{version}",
            }
        )
        store.gates.record(gate)
        write_samples(files, evaluation, _rows(version))
        if gate.promoted:
            promote(store, f"{project}.policy", version, "better")
    return set_hash


def register_versions(settings: Settings) -> None:
    """Three policies, each trained from the one before; the second is deployed."""
    workspace = Workspace(settings)
    workspace.registry.tracking.open()
    for version in (1, 2, 3):
        folder = settings.home / "made" / str(version)
        folder.mkdir(parents=True)
        (folder / "weights").write_text(f"of version {version}")
        parent = f"{settings.project}.policy@{version - 1}" if version > 1 else None
        with workspace.registry.run(f"made {version}") as run:
            model = workspace.registry.register("policy", folder, run=run, parent=parent)
        if version < 3:
            workspace.champions.promote("policy", model, reason="better", actor="run 1")


def write_samples(files: Artefacts, evaluation: Evaluation, rows: tuple[JudgedSample, ...]) -> None:
    """The samples of an evaluation and its page."""
    samples = EvaluationSamples(evaluation=evaluation, rows=rows)
    path = files.report_path("samples", f"{evaluation.candidate}_{evaluation.champion}")
    put(path, samples.model_dump_json().encode())
    put(files.report_path("evaluation", evaluation.candidate), PAGE)


def evaluate(project: str, version: int, win_rate: float) -> Evaluation:
    """Of a version against the one before it."""
    return Evaluation(
        candidate=f"{project}.policy@{version}",
        champion=f"{project}.policy@{version - 1}",
        reward_model=f"{project}.reward_model@1",
        n_prompts=N_PROMPTS,
        prompts_hash="h",
        win_rate=interval(win_rate),
        mean_reward_candidate=interval(0.5),
        mean_reward_champion=interval(0.1),
        kl=interval(0.1, 0.02),
        checkable_candidate=None,
        checkable_champion=None,
        length_candidate=interval(70.0, 4.0),
        length_champion=interval(65.0, 4.0),
        length_controlled_win_rate=interval(win_rate - 0.05),
        win_rate_by_labels=interval(win_rate + 0.1),
        shares_votes=False,
        evaluation_set=1,
        n_leaked=0,
        by_dimension=DIMENSIONS,
    )


def _register(project: str, version: int, data_hash: str, dataset: str | None) -> ModelVersion:
    return ModelVersion(
        name=f"{project}.policy",
        version=version,
        kind="policy",
        uri="runs:/x",
        content_hash="c",
        parent=f"{project}.policy@{version - 1}",
        data_hash=data_hash,
        params={"strategy": "dpo"} | ({"dataset": dataset} if dataset else {}),
    )


def promote(store: Store, model_name: str, version: int, reason: str, **more: datetime) -> None:
    store.promotions.record(
        Promotion(
            model_name=model_name,
            version=version,
            previous_version=version - 1 or None,
            data_seq=None,
            reason=reason,
            actor=f"run run-{version}",
            **more,
        )
    )


def _rows(version: int) -> tuple[JudgedSample, ...]:
    """The candidate is better by i / 10 on even prompts, worse on odd ones, equal on prompt 0."""
    return tuple(
        JudgedSample(
            prompt_id=f"p{i:02}",
            prompt=f"Question {i}?",
            category=CATEGORIES[i % 2],
            sample_index=0,
            completion_candidate=f"Policy {version} on {i}." if i else "Same.",
            completion_champion=f"Policy {version - 1} on {i}." if i else "Same.",
            score_candidate=(i if i % 2 == 0 else -i) / 10,
            score_champion=0.0,
            p_win=0.8 if i % 2 == 0 else 0.3,
            right_candidate=None if i % 3 else True,
            right_champion=None if i % 3 else False,
        )
        for i in range(N_PROMPTS)
    )


def _retraining_set() -> pd.DataFrame:
    rows = [
        {
            "comparison_id": f"c{i}",
            "prompt_id": f"p{i}",
            "prompt": "Why?",
            "chosen": "yes",
            "rejected": "no",
            "margin": 0.5,
            "weight": 1.0,
            "origin": "vote" if i < 3 else "relabelled",
            "information": 0.1,
            "difficulty": 0.5,
            "reason": "uncertain",
            "split": "train",
            "day": "2026-01-02",
        }
        for i in range(5)
    ]
    return check_frame(pd.DataFrame(rows), RETRAINING_SET)
