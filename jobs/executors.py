"""How runs are executed: light stages in the run's process, training in processes of its own. Both beat from start to end.

The heartbeat is the run process's own, so it goes on between steps and while a step's process holds the interpreter.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store


class BeatingExecutor(dg.Executor):
    """Another executor with a heartbeat around it."""

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
        beating = _store(settings).heartbeats.beating(plan_context.run_id, job=plan_context.job_name, seconds=settings.heartbeat_seconds)
        with beating:
            yield from self._inner.execute(plan_context, execution_plan)


def _settings(plan_context: Any) -> Settings:
    """Those the definitions were made with: every job of theirs has them as a resource."""
    found = plan_context.job.get_definition().resource_defs["settings"]
    with dg.build_resources({"settings": found}, instance=plan_context.instance) as resources:
        settings: Settings = resources.settings
        return settings


@lru_cache(maxsize=1)
def _store(settings: Settings) -> Store:
    return Store.open(settings.store_url, organization=settings.organization, project=settings.project)


def _beating(executor: dg.ExecutorDefinition, name: str) -> dg.ExecutorDefinition:
    return dg.ExecutorDefinition(
        name=name,
        config_schema=executor.config_schema,
        requirements=executor.get_requirements,
        executor_creation_fn=lambda context: BeatingExecutor(executor.executor_creation_fn(context)),
        description=executor.description,
    )


light_executor = _beating(dg.in_process_executor, "light_executor")

# Training steps run in processes of their own, so that their memory is returned; forkserver starts each from a process
# that has imported Dagster once.
training_executor = _beating(dg.multiprocess_executor, "training_executor").configured(
    {"max_concurrent": 1, "start_method": {"forkserver": {}}}, name="training_executor"
)
