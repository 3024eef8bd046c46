"""Detects when votes move away from the reward model: change detectors, window tests, reports."""

from rlhf_pipeline.drift.base import DriftDetector
from rlhf_pipeline.drift.frouros_detectors import FROUROS
from rlhf_pipeline.drift.sequential_test import SequentialTest
from rlhf_pipeline.plugins import Members

# A new detector: one file with one class that satisfies base.DriftDetector, and one line here.
DETECTORS = Members[type[DriftDetector]]("drift", {SequentialTest.name: SequentialTest, **FROUROS})
