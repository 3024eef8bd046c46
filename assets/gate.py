"""The gate: promotes the candidate if it is measurably better than the champion."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    SCHEMA_CHECK,
    StageReport,
    deliver,
    unpartitioned_asset,
)
from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import Evaluation, ModelVersion
from rlhf_pipeline.feedback.votes import Quarantines
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.evaluation import GateParams
from rlhf_pipeline.improve.evaluation import decide_promotion as decide
from rlhf_pipeline.improve.evaluation.error_memory import ErrorMemory
from rlhf_pipeline.improve.evaluation.gate import leave_to_people
from rlhf_pipeline.improve.evaluation.judge import EvaluationSamples, JudgedSample
from rlhf_pipeline.improve.evaluation.judge_calibration import (
    NEWEST,
    JudgeCalibration,
    measure_judge_calibration,
)
from rlhf_pipeline.improve.gate_decisions import carry_out, describe_reasons
from rlhf_pipeline.improve.gate_sessions import asks_people, open_session
from rlhf_pipeline.improve.loop_settings import DriftReportParams, LoopSettings
from rlhf_pipeline.learn.champions import Champions, Question
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.predictions import find_newest_voted
from rlhf_pipeline.watch.reflection import reflect


class GateConfig(GateParams, dg.Config):
    """Thresholds of the promotion rules."""


@unpartitioned_asset("gate", "improve", "mlflow")
def gate(
    context: dg.AssetExecutionContext,
    config: GateConfig,
    evaluation: Evaluation,
    candidate_model: ModelVersion,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    settings: dg.ResourceParam[Settings],
) -> Iterator[Any]:
    """Decides by named checks, each with its reason, and moves the champion alias; a server loads
    its adapter. Where people decide, it opens a session that asks them, if no other check refuses
    the candidate. Does not use the truth of a simulation.
    """
    decision = decide(
        evaluation,
        config,
        failed_blocking_checks=[
            *_failed_checks(context.instance),
            *_list_mismatches(evaluation, candidate_model, champions),
        ],
        memory=ErrorMemory.from_metrics(champions.version(_judge_of(evaluation)).metrics),
        calibration=_measure_calibration(evaluation, store, settings)
        if "judge_calibration" in config.required
        else None,
    )
    decision = decision.model_copy(update={"registered": candidate_model, "run_id": context.run_id})
    if "win_rate" in config.required and asks_people(config, store, settings.annotators):
        decision = leave_to_people(decision)
    if decision.asks_people:
        samples = _read_samples(evaluation, settings)
        open_session(store, decision, config, samples, _predict(samples, champions))
    else:
        decision = carry_out(decision, champions, settings)
    yield from deliver(
        context,
        registry,
        decision,
        StageReport(
            headline=f"{decision.candidate} {decision.verdict}"
            + (f" ({decision.not_served})" if decision.not_served else "")
            + f": {describe_reasons(decision)}",
            metrics={
                "promoted": float(decision.promoted),
                "n_failed": len(decision.blocking),
            },
            rows=pd.DataFrame([check.model_dump() for check in decision.checks]),
        ),
    )


def _measure_calibration(
    evaluation: Evaluation, store: Store, settings: Settings
) -> JudgeCalibration:
    """On votes cast after the judge predicted them, but for those in quarantine, by the thresholds
    of the drift report.
    """
    judge = _judge_of(evaluation)
    ids, _ = find_newest_voted(store.database, judge, limit=NEWEST)
    predicted = store.predictions.for_comparisons(ids)
    votes = counting_votes(store.votes.log(comparison_ids=ids))
    reflections = reflect(predicted[predicted["reward_model"] == judge], votes, strict=False)
    quarantines = Quarantines.from_decisions(store.decisions.fires())
    latest = store.calibrations.latest_serving(judge)
    report = LoopSettings.read(settings, only="drift_report").params("drift_report")
    thresholds = cast(DriftReportParams, report).calibration
    return measure_judge_calibration(
        judge, quarantines.drop(reflections), latest[0] if latest else None, thresholds
    )


def _list_mismatches(
    evaluation: Evaluation, candidate: ModelVersion, champions: Champions
) -> list[str]:
    """Reasons why the evaluation is not valid: other models than the current ones, or a refused
    reward model.
    """
    champion, mismatches = champions.policy(), []
    if evaluation.candidate != candidate.label:
        mismatches.append(
            f"the evaluation is of {evaluation.candidate}, but the candidate is "
            f"{candidate.label}: materialise evaluation again"
        )
    if evaluation.champion not in (
        champion.label,
        candidate.parent if champion.label == candidate.label else None,
    ):
        mismatches.append(
            f"the evaluation is against {evaluation.champion}, but the champion is "
            f"{champion.label}: materialise evaluation again"
        )
    current = champions.store.evaluation_sets.latest()
    if current is not None and evaluation.evaluation_set != current.version:
        mismatches.append(
            f"the evaluation is on evaluation set {evaluation.evaluation_set or 'unknown'}, but "
            f"the present one is {current.version}: materialise evaluation again"
        )
    refusal = champions.refusal(_judge_of(evaluation))
    if refusal is not None:
        mismatches.append(f"the reward model of the evaluation was refused: {refusal.cause}")
    return mismatches


def _read_samples(evaluation: Evaluation, settings: Settings) -> tuple[JudgedSample, ...]:
    """The judged completions that `evaluation` kept."""
    name = f"{evaluation.candidate}_{evaluation.champion}"
    stored = Artefacts(settings.frames).read_reports("samples", [name], EvaluationSamples).get(name)
    if stored is None or stored.evaluation.samples_hash != evaluation.samples_hash:
        raise NotEnoughData(
            f"The completions of {evaluation.candidate} that were evaluated are not kept, so "
            "people cannot be asked about them. Materialise evaluation again."
        )
    return stored.rows


def _predict(samples: Sequence[JudgedSample], champions: Champions) -> list[PairPrediction] | None:
    """The champion reward model's predictions, a being the candidate's text; None without one."""
    judge = champions.judge()
    if judge is None or judge.load_error is not None:
        return None
    return judge.predict(
        [
            Question(
                prompt=sample.prompt,
                completion_a=sample.completion_candidate,
                completion_b=sample.completion_champion,
            )
            for sample in samples
        ]
    )


def _judge_of(evaluation: Evaluation) -> str:
    """The reward model that judged, or whose refitted halves did."""
    return evaluation.reward_model.partition(",")[0]


def _failed_checks(instance: dg.DagsterInstance) -> list[str]:
    """Blocking checks of the candidate's data that failed at their last execution."""
    key = dg.AssetCheckKey(dg.AssetKey("retraining_set"), SCHEMA_CHECK)
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
    return [
        key.to_user_string() for key, record in latest.items() if record.status.value == "FAILED"
    ]
