"""The executors of runs: light stages in the run's process, training in processes of its own.

Every run writes a heartbeat from start to end, in the run's own process, so that it goes on between
steps and while a step's process is busy.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

# the public API has no names for the parts of an executor
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.executor.multiprocess import MultiprocessExecutor

from rlhf_pipeline.application.jobs.cancellation import stop_when_cancelled
from rlhf_pipeline.application.jobs.loop import open_store
from rlhf_pipeline.application.jobs.run_spans import record_run
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import homes

# Imported once by the process that steps are forked from; nearly every step needs them, at seconds
# of CPU. Only installed packages, because that process does not have this folder on its path.
PRELOADED = ("pandas", "pyarrow.parquet", "sqlalchemy", "mlflow", "great_expectations")


class HeartbeatExecutor(dg.Executor):
    """Wraps another executor in a heartbeat, and traces the run once it has ended."""

    def __init__(self, inner: dg.Executor):
        self._inner = inner

    @property
    def retries(self) -> Any:
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[Any]:
        settings = _settings(plan_context)
        store = open_store(settings)
        beating = store.heartbeats.keep_beating(
            plan_context.run_id, job=plan_context.job_name, seconds=settings.heartbeat_seconds
        )
        try:
            with (
                beating,
                stop_when_cancelled(
                    store,
                    plan_context.instance,
                    plan_context.run_id,
                    plan_context.dagster_run.tags,
                    kills_children=True,
                ),
            ):
                yield from self._inner.execute(plan_context, execution_plan)
        finally:
            homes.record_end(settings, store.database)
            record_run(settings, plan_context.instance, plan_context.run_id)


def _settings(context: Any) -> Settings:
    """The settings of the definitions: every job has them as a resource."""
    settings_resource = context.job.get_definition().resource_defs["settings"]
    with dg.build_resources(
        {"settings": settings_resource}, instance=context.instance
    ) as resources:
        settings: Settings = resources.settings
        return settings


def _make_light_executor(context: dg.InitExecutorContext) -> dg.Executor:
    return HeartbeatExecutor(InProcessExecutor(retries=RetryMode.ENABLED))


def _make_training_executor(context: dg.InitExecutorContext) -> dg.Executor:
    processes = MultiprocessExecutor(
        retries=RetryMode.ENABLED,
        max_concurrent=1,
        start_method="forkserver",
        explicit_forkserver_preload=PRELOADED,
    )
    return HeartbeatExecutor(processes)


light_executor = dg.ExecutorDefinition(
    name="light_executor",
    config_schema={},
    executor_creation_fn=_make_light_executor,
    description="All steps in the run's own process: one for each step would cost 3 s of CPU.",
)

# Training steps run in processes of their own, so that their memory is returned.
training_executor = dg.ExecutorDefinition(
    name="training_executor",
    config_schema={},
    executor_creation_fn=_make_training_executor,
    requirements=dg.multiple_process_executor_requirements(),
    description="Each step in a process of its own, one after another.",
)
