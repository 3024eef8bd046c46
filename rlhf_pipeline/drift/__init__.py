"""Has the world moved away from the reward model? Detectors over the errors, tests between windows,
one report a day.
"""

from rlhf_pipeline.drift.adwin import ADWIN
from rlhf_pipeline.drift.base import DriftDetector
from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.hddm_a import HDDMA
from rlhf_pipeline.plugins import Members

# A new detector: one file with one class that satisfies base.DriftDetector, and one line here.
_OWN: dict[str, type[DriftDetector]] = {kind.name: kind for kind in (DDM, ADWIN, HDDMA)}
DETECTORS = Members("drift", _OWN)
