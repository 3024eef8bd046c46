"""Registers scenarios by name: worlds whose truth is known, beside what the library claims."""

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.simulation.laboratory.base import LabScenario
from rlhf_pipeline.simulation.laboratory.changes import CHANGED
from rlhf_pipeline.simulation.laboratory.failing_topic import FAILING_TOPIC
from rlhf_pipeline.simulation.laboratory.named_causes import SINGLE_CAUSES, TWO_CAUSES
from rlhf_pipeline.simulation.laboratory.steady import STEADY

# To add a scenario: an object that satisfies base.LabScenario, and its name here.
SHIPPED: tuple[LabScenario, ...] = (*STEADY, *CHANGED, *SINGLE_CAUSES, TWO_CAUSES, FAILING_TOPIC)
LAB_SCENARIOS = Members[LabScenario](
    "laboratory", {scenario.name: scenario for scenario in SHIPPED}
)

__all__ = ["LAB_SCENARIOS", "LabScenario"]
