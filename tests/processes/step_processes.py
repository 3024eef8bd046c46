"""Not a test: a run in a process of its own, of a project that the environment does not name.

`python step_processes.py DAY RUN_CONFIG`. In the environment, where every step's process finds it
too: STEP_SETTINGS, the project's settings as JSON. STEP_JOB, `collection` of the project, or three
steps that do nothing under the `light` or the `training` executor. STEP_MISHAP, what happens in the
second step: `wait` for ever at the first attempt, `hang` whatever interrupts it, `die` or `raise`
at each; STEP_MARK, a file that gets the process number of each attempt; STEP_TAGS, further tags of
the run as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402

from jobs import executors  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402
from rlhf_pipeline.errors import CompletionError  # noqa: E402

JOB = os.environ.get("STEP_JOB")
if JOB in ("light", "training"):
    executors.PRELOADED = ()  # the small steps need none of it


def mishap(*_: Any, **__: Any) -> None:
    kind, mark = os.environ["STEP_MISHAP"], Path(os.environ["STEP_MARK"])
    with mark.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":  # as in one long operation of a library
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if kind == "raise":
        raise CompletionError("a backend that refuses")
    while len(set(mark.read_text(encoding="utf-8").split())) == 1:
        time.sleep(0.1)


@dg.op
def first() -> int:
    return 1


@dg.op
def second(n: int) -> int:
    if "STEP_MISHAP" in os.environ:
        mishap()
    return n + 1


@dg.op
def third(n: int) -> int:
    return n + 1


@dg.graph
def small() -> None:
    third(second(first()))


def job() -> dg.JobDefinition:
    settings = Settings.model_validate_json(os.environ["STEP_SETTINGS"])
    if JOB == "collection":
        from definitions import definitions_for

        overrides: dict[str, Any] = {}
        if "STEP_MISHAP" in os.environ:
            overrides["progress"] = lambda stage: (
                mishap if stage == "completions" else lambda *_, **__: None
            )
        return definitions_for(settings, **overrides).resolve_job_def(JOB)
    executor = executors.training_executor if JOB == "training" else executors.light_executor
    return small.to_job(
        executor_def=executor,
        resource_defs={"settings": dg.ResourceDefinition.hardcoded_resource(settings)},
    )


if __name__ == "__main__":
    day, run_config = sys.argv[1:]
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(
            dg.reconstructable(job),
            instance,
            run_config=json.loads(run_config),
            tags={"dagster/partition": day} | json.loads(os.environ.get("STEP_TAGS", "{}")),
        )
    sys.exit(0 if done.success else 1)
