"""The replay: days of imported votes, lived through one after another as if the loop had run then.

Of each day, in this order: its feedback, in which the champion of that morning first predicts what
will be judged; the trigger's decision at the day's end and, where it fires, reward model and
calibration refitted; a first or later reward model where there is enough to learn from. No policy
made these completions, so none is retrained on them.

How far it came is read from the runs, by tag, and from `store.replays`: the sensor and `rlhf
replay` take the same steps, each goes on where the other stood, and what is asked for again is
found done.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from filelock import FileLock, Timeout

from assets.partitions import DAYS
from jobs.feedback import feedback, learning
from rlhf_pipeline.calibration import CalibrationParams
from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import Promotion, TriggerDecision
from rlhf_pipeline.retraining.triggers import TriggerParams, decide
from rlhf_pipeline.store import Store, UnfinishedImport
from rlhf_pipeline.store.imports import KILLED
from sensors.learning import describe_shortage, is_uncalibrated, model_name
from sensors.runs import (
    STEP_TAG,
    SUBMISSION_LEASE,
    describe_failure,
    error_chain,
    failures_of,
    find_run,
    status_of,
    store_of,
)
from sensors.votes import RANGE_PROJECT_TAG, UP_TO_SEQ_TAG

MAX_ATTEMPTS = 3
LEFT_OUT_TAG = "rlhf/left_out"  # how many comparisons of its day a feedback does not predict
TOO_LITTLE_DATA = {"NotEnoughData", "NotEnoughVotes"}
UNFINISHED_STATUSES = {
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
    dg.DagsterRunStatus.MANAGED,
}


@dataclass(frozen=True)
class ReplayWait:
    """Nothing to be started now, and why. `is_stuck`: nothing will be, until somebody mends what
    the reason names.
    """

    reason: str
    is_stuck: bool = False


@dataclass(frozen=True)
class Replay:
    """The steps of a replay, each asked for until it succeeded; after `max_attempts` (None: never)
    it waits for a person.
    """

    settings: Settings
    instance: dg.DagsterInstance
    store: Store
    max_attempts: int | None = MAX_ATTEMPTS

    def advance(self) -> dg.RunRequest | ReplayWait | None:
        """The next run, in order of days; or why there is none now; None once no day is left. Marks
        days as done on the way.
        """
        while days := self.store.replays.pending_days():
            day = days[0]
            if unfinished := self._wait_for_import(day):
                return unfinished
            if not DAYS.has_partition_key(day):
                return ReplayWait(
                    f"{day} waits for its replay, but partitions begin with "
                    f"{DAYS.get_first_partition_key()} here. Reload the code location (Deployment "
                    "→ Reload) or start `rlhf dev` again; `rlhf replay` in a terminal needs "
                    "neither.",
                    is_stuck=True,
                )
            seq = self.store.votes.last_imported_seq(day)
            step = self._next_step(day, seq) if seq else None
            if step is not None:
                return step
            self.store.replays.mark_done(day, up_to_seq=seq)
        return None

    def is_excused(self, step: dg.RunRequest) -> bool:
        """Whether the replay goes on although this step failed: there was too little to learn from,
        a later day will have more.
        """
        run = find_run(self.instance, step.run_key or "")
        return step.job_name == learning.name and run is not None and self._lacks_data(run.run_id)

    def _wait_for_import(self, day: str) -> ReplayWait | None:
        """A day is replayed once, with all its votes, and after all days before it."""
        unfinished = self.store.imports.find_unfinished()
        half = [i for i in unfinished if i.first_day is None or i.first_day <= day]
        if not half:
            return None
        started = [i for i in unfinished if i.state == "started"]
        if started and _is_locked(self.settings.home / "imports" / ".lock"):
            return ReplayWait(f"{_describe_import(started[-1])} is not finished.")
        first, ended = half[0], half[0].error
        why = (
            "was killed before its end"
            if ended in (None, KILLED)
            else f"failed before its end ({ended})"
        )
        days = f"{first.n_days} days from {first.first_day}" if first.first_day else "its days"
        return ReplayWait(
            f"{day} waits. {_describe_import(first)} {why}, so a part of the votes of {days} may "
            "be missing. Import the same file again: what is missing is added. Or call `rlhf "
            "replay --unfinished`: it replays these days with the votes they have.",
            is_stuck=True,
        )

    def _next_step(self, day: str, seq: int) -> dg.RunRequest | ReplayWait | None:
        # The decision comes before a refit for the sake of more data: the new champion would
        # supersede the events, and votes from before a change would go on counting in full.
        return (
            self._feedback_step(day, seq)
            or self._decision_step(day, seq)
            or self._learning_step(day, seq)
        )

    def _feedback_step(self, day: str, seq: int) -> dg.RunRequest | ReplayWait | None:
        config = {
            "votes": {"up_to_seq": seq},
            "reflection_log": {"is_replay": True},
            "drift_report": {"up_to_seq": seq},
        }
        # By these the votes sensor finds it and asks for nothing that it took.
        tags = {UP_TO_SEQ_TAG: str(seq), RANGE_PROJECT_TAG: self.settings.project}
        return self._request_step(
            "feedback",
            day,
            seq,
            feedback.name,
            config,
            tags=tags,
            partition=day,
            left_out=lambda: self._count_unpredicted(day),
        )

    def _count_unpredicted(self, day: str) -> int:
        """Comparisons of the day that its feedback will not predict, because the champion has seen
        votes of later days.
        """
        champion = self._champion()
        return (
            self.store.predictions.count_left_out(day, data_seq=champion.data_seq)
            if champion and champion.data_seq
            else 0
        )

    def _learning_step(self, day: str, seq: int) -> dg.RunRequest | ReplayWait | None:
        known = self._last_learnable_seq(day, seq)
        # Once asked for it is waited for: its champion, with which pairs are short, is promoted
        # before its run is over.
        is_asked = bool(self._runs(day, seq, "learning"))
        if (
            not is_asked
            and describe_shortage(self.settings, self.store, up_to_seq=known)
            and not self._can_be_calibrated_now(known)
        ):
            return None
        return self._request_step(
            "learning", day, seq, learning.name, self._learning_config(known), may_lack_data=True
        )

    def _last_learnable_seq(self, day: str, seq: int) -> int:
        """Up to where to learn at the end of `day`: `seq`, or below the first vote of a day that is
        still to be predicted.

        An earlier import may have brought such votes. A champion that has seen one can predict no
        day before it: nothing is spared then.
        """
        later, champion = self.store.replays.first_waiting_seq(day, up_to_seq=seq), self._champion()
        known = champion.data_seq or 0 if champion else 0
        return seq if later is None or later <= known else later - 1

    def _champion(self) -> Promotion | None:
        return self.store.promotions.champion(model_name(self.settings))

    def _can_be_calibrated_now(self, seq: int) -> bool:
        """Where an import's own split gave the first days nothing to calibrate with, the first days
        that do are not waited past.
        """
        needed = CalibrationParams().min_pairs
        return (
            bool(is_uncalibrated(self.settings, self.store))
            and self.store.votes.n_voted_comparisons(up_to_seq=seq, split="calib") >= needed
        )

    def _decision_step(self, day: str, seq: int) -> dg.RunRequest | ReplayWait | None:
        now = end_of_day(day)
        champion = self._champion()
        label = f"{champion.model_name}@{champion.version}" if champion else None
        self.store.decisions.decide(
            partial(decide, params=TriggerParams()), now=now, champion=label, up_to_seq=seq
        )
        for decision in self._open_decisions(now):
            step = self._refit_step(decision, day, seq)
            if step is not None:
                return step
        return None

    def _open_decisions(self, now: datetime) -> list[TriggerDecision]:
        """Those of a replayed day carry its end as their time; others are none of the replay's."""
        return [
            d
            for d in (
                *self.store.decisions.pending_fires(),
                *self.store.decisions.submitted_fires(),
            )
            if d.decided_at == now
        ]

    def _refit_step(
        self, decision: TriggerDecision, day: str, seq: int
    ) -> dg.RunRequest | ReplayWait | None:
        name, number = f"decision-{decision.decision_id}", int(decision.decision_id or 0)
        step = self._request_step(
            name,
            day,
            seq,
            learning.name,
            self._learning_config(self._last_learnable_seq(day, seq)),
            may_lack_data=True,
        )
        runs = self._runs(day, seq, name)
        if runs:
            self.store.decisions.mark_submitted(number, decision.attempt, runs[0].run_id)
        if step is None:
            succeeded = any(run.status == dg.DagsterRunStatus.SUCCESS for run in runs)
            error = None if succeeded else describe_failure(self.instance, runs[0].run_id)
            self.store.decisions.mark_finished(number, succeeded=succeeded, error=error)
        return step

    def _learning_config(self, seq: int) -> dict[str, dict[str, Any]]:
        """No vote above `seq` is learnt from. Only what has never been calibrated may go on
        without.
        """
        never = is_uncalibrated(self.settings, self.store) is not False
        config: dict[str, Any] = {"up_to_seq": seq}
        return {
            "preference_pairs": config,
            "annotator_model": config,
            "reward_model": config,
            "calibration": {**config, "allow_uncalibrated": never},
        }

    def _request_step(
        self,
        name: str,
        day: str,
        seq: int,
        job: str,
        config: Mapping[str, Mapping[str, Any]],
        *,
        tags: Mapping[str, str] | None = None,
        partition: str | None = None,
        may_lack_data: bool = False,
        left_out: Callable[[], int] = int,
    ) -> dg.RunRequest | ReplayWait | None:
        """A step until it succeeded: its next attempt, or why that waits. None once it did, or
        where there is too little to learn from.
        """
        runs = self._runs(day, seq, name)
        states = [status_of(self.instance, run.run_id) for run in runs]
        if dg.DagsterRunStatus.SUCCESS in states:
            return None
        if running := [
            run for run, state in zip(runs, states, strict=True) if state in UNFINISHED_STATUSES
        ]:
            return ReplayWait(
                "; ".join(
                    [
                        f"{day}: {job} goes on in run {running[0].run_id[:8]}",
                        *describe_unpredicted_of(day, running[0].tags),
                    ]
                )
            )
        if runs and may_lack_data and self._lacks_data(runs[0].run_id):
            return None
        if self.max_attempts is not None and len(runs) >= self.max_attempts:
            return ReplayWait(
                f"The replay stopped at {day}: {job} failed {len(runs)} times, last in run "
                f"{runs[0].run_id[:8]}: {describe_failure(self.instance, runs[0].run_id)}. Mend "
                "it, then re-execute that run or call `rlhf replay`; both go on from here.",
                is_stuck=True,
            )
        key = f"{self._step_tag(day, seq, name)}:{len(runs) + 1}"
        # First the lease, then another look: whoever had it before has made its run by now.
        leased = self.store.replays.lease(day, key, now=datetime.now(UTC), lease=SUBMISSION_LEASE)
        if not leased or find_run(self.instance, key) is not None:
            return ReplayWait(f"{day}: {job} is being started by another process")
        return dg.RunRequest(
            run_key=key,
            job_name=job,
            partition_key=partition,
            run_config={
                "ops": {stage: {"config": dict(values)} for stage, values in config.items()}
            },
            tags={
                STEP_TAG: self._step_tag(day, seq, name),
                **(tags or {}),
                **({LEFT_OUT_TAG: str(n)} if (n := left_out()) else {}),
            },
        )

    def _lacks_data(self, run_id: str) -> bool:
        """Whether a run failed because there is too little to learn from yet."""
        return any(
            e.cls_name in TOO_LITTLE_DATA
            for error in failures_of(self.instance, run_id).values()
            for e in error_chain(error)
        )

    def _runs(self, day: str, seq: int, name: str) -> list[dg.DagsterRun]:
        """The step's attempts, newest first; a run that was re-executed by hand is one of them."""
        return list(
            self.instance.get_runs(dg.RunsFilter(tags={STEP_TAG: self._step_tag(day, seq, name)}))
        )

    def _step_tag(self, day: str, seq: int, name: str) -> str:
        return f"replay:{self.settings.project}:{day}:{seq}:{name}"


def describe_unpredicted(days: Mapping[str, int]) -> Iterator[str]:
    """One sentence, where comparisons of replayed days are left out: how many of which days, and
    why.
    """
    if left := {day: n for day, n in days.items() if n}:
        span = min(left) if len(left) == 1 else f"{min(left)}–{max(left)}"
        yield (
            f"{sum(left.values()):,} comparisons of {span} were imported after later days were "
            "learnt; they stay outside the drift streams"
        )


def describe_unpredicted_of(day: str, tags: Mapping[str, str]) -> Iterator[str]:
    """`describe_unpredicted` of a single day, by the tags of its feedback."""
    return describe_unpredicted({day: int(tags.get(LEFT_OUT_TAG, 0))})


def _describe_import(half: UnfinishedImport) -> str:
    return f"The import of {half.file} since {half.started_at:%Y-%m-%d %H:%M} UTC"


def _is_locked(lock: Path) -> bool:
    """Whether an import works in this home; one that was killed holds its lock no more."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


def replay_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="replay",
        jobs=[feedback, learning],
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def replay(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests the next step of the oldest imported day, one run after another."""
        store = store_of(context, settings)
        step = Replay(settings, context.instance, store).advance()
        if isinstance(step, dg.RunRequest):
            for sentence in describe_unpredicted_of(step.partition_key or "", step.tags):
                context.log.warning(sentence)
            return dg.SensorResult(run_requests=[step])
        return dg.SkipReason(step.reason if step else "no imported day waits for its replay")

    return replay


def end_of_day(day: str) -> datetime:
    """The moment at which a replayed day's trigger decides: cool-downs are counted in the time of
    the votes.
    """
    return datetime.combine(date.fromisoformat(day), time.max, UTC)
