"""Chooses the detectors that read the error stream."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.watch.drift import DETECTORS

# An enum, because Dagster checks members of a list while they are typed only if they are enums.
_names = [(name, name) for name in DETECTORS]
_DetectorName: Any = StrEnum("DetectorName", _names)  # type: ignore[misc]
_DEFAULT: Any = ["sequential_test", "ddm", "adwin", "hddm_a"]


class DetectorChoice(BaseModel):
    """Which detectors run. Those that are not chosen read nothing and are not reported."""

    # values as plain text, because Dagster cannot store an enum among defaults
    model_config = ConfigDict(extra="forbid", use_enum_values=True)

    detectors: list[_DetectorName] = Field(
        default=_DEFAULT,
        min_length=1,
        description=f"Detectors that read the errors, of {', '.join(DETECTORS)}. Each counts once "
        "in `confirmations`: more detectors give more alarms, false ones included",
    )

    def chosen(self) -> list[str]:
        """The chosen detectors, each once, in the order of DETECTORS."""
        return [name for name in DETECTORS if name in self.detectors]
