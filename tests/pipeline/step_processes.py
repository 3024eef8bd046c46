"""Not a test: a day's collection with every stage in a process of its own, of a project that the environment does not name.

`python step_processes.py DAY RUN_CONFIG`, the project's settings as JSON in STEP_SETTINGS.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402

from assets import STAGES  # noqa: E402
from jobs.executors import training_executor  # noqa: E402
from resources import resources_for  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402


def collection_in_processes() -> dg.JobDefinition:
    job = dg.define_asset_job(
        "collection_in_processes", selection=["prompts", "completions", "comparisons"], executor_def=training_executor
    )
    definitions = dg.Definitions(
        assets=STAGES, jobs=[job], resources=resources_for(Settings.model_validate_json(os.environ["STEP_SETTINGS"]))
    )
    return definitions.resolve_job_def(job.name)


if __name__ == "__main__":
    partition, run_config = sys.argv[1:]
    with dg.DagsterInstance.get() as instance:
        done = dg.execute_job(
            dg.reconstructable(collection_in_processes), instance, run_config=json.loads(run_config), tags={"dagster/partition": partition}
        )
    sys.exit(0 if done.success else 1)
