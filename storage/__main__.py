"""`python -m storage …`: called by `rlhf storage`, which may not know Dagster. Prints lines of JSON; DAGSTER_HOME names the instance."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from rlhf_pipeline.config import DAGSTER_URL, silence_telemetry

silence_telemetry()

import dagster as dg  # noqa: E402

from rlhf_pipeline.errors import PipelineError  # noqa: E402
from storage import dagster_history  # noqa: E402


def say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def main(task: str) -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    home = Path(os.environ["DAGSTER_HOME"])
    try:
        if task == "make-tables":
            dagster_history.open_target(os.environ[DAGSTER_URL])
        elif task == "move":
            for table in dagster_history.move(
                home, os.environ[DAGSTER_URL], lambda done, total, note="": say(progress=[done, total, note])
            ):
                say(table=table.model_dump())
        else:
            with dg.DagsterInstance.from_config(str(home)) as instance:
                if task == "state":
                    say(state=dagster_history.state(instance))
                else:
                    say(error=f"no task {task!r}: make-tables, move, state")
                    return 2
    except PipelineError as error:
        say(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
