"""One job of the project in the environment; its process kills itself with -9 at a given moment."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from rlhf_pipeline.application.definitions import definitions_for
from rlhf_pipeline.application.resources import resources_for
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.registry import Registry

ROOT = Path(__file__).resolve().parents[2]


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


def run_until_death(moment: str, job: str, day: str, run_config: dict[str, Any]) -> None:
    settings = Settings.read(folder=ROOT)
    overrides = MOMENTS[moment](settings)
    with dg.DagsterInstance.get() as instance:
        arguments: dict[str, Any] = {"instance": instance, "run_config": run_config} | (
            {"partition_key": day} if day else {}
        )
        definitions_for(settings, **overrides).resolve_job_def(job).execute_in_process(**arguments)
