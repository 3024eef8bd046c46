"""Registers scenarios by name: worlds whose truth is known, beside what the library claims."""

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.simulation.laboratory.base import LabScenario
from rlhf_pipeline.simulation.laboratory.careless_bursts import CARELESS_BURSTS
from rlhf_pipeline.simulation.laboratory.category_turn import CATEGORY_TURN
from rlhf_pipeline.simulation.laboratory.failing_topic import FAILING_TOPIC
from rlhf_pipeline.simulation.laboratory.independent import INDEPENDENT
from rlhf_pipeline.simulation.laboratory.named_causes import SINGLE_CAUSES, TWO_CAUSES
from rlhf_pipeline.simulation.laboratory.taste_rise import LARGE_RISE, SMALL_RISE, YOUNG_MODEL
from rlhf_pipeline.simulation.laboratory.votes_in_a_row import FIVE_IN_A_ROW, THREE_IN_A_ROW
from rlhf_pipeline.simulation.laboratory.weekly_rhythm import WEEKLY_RHYTHM

# To add a scenario: one file with an object that satisfies base.LabScenario, and one name here.
SHIPPED: tuple[LabScenario, ...] = (
    INDEPENDENT,
    THREE_IN_A_ROW,
    FIVE_IN_A_ROW,
    WEEKLY_RHYTHM,
    CARELESS_BURSTS,
    LARGE_RISE,
    SMALL_RISE,
    CATEGORY_TURN,
    YOUNG_MODEL,
    *SINGLE_CAUSES,
    TWO_CAUSES,
    FAILING_TOPIC,
)
LAB_SCENARIOS = Members[LabScenario]("laboratory", {one.name: one for one in SHIPPED})

__all__ = ["LAB_SCENARIOS", "LabScenario"]
