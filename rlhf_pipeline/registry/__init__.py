"""MLflow registry: runs, model versions and aliases. The only package that imports MLflow."""

from rlhf_pipeline.core.config import code_commit
from rlhf_pipeline.registry.removal import needed_versions, removable_versions, remove_files
from rlhf_pipeline.registry.runs import (
    Run,
    TrackedRun,
    ceiling_metric,
    is_accuracy,
    missing_ceilings,
)
from rlhf_pipeline.registry.tracking import Tracking, make_tables, web_server_command
from rlhf_pipeline.registry.versions import (
    CANDIDATE,
    CHAMPION,
    KINDS,
    PREVIOUS,
    Kind,
    ListedModel,
    Registry,
)

__all__ = [
    "CANDIDATE",
    "CHAMPION",
    "KINDS",
    "PREVIOUS",
    "Kind",
    "ListedModel",
    "Registry",
    "Run",
    "TrackedRun",
    "Tracking",
    "ceiling_metric",
    "code_commit",
    "is_accuracy",
    "make_tables",
    "missing_ceilings",
    "needed_versions",
    "removable_versions",
    "remove_files",
    "web_server_command",
]
