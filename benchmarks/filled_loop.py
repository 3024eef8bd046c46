"""What a loop of 400 days leaves beside its votes: drift reports, clusters, events, decisions,
policy versions, figures of production. Prints nothing; see bench_pages.
"""

import json
from collections.abc import Sequence
from datetime import date, datetime, timedelta

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.frames import DRIFT_REPORTS, RETRAINING_SET, check_frame
from rlhf_pipeline.core.intervals import interval_of_ratio, interval_of_share
from rlhf_pipeline.core.metric_catalogue import PRODUCTION
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import (
    DriftEvent,
    Evaluation,
    Interval,
    ModelVersion,
    Promotion,
    TriggerDecision,
    utc_now,
)
from rlhf_pipeline.improve.evaluation import GateParams, decide_promotion
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples, JudgedSample
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, PromptCluster

PROJECT = "bench"
N_DAYS, N_VERSIONS, N_PROMPTS, N_CLUSTERS = 400, 20, 300, 20
N_OF_A_CLUSTER, DAYS_OF_A_CLUSTER = 125, 28  # comparisons on each day; days with the same id
N_PAIRS = 1000  # of a retraining set
DAYS_OF_A_VERSION = N_DAYS // N_VERSIONS
TESTS = tuple(
    (space, detector)
    for space, detectors in (
        ("overall", ("verdict",)),
        ("errors", ("sequential_test", "ddm", "adwin")),
        ("calibration", ("ece",)),
        *((f"space_{n}", ("ks", "mmd")) for n in range(12)),
    )
    for detector in detectors
)
TEXT = "Because people should never always think about money, right or wrong, freedom. " * 3


def fill_loop(store: Store, frames: str) -> None:
    """The newest day is today, the newest version of the policy the champion."""
    files = Artefacts(frames)
    today = utc_now().date()
    days = [today - timedelta(days=N_DAYS - 1 - n) for n in range(N_DAYS)]
    ids = store.comparisons.find_offerable_ids()
    for n, day in enumerate(days):
        _write_day(files, n, day, ids)
    _promote(store, 1, _noon(days[0]))
    for version in range(2, N_VERSIONS + 1):
        n = (version - 1) * DAYS_OF_A_VERSION
        _add_version(store, files, version, days[n], _choose(ids, n)[:N_PAIRS])
    figure = _interval(0.5, n=N_PROMPTS)
    store.metric_points.put([
        MetricPoint.of_interval(day, name, figure, utc_now(), {"model": _policy(1 + n // 20)})
        for n, day in enumerate(days)
        for name in PRODUCTION
    ])  # fmt: skip


def _write_day(files: Artefacts, n: int, day: date, ids: list[str]) -> None:
    is_drift = n % DAYS_OF_A_VERSION == 0
    rows = [
        {
            "day": day.isoformat(),
            "space": space,
            "detector": detector,
            "model_version": _reward_model(n),
            "verdict": "drift" if is_drift and space == "errors" else "stable",
            "statistic": 0.1,
            "threshold": 0.2,
            "p_value": 0.3,
            "n_reference": 500,
            "n_current": 300,
            "evidence": json.dumps({"effect": 0.05}),
        }
        for space, detector in TESTS
    ]
    report = check_frame(pd.DataFrame(rows), DRIFT_REPORTS)
    files.write_frame("drift_report", report, day.isoformat())
    first = day - timedelta(days=n % DAYS_OF_A_CLUSTER)
    comparison_ids = _choose(ids, n)
    clusters = [
        _failing_cluster(f"{first}-{chr(65 + k)}", comparison_ids[k::N_CLUSTERS])
        for k in range(N_CLUSTERS)
    ]
    _write_clusters(files, day.isoformat(), *clusters)


def _choose(ids: list[str], n: int) -> list[str]:
    """The comparisons judged on the n-th day; other ones on the next, as far as there are any."""
    n_judged = N_CLUSTERS * N_OF_A_CLUSTER
    start = n * n_judged % max(1, len(ids) - n_judged)
    return ids[start : start + n_judged]


def _add_version(
    store: Store, files: Artefacts, version: int, day: date, comparison_ids: list[str]
) -> None:
    now = _noon(day)
    event = DriftEvent(
        kind="drift",
        model_version=_reward_model(version * DAYS_OF_A_VERSION),
        detector="sequential_test",
        params_hash="p",
        stream="errors",
        seq=version * 1000,
        day=day,
        change_seq=version * 1000 - 50,
        evidence={"error_before": 0.2, "error_after": 0.4, "n_votes": 1848},
        detected_at=now,
    )
    store.events.add([event])
    store.decisions.apply_rule(
        lambda _: TriggerDecision(
            action="fire",
            reasons=("the error rate rose from 0.20 to 0.40",),
            event_ids=(event.event_id,),
            evidence={"looked_at": {"max_seq": version * 1000}},
            decided_at=now,
            remedy="retrain",
        ),
        now=now,
        champion=event.model_version,
    )
    evaluation = _evaluate(PROJECT, version, 0.6).model_copy(
        update={"reward_model": _reward_model(version * DAYS_OF_A_VERSION), "n_prompts": N_PROMPTS}
    )
    store.gates.record(
        decide_promotion(evaluation, GateParams()).model_copy(
            update={
                "run_id": f"run-{version}",
                "decided_at": now,
                "registered": ModelVersion(
                    name=f"{PROJECT}.policy",
                    version=version,
                    kind="policy",
                    uri="runs:/x",
                    content_hash="c",
                    parent=_policy(version - 1),
                    data_hash=files.keep_version(
                        "retraining_set", _retraining_set(day, comparison_ids)
                    ),
                ),
            }
        )
    )
    _write_samples(files, evaluation, tuple(_judge(version, i) for i in range(N_PROMPTS)))
    _promote(store, version, now)


def _retraining_set(day: date, comparison_ids: list[str]) -> pd.DataFrame:
    rows = [
        {
            "comparison_id": each,
            "prompt_id": f"p-{each}",
            "prompt": TEXT,
            "chosen": TEXT,
            "rejected": TEXT,
            "margin": 0.5,
            "weight": 1.0,
            "origin": "vote",
            "information": 0.1,
            "difficulty": 0.5,
            "reason": "uncertain",
            "split": "train",
            "day": day.isoformat(),
        }
        for each in comparison_ids
    ]
    return check_frame(pd.DataFrame(rows), RETRAINING_SET)


def _promote(store: Store, version: int, now: datetime) -> None:
    reason = "better" if version > 1 else "first version"
    for kind in ("policy", "reward_model"):
        _put_promotion(store, f"{PROJECT}.{kind}", version, reason, promoted_at=now)


def _noon(day: date) -> datetime:
    return datetime.fromisoformat(f"{day}T12:00:00+00:00")


def _policy(version: int) -> str:
    return f"{PROJECT}.policy@{version}"


def _reward_model(n_days: int) -> str:
    return f"{PROJECT}.reward_model@{min(N_VERSIONS, 1 + n_days // DAYS_OF_A_VERSION)}"


def _judge(version: int, i: int) -> JudgedSample:
    return JudgedSample(
        prompt_id=f"p{i:03}",
        prompt=f"Question {i}? {TEXT}",
        category=("coding", "creative", "factual")[i % 3],
        sample_index=0,
        completion_candidate=f"Policy {version} on {i}. {TEXT}",
        completion_champion=f"Policy {version - 1} on {i}. {TEXT}",
        score_candidate=(i % 7) / 10,
        score_champion=(i % 5) / 10,
        p_win=0.5 + (i % 7 - i % 5) / 20,
        right_candidate=None,
        right_champion=None,
    )


def _failing_cluster(cluster_id: str, comparison_ids: Sequence[str]) -> PromptCluster:
    return PromptCluster(
        cluster_id=cluster_id,
        name="lentils · soup",
        terms={"lentils": 0.8, "soup": 0.6},
        share_reference=interval_of_share(0.1, 100),
        share_current=interval_of_share(0.2, 100),
        p_share=0.03,
        change="steady",
        error_reference=interval_of_share(0.2, 10),
        error_current=interval_of_share(0.6, 20),
        p_error=0.004,
        is_worse=True,
        lift=interval_of_ratio(0.6, 20, 0.2, 80),
        p_lift=0.001,
        is_failing=True,
        examples=tuple(comparison_ids[:1]),
        comparison_ids=tuple(comparison_ids),
    )


def _write_clusters(files: Artefacts, day: str, *clusters: PromptCluster) -> None:
    day_clusters = DayClusters(
        day=day,
        model_version=f"{PROJECT}.reward_model@1",
        clusters=clusters,
        n_reference=100,
        n_current=100,
        p_value=0.2,
        explained=0.5,
        noise_ceiling=Interval(value=0.9, low=0.85, high=0.94, n=60),
    )
    files.write({files.report_path("clusters", day): day_clusters.model_dump_json().encode()})


def _interval(value: float, half: float = 0.05, n: int = N_PROMPTS) -> Interval:
    return Interval(value=value, low=value - half, high=value + half, n=n)


def _write_samples(
    files: Artefacts, evaluation: Evaluation, rows: tuple[JudgedSample, ...]
) -> None:
    """The samples of an evaluation and its page."""
    samples = EvaluationSamples(evaluation=evaluation, rows=rows)
    path = files.report_path("samples", f"{evaluation.candidate}_{evaluation.champion}")
    files.write({
        path: samples.model_dump_json().encode(),
        files.report_path("evaluation", evaluation.candidate): b"<!doctype html><p>Evaluated</p>",
    })  # fmt: skip


def _evaluate(project: str, version: int, win_rate: float) -> Evaluation:
    """Of a version against the one before it."""
    return Evaluation(
        candidate=f"{project}.policy@{version}",
        champion=f"{project}.policy@{version - 1}",
        reward_model=f"{project}.reward_model@1",
        n_prompts=N_PROMPTS,
        prompts_hash="h",
        win_rate=_interval(win_rate),
        mean_reward_candidate=_interval(0.5),
        mean_reward_champion=_interval(0.1),
        kl=_interval(0.1, 0.02),
        checkable_candidate=None,
        checkable_champion=None,
        length_candidate=_interval(70.0),
        length_champion=_interval(65.0),
        length_controlled_win_rate=_interval(win_rate - 0.05),
        win_rate_by_labels=_interval(win_rate + 0.1),
        shares_votes=False,
        evaluation_set=1,
    )


def _put_promotion(
    store: Store, model_name: str, version: int, reason: str, **more: datetime
) -> None:
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
