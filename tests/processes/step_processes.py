"""Not a test: a day's collection in a process of its own, of a project that the environment does
not name.

`python step_processes.py DAY RUN_CONFIG`. In the environment, where every step's process finds it
too: STEP_SETTINGS, the project's settings as JSON. STEP_JOB, a job of the project; without it a
collection under the training executor. STEP_MISHAP, what happens when a completion was made: `wait`
for ever at the first attempt, `die` or `raise` at each; STEP_MARK, a file that gets the process
number of each attempt.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402

from assets import STAGES  # noqa: E402
from definitions import definitions_for  # noqa: E402
from jobs.executors import training_executor  # noqa: E402
from resources import resources_for  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402
from rlhf_pipeline.errors import CompletionError  # noqa: E402


def mishap(*_: Any, **__: Any) -> None:
    kind, mark = os.environ["STEP_MISHAP"], Path(os.environ["STEP_MARK"])
    with mark.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise CompletionError("a backend that refuses")
    while len(set(mark.read_text(encoding="utf-8").split())) == 1:
        time.sleep(0.1)


def collection() -> dg.JobDefinition:
    settings = Settings.model_validate_json(os.environ["STEP_SETTINGS"])

    def progress(stage: str) -> Callable[..., None]:
        return mishap if stage == "completions" else lambda *_, **__: None

    overrides = {"progress": progress} if "STEP_MISHAP" in os.environ else {}
    if "STEP_JOB" in os.environ:
        return definitions_for(settings, **overrides).resolve_job_def(os.environ["STEP_JOB"])
    job = dg.define_asset_job(
        "collection_in_processes",
        selection=["prompts", "completions", "comparisons"],
        executor_def=training_executor,
    )
    definitions = dg.Definitions(
        assets=STAGES, jobs=[job], resources=resources_for(settings) | overrides
    )
    return definitions.resolve_job_def(job.name)


if __name__ == "__main__":
    partition, run_config = sys.argv[1:]
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(
            dg.reconstructable(collection),
            instance,
            run_config=json.loads(run_config),
            tags={"dagster/partition": partition},
        )
    sys.exit(0 if done.success else 1)
