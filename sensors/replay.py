"""The replay sensor: imported days go through the loop one after another, as if it had run then.

The steps of a day, in this order: its feedback, in which the champion of that morning first
predicts what will be judged; the trigger's decision at the day's end and, where it fires, a refit
of reward model and calibration; a first or later reward model where there are enough pairs. No
policy made these completions, so none is retrained on them.

Progress is read from the tags of the runs and from `store.replays`. So the sensor and `rlhf replay`
take the same steps, either continues where the other stopped, and a step that succeeded is not
repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import partial
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.assets.retraining_decision import decision_event
from rlhf_pipeline.application.jobs.feedback import feedback, learning, learning_config
from rlhf_pipeline.application.jobs.loop import ENDED_STATUSES, RETRIES_TAG
from rlhf_pipeline.application.jobs.retraining import recalibration, recalibration_config
from rlhf_pipeline.application.sensors.runs import (
    RANGE_PROJECT_TAG,
    STEP_TAG,
    UP_TO_SEQ_TAG,
    SensorTick,
    describe_failure,
    error_chain,
    failures_of,
    find_run,
    loop_sensor,
    status_of,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Promotion, TriggerDecision
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.retraining.triggers import decide
from rlhf_pipeline.improve.reward_training import (
    find_reason_to_wait,
    is_uncalibrated,
    plan_next_fit,
)
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store

MAX_ATTEMPTS = 3
TOO_LITTLE_DATA = {"NotEnoughData", "NotEnoughVotes"}


@dataclass(frozen=True)
class Replay:
    """The replay of one home. Each step is requested until it succeeds; after `max_attempts` (None:
    no limit) it waits for a person.
    """

    settings: Settings
    instance: dg.DagsterInstance
    store: Store
    max_attempts: int | None = MAX_ATTEMPTS

    def advance(self) -> dg.RunRequest | str | None:
        """The next run, in order of days, or why none starts now; None once no day is left. Marks
        finished days as done.
        """
        while days := self.store.replays.pending_days():
            day = days[0]
            if unfinished := self._wait_for_import(day):
                return unfinished
            if not DAYS.has_partition_key(day):
                return (
                    f"{day} waits for its replay, but partitions begin with "
                    f"{DAYS.get_first_partition_key()} here. Reload the code location (Deployment "
                    "→ Reload) or start `rlhf dev` again; `rlhf replay` in a terminal needs "
                    "neither."
                )
            seq = self.store.votes.last_imported_seq(day)
            step = self._next_step(day, seq) if seq else None
            if step is not None:
                return step
            self.store.replays.mark_done(day, up_to_seq=seq)
        return None

    @property
    def _loop(self) -> LoopSettings:
        """Read anew for each step. Raises ConfigurationError for an invalid file."""
        return LoopSettings.read(self.settings)

    def is_excused(self, step: dg.RunRequest) -> bool:
        """Whether the replay goes on although this step failed: there were too few pairs to learn
        from, and a later day has more.
        """
        run = find_run(self.instance, step.run_key or "")
        return step.job_name == learning.name and run is not None and self._lacks_data(run.run_id)

    def _wait_for_import(self, day: str) -> str | None:
        """A day waits for all its votes, and for all days before it."""
        unfinished = self.store.imports.find_unfinished()
        half = [i for i in unfinished if i.first_day is None or i.first_day <= day]
        if not half:
            return None
        first = half[0]
        days = (
            f"{format_count(first.n_days, 'day')} from {first.first_day}"
            if first.first_day
            else "its days"
        )
        return (
            f"{day} waits. The import of {first.file} since {first.started_at:%Y-%m-%d %H:%M} UTC "
            f"is not finished ({first.error or 'it may still run'}), so a part of the votes of "
            f"{days} may be missing. Wait for its end. If it failed or was killed, import the same "
            "file again: what is missing is added. Or call `rlhf replay --unfinished`: it replays "
            "these days with the votes they have."
        )

    def _next_step(self, day: str, seq: int) -> dg.RunRequest | str | None:
        # The decision comes before a refit for the sake of more data: the new champion would
        # supersede the events, and votes from before a change would go on counting in full.
        return (
            self._feedback_step(day, seq)
            or self._decision_step(day, seq)
            or self._learning_step(day, seq)
        )

    def _feedback_step(self, day: str, seq: int) -> dg.RunRequest | str | None:
        stages: dict[str, dict[str, Any]] = {
            "votes": {"up_to_seq": seq},
            "reflection_log": {"is_replay": True},
            "drift_report": {"up_to_seq": seq},
        }
        config = {"ops": {stage: {"config": values} for stage, values in stages.items()}}
        return self._request_step(day, seq, "feedback", feedback.name, config)

    def _learning_step(self, day: str, seq: int) -> dg.RunRequest | str | None:
        learnable_seq = self._last_learnable_seq(day, seq)
        # A learning run promotes its champion, for which pairs are short again, before it ends: one
        # that was requested is waited for.
        if not self._runs(day, seq, "learning") and not self._is_fit_due(day, seq, learnable_seq):
            return None
        config = self._learning_config(learnable_seq)
        return self._request_step(day, seq, "learning", learning.name, config)

    def _is_fit_due(self, day: str, seq: int, learnable_seq: int) -> bool:
        is_short = (
            plan_next_fit(self.settings, self.store, up_to_seq=learnable_seq).shortage is not None
        )
        if is_short and not self._can_be_calibrated_now(learnable_seq):
            return False
        trigger = self._loop.trigger
        return not find_reason_to_wait(
            self.settings, self.store, trigger, now=end_of_day(day), up_to_seq=seq
        )

    def _last_learnable_seq(self, day: str, seq: int) -> int:
        """The last vote to learn from at the end of `day`: `seq`, or the one before the first vote
        of a day that still waits for its prediction.

        An earlier import may have brought such votes. A champion that has learnt from one of them
        can predict no earlier day, so nothing is held back then.
        """
        later, champion = self.store.replays.first_waiting_seq(day, up_to_seq=seq), self._champion()
        champion_seq = champion.data_seq or 0 if champion else 0
        return seq if later is None or later <= champion_seq else later - 1

    def _champion(self) -> Promotion | None:
        return self.store.promotions.champion(self.settings.reward_model)

    def _can_be_calibrated_now(self, seq: int) -> bool:
        """Whether the champion is uncalibrated, because the import's own split gave the first days
        no calibration pairs, and there are enough of them by now.
        """
        needed = self._loop.calibration.min_pairs
        return (
            bool(is_uncalibrated(self.settings, self.store))
            and self.store.votes.n_voted_comparisons(up_to_seq=seq, split="calib") >= needed
        )

    def _decision_step(self, day: str, seq: int) -> dg.RunRequest | str | None:
        now = end_of_day(day)
        champion = self._champion()
        decision = self.store.decisions.apply_rule(
            partial(decide, params=self._loop.trigger),
            now=now,
            champion=champion.label if champion else None,
            up_to_seq=seq,
        )
        if decision is not None and decision.decision_id is not None:  # else it is not stored
            self.instance.report_runless_asset_event(decision_event(decision))
        for decision in self._open_decisions(now):
            step = self._refit_step(decision, day, seq)
            if step is not None:
                return step
        return None

    def _open_decisions(self, now: datetime) -> list[TriggerDecision]:
        """The fire decisions of a replayed day: they carry its end as their time."""
        return [
            d
            for d in (
                *self.store.training_jobs.pending(),
                *self.store.training_jobs.submitted(),
            )
            if d.decided_at == now
        ]

    def _refit_step(
        self, decision: TriggerDecision, day: str, seq: int
    ) -> dg.RunRequest | str | None:
        number = decision.stored_id
        name = f"decision-{number}"
        learnable_seq = self._last_learnable_seq(day, seq)
        if decision.remedy == "refit_calibrator":
            job, config = recalibration.name, recalibration_config(learnable_seq)
        else:
            job, config = learning.name, self._learning_config(learnable_seq)
        step = self._request_step(day, seq, name, job, config)
        runs = self._runs(day, seq, name)
        if runs:
            self.store.training_jobs.mark_submitted(number, decision.attempt, runs[0].run_id)
        if step is None:
            succeeded = any(run.status == dg.DagsterRunStatus.SUCCESS for run in runs)
            error = None if succeeded else describe_failure(self.instance, runs[0].run_id)
            self.store.training_jobs.mark_finished(number, succeeded=succeeded, error=error)
        return step

    def _learning_config(self, learnable_seq: int) -> dict[str, Any]:
        """A refit on the votes up to `learnable_seq`. It may serve uncalibrated only where no
        champion has been calibrated yet.
        """
        never = is_uncalibrated(self.settings, self.store) is not False
        return learning_config(learnable_seq, allow_uncalibrated=never)

    def _request_step(
        self, day: str, seq: int, name: str, job: str, config: Mapping[str, Any]
    ) -> dg.RunRequest | str | None:
        """The next attempt of a step, or why it waits. None once it succeeded, or where there are
        too few pairs to learn from.
        """
        runs = self._runs(day, seq, name)
        is_feedback = job == feedback.name
        states = [status_of(self.instance, run.run_id) for run in runs]
        if dg.DagsterRunStatus.SUCCESS in states:
            return None
        if running := [
            run for run, state in zip(runs, states, strict=True) if state not in ENDED_STATUSES
        ]:
            return f"{day}: {job} goes on in run {running[0].run_id[:8]}"
        if runs and not is_feedback and self._lacks_data(runs[0].run_id):
            return None
        if self.max_attempts is not None and len(runs) >= self.max_attempts:
            return (
                f"The replay stopped at {day}: {job} failed "
                f"{format_count(len(runs), 'time')}, last in run "
                f"{runs[0].run_id[:8]}: {describe_failure(self.instance, runs[0].run_id)}. Fix "
                "it, then re-execute that run or call `rlhf replay`; both go on from here."
            )
        tag = self._step_tag(day, seq, name)
        # The votes sensor finds feedback by these tags and requests none of its votes again.
        up_to = {UP_TO_SEQ_TAG: str(seq), RANGE_PROJECT_TAG: self.settings.project}
        key = f"{tag}:{len(runs) + 1}"
        return dg.RunRequest(
            run_key=key,
            job_name=job,
            partition_key=day if is_feedback else None,
            run_config=config,
            tags={STEP_TAG: tag, RETRIES_TAG: "0"} | (up_to if is_feedback else {}),
        )

    def _lacks_data(self, run_id: str) -> bool:
        """Whether a run failed because there is too little to learn from yet."""
        return any(
            e.cls_name in TOO_LITTLE_DATA
            for error in failures_of(self.instance, run_id).values()
            for e in error_chain(error)
        )

    def _runs(self, day: str, seq: int, name: str) -> list[dg.DagsterRun]:
        """Attempts of a step, newest first; a run that was re-executed by hand is one of them."""
        return list(
            self.instance.get_runs(dg.RunsFilter(tags={STEP_TAG: self._step_tag(day, seq, name)}))
        )

    def _step_tag(self, day: str, seq: int, name: str) -> str:
        return f"replay:{self.settings.project}:{day}:{seq}:{name}"


def end_of_day(day: str) -> datetime:
    """The moment at which a replayed day's trigger decides: cool-downs are counted in the time of
    the votes.
    """
    return datetime.combine(date.fromisoformat(day), time.max, UTC)


@loop_sensor("replay", feedback, learning, recalibration)
def replay_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Requests the next step of the oldest imported day, one run after another."""
    step = Replay(tick.settings, tick.instance, tick.store).advance()
    if isinstance(step, dg.RunRequest):
        return dg.SensorResult(run_requests=[step])
    return dg.SkipReason(step or "no imported day waits for its replay")
