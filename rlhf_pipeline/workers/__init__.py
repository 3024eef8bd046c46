"""Registers workers by name: where independent pieces of heavy work run."""

from rlhf_pipeline.plugins import Members
from rlhf_pipeline.workers.base import Here, Workers
from rlhf_pipeline.workers.processes import Processes

# To add workers: one file with one class that satisfies base.Workers, and one line here.
WORKERS = Members[type[Workers]]("workers", {"here": Here, "processes": Processes})

__all__ = ["WORKERS", "Workers"]
