"""Imported days lived through again by library calls alone: the rule of `rlhf replay` without
Dagster, registry and store.

Each comparison is predicted on the morning of its first vote by the model of that day, which has
seen none of its votes. After a day's votes come detectors, windows and calibration tests, a first
or later reward model where there is enough to learn from, and the trigger's decision. Knows frames
and an encoder, without files.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta

import pandas as pd

from rlhf_pipeline.calibration import (
    CalibrationParams,
    VoteFacts,
    calibrate,
    evidently_calibration_report,
)
from rlhf_pipeline.champions import Judge, assess
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.calibration_events import calibration_events
from rlhf_pipeline.drift.reference import Window, current_window, reference_window
from rlhf_pipeline.drift.report import DriftSignals, drift_report
from rlhf_pipeline.drift.stream import ScanResult, error_stream, scan
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.frames import PREDICTIONS, REFLECTIONS, concat
from rlhf_pipeline.records import DriftEvent, ModelVersion, TriggerEvidence, utc_now
from rlhf_pipeline.reflection import judged_predictions, predict, reflect
from rlhf_pipeline.retraining.triggers import decide
from rlhf_pipeline.reward_model import Encoder, LearningData, fit_reward_model, reward_model_params
from rlhf_pipeline.votes import (
    TasteChanges,
    log_opening,
    noise_ceiling_or_repeats,
    preference_pairs,
)
from rlhf_pipeline.votes.splits import Recorder

NAME = "real.reward_model"
DEFAULTS = {
    name: Settings.model_fields[name].default
    for name in ("min_new_pairs", "refit_after_pairs", "retry_after_pairs")
}


@dataclass
class ServedModel:
    """One model's time: from which vote on, why it was fitted, what drift was measured from."""

    judge: Judge
    first_seq: int
    reason: str
    reference: Window | None
    is_calibrated: bool
    scanned: ScanResult | None = None


@dataclass
class RealDays:
    """`comparisons` and dated `votes` in order of time; `run` goes through all days. `record` is
    told of each model's report on test pairs.
    """

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    encoder: Encoder
    told: Callable[[str], None] = print
    record: Recorder = log_opening
    models: list[ServedModel] = field(default_factory=list)
    predictions: list[pd.DataFrame] = field(default_factory=list)
    reflections: list[pd.DataFrame] = field(default_factory=list)
    reports: list[pd.DataFrame] = field(default_factory=list)
    events: list[DriftEvent] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    _fired_at: datetime | None = None
    _fired_seq: int = 0
    _n_decided: int = 0
    _held_from: int = 0
    _changed_at: list[int] = field(default_factory=list)
    _refused_at: int | None = None

    def run(self) -> "RealDays":
        usable = self.comparisons[self.comparisons["flag"].isna()]
        self.comparisons = usable
        self.votes = self.votes[
            self.votes["voted_at"].notna()
            & self.votes["comparison_id"].isin(usable["comparison_id"])
        ].sort_values("seq")
        self._first_seq = self.votes.groupby("comparison_id")["seq"].min()
        for day in sorted(self.votes["day"].unique()):
            self._run_day(day)
        return self

    @property
    def current_model(self) -> ServedModel | None:
        return self.models[-1] if self.models else None

    def _run_day(self, day: str) -> None:
        votes = self.votes[self.votes["day"] == day]
        last_seq = int(votes["seq"].max())
        if self.current_model:
            self._predict(day, votes, self.current_model.judge)
        rows = (
            reflect(concat(self.predictions, PREDICTIONS), votes, strict=False)
            if self.predictions
            else REFLECTIONS.empty_frame()
        )
        rows = rows[rows["vote_id"].notna()]
        self.reflections.append(rows)
        verdict = self._report(day, rows) if len(rows) else "no model yet"
        # The decision comes first, as in `rlhf replay`: a refit would supersede the day's events.
        fired = self._decide(day, last_seq)
        if self._is_due(last_seq):
            self._learn(last_seq, "enough voted comparisons")
        error = rows["is_error"].dropna().astype(float)
        self.told(
            f"{day}: {len(votes)} votes, error rate {error.mean():.3f} of {len(error)}, "
            f"{verdict}{fired}"
            if len(error)
            else f"{day}: {len(votes)} votes, {verdict}"
        )

    def _predict(self, day: str, votes: pd.DataFrame, judge: Judge) -> None:
        first = self._first_seq.loc[votes["comparison_id"].unique()]
        new = first.index[(first > (judge.version.data_seq or 0)) & (first >= votes["seq"].min())]
        frame = self.comparisons[self.comparisons["comparison_id"].isin(new)].assign(day=day)
        predicted = predict(
            frame,
            judge.reward_model,
            judge.calibrator,
            reward_model_label=judge.label,
            calibrator_version=judge.calibrator_version,
            data_hash=judge.version.data_hash or "",
            predicted_at=utc_now(),
        )
        if len(predicted):
            self.predictions.append(predicted)

    def _report(self, day: str, rows: pd.DataFrame) -> str:
        """Every model's detectors read its own errors; the day is judged against the model that
        predicted most of it.
        """
        earlier = self.rows
        for served in self.models:
            errors = error_stream(earlier, served.judge.label)
            if len(errors):
                served.scanned = scan(
                    errors,
                    served.scanned.states if served.scanned else None,
                    model_version=served.judge.label,
                )
                self.events += served.scanned.events
        judged = rows[rows["is_error"].notna()]
        label = str(judged["reward_model"].mode().iloc[0])
        served = next(s for s in self.models if s.judge.label == label)
        mine = rows[rows["reward_model"] == label]
        current = current_window(
            mine, self.comparisons, model_version=label, embed=served.judge.reward_model.features
        )
        try:
            tests = list(evidently_calibration_report(judged_predictions(mine)).tests)
        except NotEnoughData:
            tests = []
        self.events += calibration_events(mine, tests, model_version=label)
        warnings = served.scanned.warnings if served.scanned else ()
        report = drift_report(
            day,
            model_version=label,
            reference=served.reference,
            current=current,
            signals=DriftSignals(self.events, warnings, tests, int(judged["seq"].max())),
        )
        self.reports.append(report)
        return f"{label} {report.loc[report['space'] == 'overall', 'verdict'].iloc[0]}"

    def _is_due(self, seq: int) -> bool:
        """The learning sensor's rule; and where the first days gave nothing to calibrate with, the
        first that do are not waited past.
        """
        seen = self.votes[self.votes["seq"] <= seq]
        if self._refused_at is not None:
            return bool(
                seen[seen["seq"] > self._refused_at]["comparison_id"].nunique()
                >= DEFAULTS["retry_after_pairs"]
            )
        if self.current_model is None:
            return bool(seen["comparison_id"].nunique() >= DEFAULTS["min_new_pairs"])
        new = seen[seen["seq"] > (self.current_model.judge.version.data_seq or 0)][
            "comparison_id"
        ].nunique()
        in_calib = self.comparisons.loc[self.comparisons["split"] == "calib", "comparison_id"]
        n_calib = seen[seen["comparison_id"].isin(in_calib)]["comparison_id"].nunique()
        return bool(
            new >= DEFAULTS["refit_after_pairs"]
            or (not self.current_model.is_calibrated and n_calib >= CalibrationParams().min_pairs)
        )

    def _learn(self, seq: int, reason: str) -> None:
        """Reward model and calibration on all votes up to `seq`; it serves if it predicts unseen
        pairs no worse than the last.
        """
        seen = self.votes[self.votes["seq"] <= seq]
        pairs = preference_pairs(
            seen, self.comparisons[self.comparisons["comparison_id"].isin(seen["comparison_id"])]
        )
        before, changes = self.current_model, TasteChanges(max(self._changed_at, default=None))
        fitted = fit_reward_model(
            LearningData(pairs, taste_changes=changes),
            reward_model_params(),
            encoder=self.encoder,
            warm_start=before.judge.reward_model if before else None,
            record=self.record,
        )
        version = ModelVersion(
            name=NAME,
            version=len(self.models) + 1,
            kind="reward_model",
            uri="memory",
            content_hash=fitted.model.weights_hash,
            data_hash=fitted.report.data_hash,
            data_seq=seq,
        )
        never = before is None or not before.is_calibrated
        params = CalibrationParams(
            allow_uncalibrated=never, weight_before_change=fitted.report.weight_before_change
        )
        calibrator, report = calibrate(
            pairs,
            fitted.model,
            params,
            reward_model_label=version.label,
            data_hash=version.data_hash or "",
            votes=VoteFacts(noise_ceiling_or_repeats(seen), taste_changes=changes),
            record=self.record,
        )
        judge = Judge(version, fitted.model, calibrator, f"{report.method}@{version.version}")
        calib = pairs[pairs["split"] == "calib"]
        verdict = assess(
            judge,
            before.judge if before else None,
            calib,
            taste_changes=changes,
            ceiling=report.noise_ceiling,
        )
        facts = (
            f"{reason}: {version.label} on {fitted.report.n_train} pairs, {report.method}, "
            f"{verdict.reason}"
        )
        self.told(f"  {facts}{'' if verdict.is_accepted else '; the old one goes on'}")
        self.decisions.append(facts)
        self._refused_at = seq if verdict.is_refused else None
        if not verdict.is_accepted:
            return
        reference = None
        if report.candidates:
            reference = reference_window(
                calib,
                judge.p_chosen(calib),
                model_version=version.label,
                embed=judge.reward_model.features,
                taste_changes=changes,
            )
        self.models.append(ServedModel(judge, seq + 1, reason, reference, bool(report.candidates)))

    def _decide(self, day: str, seq: int) -> str:
        """The trigger's decision at the end of the day, on the events there are."""
        now = datetime.combine(date.fromisoformat(day) + timedelta(days=1), time(), UTC)
        new = self.events[self._n_decided :]
        if not new or self.current_model is None:
            return ""
        held = self.events[self._held_from : self._n_decided]
        decision = decide(
            TriggerEvidence(
                champion=self.current_model.judge.label,
                open_events=tuple(new),
                held_events=tuple(held),
                last_fired_at=self._fired_at,
                n_new_votes=int(
                    ((self.votes["seq"] > self._fired_seq) & (self.votes["seq"] <= seq)).sum()
                ),
                max_seq=seq,
                now=now,
            )
        )
        self._n_decided = len(self.events)
        text = f"; {decision.action}: {'; '.join(decision.reasons)}"
        self.decisions.append(f"{day}{text}")
        if decision.action == "fire":
            self._fired_at = now
            self._fired_seq = seq
            self._held_from = len(self.events)
            if decision.change_seq is not None:
                self._changed_at.append(decision.change_seq)
            try:
                self._learn(seq, "drift")
            except NotEnoughData as few:
                text += f"; not refitted: {few}"
        return text

    @property
    def rows(self) -> pd.DataFrame:
        """REFLECTIONS of all days that a model predicted."""
        return concat(self.reflections, REFLECTIONS)


def iso_week(days: pd.Series) -> pd.Series:
    """W04 … W10 of the days' year."""
    return "W" + pd.to_datetime(days).dt.isocalendar().week.astype(str).str.zfill(2)


def week_windows(days: RealDays, weeks: tuple[str, ...]) -> dict[str, tuple[Window, pd.DataFrame]]:
    """Of each week: all that was predicted in it as one window, whichever model served, and its
    rows.
    """
    rows = days.rows
    last = days.models[-1].judge
    found = {}
    for week in weeks:
        mine = rows[iso_week(rows["voted_at"].dt.strftime("%Y-%m-%d")) == week].assign(
            reward_model="prequential"
        )
        found[week] = (
            current_window(
                mine,
                days.comparisons,
                model_version="prequential",
                embed=last.reward_model.features,
            ),
            mine,
        )
    return found


def models_between(days: RealDays, rows: pd.DataFrame) -> str:
    return ", ".join(
        sorted(rows["reward_model"].unique(), key=lambda label: int(label.rpartition("@")[2]))
    )


__all__ = ["RealDays", "iso_week", "models_between", "week_windows"]
