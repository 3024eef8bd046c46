"""`rlhf replay`: takes the steps of the replay sensor in this process until no day is left."""

from collections.abc import Iterator, Sequence

from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.replay import Replay, end_of_day
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.improve.retraining.messages import describe_action
from rlhf_pipeline.improve.reward_training import plan_next_fit
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store


def replay_days(runner: Runner) -> Iterator[str]:
    """Each day that waited once its replay is over.

    Raises PipelineError, naming day and cause, where a step fails or has to wait; the next call
    goes on from there.
    """
    runner.retry_command = "`rlhf replay`"
    replay = Replay(runner.settings, runner.instance, runner.store, max_attempts=None)
    days = runner.store.replays.pending_days()
    while days:
        step = replay.advance()
        pending = runner.store.replays.pending_days()
        yield from (day for day in days if day not in pending)
        days = pending
        if isinstance(step, str):
            raise PipelineError(step)
        if step is not None:
            try:
                runner.run_request(step, "replay", days[0])
            except PipelineError:
                if not replay.is_excused(step):
                    raise


def describe_decisions(store: Store, day: str) -> list[str]:
    """The trigger's decisions at the end of a day."""
    return [
        f"{describe_action(decision)}: {'; '.join(decision.reasons)}"
        for decision in store.decisions.all()
        if decision.decided_at == end_of_day(day)
    ]


def describe_unwatched_days(settings: Settings, store: Store, days: Sequence[str]) -> str:
    """In which of the replayed days no change of taste can be noticed, why, and what to do; empty
    where there is none.
    """
    history = store.promotions.history(settings.reward_model)
    if not history:
        return (
            f"No reward model yet, so no change of taste can be noticed: "
            f"{plan_next_fit(settings, store).shortage}."
        )
    learnt = store.votes.days([history[0].data_seq])
    unwatched = [
        day for day in days if any(day <= f"{vote_day.cast}" for vote_day in learnt.values())
    ]
    if not unwatched:
        return ""
    return (
        f"Until {unwatched[-1]} ({len(unwatched)} of {format_count(len(days), 'day')}) no reward "
        f"model predicted the votes: the first one needs {settings.min_new_pairs} voted "
        "comparisons (min_new_pairs). A change of taste in these days is not noticed; record one "
        "that you know of by `rlhf changes add`."
    )
