"""`python -m driver TASK`: facts of Dagster's storage, one JSON object a line.

DAGSTER_HOME names the home. A process of its own opens copies of it, which Dagster would migrate.
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_pipeline.config import DAGSTER_URL, silence_telemetry

silence_telemetry()

import dagster as dg  # noqa: E402

from driver import dagster_history  # noqa: E402
from rlhf_pipeline.errors import PipelineError  # noqa: E402


def print_fact(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def print_progress(done: int, total: int, note: str = "") -> None:
    print_fact(progress=[done, total, note])


def make_tables() -> None:
    dagster_history.open_target(os.environ[DAGSTER_URL])


def move_history() -> None:
    for table in dagster_history.move_history(
        Path(os.environ["DAGSTER_HOME"]), os.environ[DAGSTER_URL], print_progress
    ):
        print_fact(table=table.model_dump())


def print_state() -> None:
    with open_instance() as instance:
        print_fact(state=dagster_history.read_state(instance))


def open_instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"])


FACT_TASKS: dict[str, Callable[[], None]] = {
    "state": print_state,
    "make-tables": make_tables,
    "move": move_history,
}


def main(words: list[str]) -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    try:
        FACT_TASKS[words[0]]()
    except PipelineError as error:
        print_fact(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
