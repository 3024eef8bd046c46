"""Not a test: one job of a project in a process of its own that kills itself with -9 at a given
moment.

`python dying_run.py MOMENT JOB DAY RUN_CONFIG`, the project in the environment.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import dagster as dg  # noqa: E402

from rlhf_pipeline.application.definitions import definitions_for  # noqa: E402
from rlhf_pipeline.application.resources import resources_for  # noqa: E402
from rlhf_pipeline.core.config import Settings  # noqa: E402
from rlhf_pipeline.registry import Registry  # noqa: E402


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def while_working(stage: str, after: int) -> Callable[[Settings], dict[str, Any]]:
    """When `stage` reports that `after` of its parts are done."""

    def progress(name: str) -> Callable[..., None]:
        return lambda done, total, note="": die() if name == stage and done >= after else None

    return lambda settings: {"progress": progress}


def while_writing(stage: str) -> Callable[[Settings], dict[str, Any]]:
    """After the temporary file of `stage` is written, before it is moved into place."""

    def overrides(settings: Settings) -> dict[str, Any]:
        move = os.replace
        os.replace = lambda source, target: (
            die() if f"/{stage}/" in str(target) else move(source, target)
        )
        return {}

    return overrides


def while_registering(settings: Settings) -> dict[str, Any]:
    """After the files of a version are copied, before the version exists."""

    class DyingRegistry(Registry):
        _create_version = die

    resources = resources_for(settings)
    own: Registry = resources["registry"]
    dying = DyingRegistry(
        own.tracking.tracking_uri, settings.home / "mlflow" / "artifacts", settings.project
    )
    return {"registry": dying, "champions": replace(resources["champions"], registry=dying)}


MOMENTS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "completing": while_working("completions", after=40),
    "writing the drift report": while_writing("drift_report"),
    "registering": while_registering,
}


def main(moment: str, job: str, day: str, run_config: str) -> None:
    settings = Settings.read(folder=ROOT)
    overrides = MOMENTS[moment](settings)
    with dg.DagsterInstance.get() as instance:
        arguments: dict[str, Any] = {"instance": instance, "run_config": json.loads(run_config)} | (
            {"partition_key": day} if day else {}
        )
        definitions_for(settings, **overrides).resolve_job_def(job).execute_in_process(**arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
