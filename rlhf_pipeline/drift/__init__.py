"""Detects when votes move away from the reward model: change detectors, window tests, reports."""

from rlhf_pipeline.drift.adwin import ADWIN
from rlhf_pipeline.drift.base import DriftDetector
from rlhf_pipeline.drift.cusum import CUSUM
from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.ecdd import ECDD
from rlhf_pipeline.drift.eddm import EDDM
from rlhf_pipeline.drift.hddm_a import HDDMA
from rlhf_pipeline.drift.hddm_w import HDDMW
from rlhf_pipeline.drift.kswin import KSWIN
from rlhf_pipeline.drift.page_hinkley import PageHinkley
from rlhf_pipeline.drift.rddm import RDDM
from rlhf_pipeline.drift.rise_test import RiseTest
from rlhf_pipeline.plugins import Members

# A new detector: one file with one class that satisfies base.DriftDetector, and one line here.
DETECTORS = Members[type[DriftDetector]](
    "drift",
    {
        "rise_test": RiseTest,
        "ddm": DDM,
        "adwin": ADWIN,
        "hddm_a": HDDMA,
        "eddm": EDDM,
        "rddm": RDDM,
        "hddm_w": HDDMW,
        "ecdd": ECDD,
        "cusum": CUSUM,
        "page_hinkley": PageHinkley,
        "kswin": KSWIN,
    },
)
