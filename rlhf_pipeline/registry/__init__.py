"""MLflow: runs, model versions, aliases and their history. The only code that knows MLflow; knows
no model class and no Dagster.
"""

from rlhf_pipeline.config import code_commit
from rlhf_pipeline.registry.interface import web_interface
from rlhf_pipeline.registry.openings import OPENINGS, opening_recorder, openings
from rlhf_pipeline.registry.removal import StoredVersion, n_bytes_of, remove_files, stored_versions
from rlhf_pipeline.registry.runs import (
    Run,
    TrackedRun,
    ceiling_beside,
    is_accuracy,
    lacks_ceiling,
    missing_ceilings,
)
from rlhf_pipeline.registry.tracking import Tracking, make_tables
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
    "OPENINGS",
    "PREVIOUS",
    "Kind",
    "ListedModel",
    "Registry",
    "Run",
    "StoredVersion",
    "TrackedRun",
    "Tracking",
    "ceiling_beside",
    "code_commit",
    "is_accuracy",
    "lacks_ceiling",
    "make_tables",
    "missing_ceilings",
    "n_bytes_of",
    "opening_recorder",
    "openings",
    "remove_files",
    "stored_versions",
    "web_interface",
]
