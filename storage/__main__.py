"""`python -m storage …`: called by `rlhf storage`, which may not know Dagster. Prints lines of
JSON; DAGSTER_HOME names the instance.
"""

import json
import logging
import os
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_pipeline.config import DAGSTER_URL, Settings, silence_telemetry

silence_telemetry()

import dagster as dg  # noqa: E402

from rlhf_pipeline.errors import PipelineError  # noqa: E402
from storage import dagster_history  # noqa: E402


def print_fact(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def retain(instance: dg.DagsterInstance, *, dry_run: bool) -> None:
    """The settings come from the environment alone, as `rlhf storage retain` read them."""
    from rlhf_pipeline.registry import Registry
    from rlhf_pipeline.store import Store
    from storage.retention import Retention

    s = Settings.read(folder=Path(os.environ["DAGSTER_HOME"]))
    registry = Registry(s.tracking_uri, s.home / "mlflow" / "artifacts", s.project)
    with Store.open(s.store_url, organization=s.organization, project=s.project) as store:
        retention = Retention(s, store, registry, instance, datetime.now(UTC))
        for item in retention.retain(
            dry_run=dry_run,
            progress=lambda done, total, note="": print_fact(progress=[done, total, note]),
        ):
            print_fact(item=item.model_dump())


def main(task: str) -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    home = Path(os.environ["DAGSTER_HOME"])
    try:
        if task == "make-tables":
            dagster_history.open_target(os.environ[DAGSTER_URL])
        elif task == "move":
            for table in dagster_history.move_history(
                home,
                os.environ[DAGSTER_URL],
                lambda done, total, note="": print_fact(progress=[done, total, note]),
            ):
                print_fact(table=table.model_dump())
        else:
            with dg.DagsterInstance.from_config(str(home)) as instance:
                if task == "state":
                    print_fact(state=dagster_history.read_state(instance))
                elif task in ("retain", "list-retained"):
                    retain(instance, dry_run=task == "list-retained")
                else:
                    print_fact(
                        error=f"no task {task!r}: make-tables, move, state, retain, list-retained"
                    )
                    return 2
    except PipelineError as error:
        print_fact(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
