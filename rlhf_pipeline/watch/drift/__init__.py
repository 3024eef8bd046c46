"""Detects when votes move away from the reward model: change detectors, window tests, reports."""

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.watch.drift.base import DriftDetector
from rlhf_pipeline.watch.drift.frouros_detectors import FROUROS
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest

# A new detector: one file with one class that satisfies base.DriftDetector, and one line here.
DETECTORS = Members[type[DriftDetector]]("drift", {SequentialTest.name: SequentialTest, **FROUROS})
