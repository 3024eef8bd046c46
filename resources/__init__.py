"""Builds the resources of the assets from Settings: store, registry, champions, files, clock."""

from typing import Any

from rlhf_pipeline.application.resources.frames import frame_io_manager
from rlhf_pipeline.application.resources.progress import progress_resource
from rlhf_pipeline.application.resources.simulation import simulated_clock, simulated_votes
from rlhf_pipeline.application.resources.store import open_store
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.champions.champions import register_first_policy
from rlhf_pipeline.registry import Registry


def resources_for(settings: Settings) -> dict[str, Any]:
    """The resources of one project by name; simulated annotators only if the settings ask for them.

    Raises ConfigurationError for an unknown scenario, even with human annotators.
    """
    annotators = simulated_votes(settings)
    registry = Registry(
        settings.tracking_uri,
        settings.home / "mlflow" / "artifacts",
        settings.project,
        ui=settings.mlflow_ui,
        dagster_ui=settings.dagster_ui,
    )
    resources: dict[str, Any] = {
        "io_manager": frame_io_manager(settings),
        "settings": settings,
        "store": open_store(settings),
        "registry": registry,
        "champions": Champions(
            open_store(settings),
            registry,
            settings.cache,
            settings.encoder,
            lambda champions: register_first_policy(champions, settings),
            settings.device,
            settings.dtype,
        ),
        "progress": progress_resource(),
        "clock": lambda day: utc_now(),
    }
    if settings.annotators == "simulated":
        resources |= {"annotators": annotators, "clock": simulated_clock}
    return resources
