"""`rlhf replay`: takes the steps of the replay sensor in this process until no day is left."""

from collections.abc import Iterator

from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.replay import Replay, end_of_day
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.improve.retraining.messages import describe_action
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
