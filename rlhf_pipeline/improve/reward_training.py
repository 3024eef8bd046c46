"""Decides when a reward model is due, registers it, calibrates it and decides which one serves."""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import ModelVersion, Promotion
from rlhf_pipeline.feedback.votes import Quarantines, drop_machine_votes
from rlhf_pipeline.feedback.votes.counting import standing_votes
from rlhf_pipeline.improve.evaluation.error_memory import recall_predictions, retest
from rlhf_pipeline.improve.retraining.triggers import (
    RECOMPUTING_REMEDIES,
    TriggerParams,
    find_pending_change,
)
from rlhf_pipeline.learn.calibration import (
    CALIBRATORS,
    CalibrationContext,
    CalibrationParams,
)
from rlhf_pipeline.learn.calibration.selection import calibrate_version, cross_fitted_p
from rlhf_pipeline.learn.champions import (
    AcceptanceParams,
    CalibratedModel,
    CalibrationOutcome,
    Champions,
)
from rlhf_pipeline.learn.reward_model import (
    FittedRewardModel,
    LearningData,
    RewardModel,
    RewardModelParams,
    encoder_params,
    find_warm_start_obstacle,
)
from rlhf_pipeline.learn.reward_model.evaluation import left_out_margins
from rlhf_pipeline.learn.reward_model.training import change_weights
from rlhf_pipeline.registry import CANDIDATE, Run
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.mixes import Mixes, count_mixes
from rlhf_pipeline.watch.drift.reference import Window, judge_votes, reference_window

# Held-out votes from which the model's bias is known well enough without those it learned from
ENOUGH_REFERENCE_VOTES = 400


class CalibrateParams(*CALIBRATORS.params(CalibrationParams, AcceptanceParams)):  # type: ignore[misc]
    """How a calibrator is chosen, and when its reward model is refused."""


@dataclass(frozen=True)
class WarmStart:
    """The model whose weights a fit starts from, and its label; without one, why."""

    model: RewardModel | None = None
    label: str | None = None
    obstacle: str = ""

    @classmethod
    def from_champion(cls, champion: CalibratedModel | None, model: RewardModel) -> "WarmStart":
        """The champion where `model` can be fitted from it."""
        if champion is None:
            return cls()
        why = (
            f"it cannot be loaded ({champion.load_error})"
            if champion.load_error
            else find_warm_start_obstacle(champion.reward_model, model)
        )
        if why is None:
            return cls(champion.reward_model, champion.label)
        return cls(obstacle=f"fitted anew, not from {champion.label}: {why}")


def register_fit(
    champions: Champions,
    data: LearningData,
    params: RewardModelParams,
    fitted: FittedRewardModel,
    parent: str | None,
    *,
    run: Run,
    folder: Path,
    last_decision: int | None = None,
) -> ModelVersion:
    """Save the model into `folder` and register it as candidate, with its lineage and its re-test
    on the confident predictions of earlier models. `last_decision` is the last one whose quarantine
    or its end the pairs follow.
    """
    report, changes = fitted.report, data.taste_changes
    memory = retest(
        recall_predictions(
            data.pairs,
            champions.store.predictions.for_comparisons(data.pairs["comparison_id"].tolist()),
            taste_changes=changes,
        ),
        fitted.model,
    )
    fitted.model.save(folder)
    described: dict[str, Any] = params.to_report() | encoder_params(fitted.model)
    described["weight_before_change"] = report.weight_before_change
    if changes:
        described["taste_changes"] = changes.to_json()
    if last_decision is not None:
        described["last_decision"] = last_decision
    version = champions.registry.register(
        "reward_model",
        folder,
        run=run,
        metrics=report.metrics() | memory.metrics(),
        params=described,
        parent=parent,
        data_hash=report.data_hash,
        data_seq=report.max_seq,
    )
    if memory.metrics():
        run.log_file(memory.model_dump_json(indent=1).encode(), "error_memory.json")
    champions.registry.set_alias("reward_model", CANDIDATE, version.version)
    return version


def calibrate_model(
    champions: Champions,
    version: ModelVersion,
    data: LearningData,
    comparisons: pd.DataFrame,
    params: CalibrateParams,
    *,
    weight_before_change: float | None = None,
    promote: bool = True,
    progress: Progress = ignore_progress,
) -> CalibrationOutcome:
    """Calibrate `version` and decide whether it serves; the caller promotes it where it
    `takes_over`.

    COMPARISONS are those the votes judge. The predictions that drift is measured from are frozen
    with the first calibration that may serve. Raises as `calibrate_version`.
    """
    judge = champions.judge(version)
    assert judge is not None  # a version was given
    calibrator, report = calibrate_version(
        version,
        judge.reward_model,
        data.pairs,
        CalibrationContext.of(data.votes, comparisons, data.taste_changes),
        params,
        weight_before_change=weight_before_change,
        progress=progress,
    )
    calib = data.pairs[data.pairs["split"] == "calib"]
    outcome = champions.record_calibration(
        replace(judge, calibrator=calibrator, calibrator_version=report.method),
        report,
        calib,
        taste_changes=data.taste_changes,
        acceptance=params,
        promote=promote,
        progress=progress,
    )
    # Without candidates too few pairs were there to calibrate by, and so to measure drift from.
    has_predictions = outcome.report.candidates and outcome.report.may_serve
    if has_predictions and not champions.reference_folder(version).exists():
        scores = outcome.judge.score_pairs(calib, progress=progress)
        window = reference_window(
            calib,
            cross_fitted_p(
                calib,
                judge.reward_model,
                calibrator,
                params,
                data.taste_changes,
                progress=progress,
            ),
            model_version=version.label,
            embed=partial(outcome.judge.reward_model.features, progress=progress),
            taste_changes=data.taste_changes,
            scores=scores,
            mixes=_count_mixes(data, comparisons),
        )
        votes = _judge_reference(outcome.judge, data, comparisons, window)
        replace(window, votes=votes).save(champions.reference_folder(version))
    return outcome


def _judge_reference(
    judge: CalibratedModel, data: LearningData, comparisons: pd.DataFrame, window: Window
) -> pd.DataFrame:
    """The votes on the held-out predictions of `window`; of a young model, which has few, also
    those it learned from, each on a prediction that was made without its prompt's votes.
    """
    votes = _current_votes(data).merge(comparisons[["comparison_id", "category"]])
    held_out = window.rows.set_index("comparison_id")["p"]
    verdicts = judge_votes(votes, held_out)
    if len(verdicts) >= ENOUGH_REFERENCE_VOTES:
        return verdicts
    changes = data.taste_changes
    train = data.pairs[data.pairs["split"] == "train"].reset_index(drop=True)
    weight = float(judge.version.params.get("weight_before_change", 1.0))
    weights, is_current = change_weights(train, changes, weight), changes.is_current(train)
    try:
        margins = left_out_margins(judge.reward_model, train, weights, is_current)
    except NotEnoughData:
        return verdicts
    current = train[is_current]
    p_chosen = judge.p_of_scores(margins, np.zeros(len(margins)))
    p_a = np.where(current["chosen_side"] == "a", p_chosen, 1 - p_chosen)
    left_out = pd.Series(p_a, index=current["comparison_id"].to_numpy())
    return judge_votes(votes, pd.concat([held_out, left_out]))


def _count_mixes(data: LearningData, comparisons: pd.DataFrame) -> Mixes:
    """Of all votes of the current taste, not of the calibration split alone: no model predicts
    them, and pairs leave ties out.
    """
    return count_mixes(_current_votes(data), comparisons)


def _current_votes(data: LearningData) -> pd.DataFrame:
    """People's standing votes since the last change of taste."""
    votes = standing_votes(drop_machine_votes(data.votes))
    return votes[votes["seq"] >= (data.taste_changes.latest_seq or 0)]


REFUSED = "refused-"
# New voted comparisons before the next attempt, after a model was refused or a fit lacked data
RETRY_AFTER_PAIRS = 50


@dataclass(frozen=True)
class NextFit:
    """Voted comparisons beyond what a model learnt from, and how many the next fit needs."""

    after: str  # version of that model, 0 before the first; a refused one is named so
    n: int
    needed: int
    data_seq: int = 0  # last vote that model learnt from
    cause: str = ""  # why it is due without new votes

    @property
    def shortage(self) -> str | None:
        """What is missing, in words; None where there are enough."""
        if self.n >= self.needed:
            return None
        counts = f"{self.n:,} of {self.needed:,}"
        if self.after == "0":
            return f"{counts} voted comparisons for the first reward model"
        version = self.after.removeprefix(REFUSED)
        refused = ", which was refused" if self.after.startswith(REFUSED) else ""
        return f"{counts} newly voted comparisons since reward model {version}{refused}"


def plan_next_fit(settings: Settings, store: Store, *, up_to_seq: int | None = None) -> NextFit:
    """The next fit, by votes up to that seq (default: all).

    A champion that learnt from votes which a quarantine left out since, or lacks votes which were
    brought back since, is fitted again without new votes. A replay (`up_to_seq`) decides by itself
    when to calibrate an uncalibrated champion, and refits after each of its own decisions.
    """
    champion = store.promotions.champion(settings.reward_model)
    latest = store.calibrations.of_latest_fit()
    cause = ""
    refusal = latest.refusal if latest is not None else None
    if (
        latest is not None
        and refusal is not None
        and (champion is None or latest.reward_model != champion.label)
    ):
        after = f"{REFUSED}{latest.reward_model.rpartition('@')[2]}"
        data_seq, needed = refusal.data_seq, RETRY_AFTER_PAIRS
    elif champion and up_to_seq is None and (since := _find_outdating_decision(champion, store)):
        after, data_seq, needed = f"{champion.version}-{since}", champion.data_seq or 0, 0
        cause = f"decision {since} concerns votes that reward model {champion.version} learnt from"
    elif champion is not None:
        # an uncalibrated champion is refitted as soon as a few more pairs may calibrate it
        is_short = up_to_seq is None and is_uncalibrated(settings, store)
        after, data_seq = str(champion.version), champion.data_seq or 0
        needed = RETRY_AFTER_PAIRS if is_short else settings.refit_after_pairs
    else:
        after = "0"
        data_seq = 0
        needed = settings.min_new_pairs
    quarantines = Quarantines.from_decisions(store.decisions.fires())
    n = store.votes.n_voted_comparisons(
        after_seq=data_seq, up_to_seq=up_to_seq, quarantined=quarantines.since
    )
    return NextFit(after, n, needed, data_seq, cause)


def find_reason_to_wait(
    settings: Settings,
    store: Store,
    trigger: TriggerParams,
    *,
    now: datetime,
    up_to_seq: int | None = None,
) -> str | None:
    """Why no reward model is fitted although one is due: a new champion would supersede a change
    whose cause is not clear yet. At most `max_cause_votes` later the trigger answers it.
    """
    champion = store.promotions.champion(settings.reward_model)
    if champion is None:
        return None
    evidence = store.decisions.read_evidence(now=now, champion=champion.label, up_to_seq=up_to_seq)
    doubt = find_pending_change(evidence, trigger)
    return doubt and f"a fit waits for the retraining decision, whose change has a {doubt}"


def _find_outdating_decision(champion: Promotion, store: Store) -> int | None:
    """The latest decision that began or lifted a quarantine of votes from before the end of the
    champion's data, and that its pairs do not follow: it came while the champion was fitted, or
    after its promotion.
    """
    followed = champion.last_decision
    return max(
        (
            decision.stored_id
            for decision in store.decisions.fires()
            if decision.remedy in RECOMPUTING_REMEDIES
            and decision.quarantine is not None
            and decision.quarantine.from_seq <= (champion.data_seq or 0)
            and (
                decision.stored_id > followed
                if followed is not None
                else decision.decided_at > champion.promoted_at
            )
        ),
        default=None,
    )


def is_uncalibrated(settings: Settings, store: Store) -> bool | None:
    """Whether the champion serves raw probabilities because there were too few pairs to calibrate
    it; None before the first champion.
    """
    champion = store.promotions.champion(settings.reward_model)
    latest = store.calibrations.latest_serving(champion.label) if champion else None
    return not latest[0].candidates if latest else None
