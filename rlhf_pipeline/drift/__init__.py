"""Detects when votes move away from the reward model: change detectors, window tests, reports."""

from rlhf_pipeline.drift.adwin import ADWIN
from rlhf_pipeline.drift.base import DriftDetector
from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.hddm_a import HDDMA
from rlhf_pipeline.plugins import Members

# A new detector: one file with one class that satisfies base.DriftDetector, and one line here.
DETECTORS = Members[type[DriftDetector]]("drift", {"ddm": DDM, "adwin": ADWIN, "hddm_a": HDDMA})
