"""HelpSteer: two responses with a strength from -3, the first much better, to 3."""

from collections.abc import Sequence
from typing import ClassVar

from rlhf_pipeline.feedback.datasets.shapes.base import Cells, FileShape
from rlhf_pipeline.feedback.datasets.shapes.pairs import has_any, has_sides


class HelpSteer(FileShape):
    """The sign of the strength is the choice, its size our strength; 0 is a tie."""

    name: ClassVar[str] = "helpsteer"
    title: ClassVar[str] = "HelpSteer: two responses with a signed strength, negative for the first"
    metadata: ClassVar[tuple[str, ...]] = ("language", "individual_preference", "split")

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return has_sides(columns) and has_any(columns, "signed_strength")
