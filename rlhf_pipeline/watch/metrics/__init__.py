"""Measures metric points: of the project as it stands, and of what a stage made."""

from rlhf_pipeline.watch.metrics.production import build_production_point, measure_answers
from rlhf_pipeline.watch.metrics.project import measure_project, measure_votes

__all__ = ["build_production_point", "measure_answers", "measure_project", "measure_votes"]
