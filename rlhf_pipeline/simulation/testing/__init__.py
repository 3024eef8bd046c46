"""Provides conformance tests for plug-in authors: each checks one class against its protocol.

    from rlhf_pipeline.simulation.testing import check_detector

    def test_my_detector():
        check_detector(MyDetector)

The shipped members pass the same checks.
"""

from rlhf_pipeline.simulation.testing.drift import check_detector
from rlhf_pipeline.simulation.testing.formats import check_format
from rlhf_pipeline.simulation.testing.generation import check_backend, check_generator
from rlhf_pipeline.simulation.testing.members import check_member
from rlhf_pipeline.simulation.testing.models import check_calibrator, check_reward_model
from rlhf_pipeline.simulation.testing.strategies import check_strategy

__all__ = [
    "check_backend",
    "check_calibrator",
    "check_detector",
    "check_format",
    "check_generator",
    "check_member",
    "check_reward_model",
    "check_strategy",
]
