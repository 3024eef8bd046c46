"""Not a test: a run in a process of its own, of a project that the environment does not name.

`python step_processes.py DAY`. In the environment, where every step's process finds it too:
STEP_SETTINGS, the project's settings as JSON. STEP_JOB, the executor of three steps that do
nothing, `light` or `training`. STEP_MISHAP, whether the second step hangs, whatever interrupts it;
STEP_MARK, a file that gets the process number of each attempt; STEP_TAGS, further tags of the run
as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402

from rlhf_pipeline.application.jobs import executors  # noqa: E402
from rlhf_pipeline.core.config import Settings  # noqa: E402

executors.PRELOADED = ()  # the small steps need none of it


def mishap() -> None:
    with Path(os.environ["STEP_MARK"]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in one long operation of a library
    while True:
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
    is_light = os.environ["STEP_JOB"] == "light"
    executor = executors.light_executor if is_light else executors.training_executor
    return small.to_job(
        executor_def=executor,
        resource_defs={"settings": dg.ResourceDefinition.hardcoded_resource(settings)},
    )


if __name__ == "__main__":
    day = sys.argv[1]
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(
            dg.reconstructable(job),
            instance,
            tags={"dagster/partition": day} | json.loads(os.environ.get("STEP_TAGS", "{}")),
        )
    sys.exit(0 if done.success else 1)
