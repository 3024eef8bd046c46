"""MLflow: runs, model versions, aliases and their history. The only code that knows MLflow; knows no model class and no Dagster."""

from rlhf_pipeline.registry.runs import Run, TrackedRun
from rlhf_pipeline.registry.tracking import Tracking, code_commit, make_tables
from rlhf_pipeline.registry.versions import CANDIDATE, CHAMPION, PREVIOUS, Kind, ListedModel, Registry

__all__ = [
    "CANDIDATE",
    "CHAMPION",
    "PREVIOUS",
    "Kind",
    "ListedModel",
    "Registry",
    "Run",
    "TrackedRun",
    "Tracking",
    "code_commit",
    "make_tables",
]
