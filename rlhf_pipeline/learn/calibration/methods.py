"""Calibrators by name, simplest first."""

from typing import Any

from rlhf_pipeline.core.errors import ModelError
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.learn.calibration.base import Calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.calibration.isotonic import IsotonicCalibration
from rlhf_pipeline.learn.calibration.temperature import TemperatureScaling

# A new calibrator: one file with one class that satisfies base.Calibrator, and one line here.
CALIBRATORS = Members[type[Calibrator]](
    "calibration",
    {
        "none": NoCalibration,
        "temperature": TemperatureScaling,
        "isotonic": IsotonicCalibration,
    },
)


def calibrator_from_json(state: dict[str, Any]) -> Calibrator:
    """The calibrator that `to_json` described, as in `CalibrationReport.params`. Raises ModelError
    for an unknown or damaged one.
    """
    method = state.get("method")
    if not isinstance(method, str) or method not in CALIBRATORS:
        raise ModelError(
            f"Unknown calibrator {method!r}; known: {', '.join(CALIBRATORS)}. Calibrate the reward "
            "model again."
        )
    try:
        return CALIBRATORS[method].from_json(state)
    except (KeyError, TypeError, ValueError) as cause:
        raise ModelError(
            f"The stored {method} calibrator cannot be read ({cause}). Calibrate the reward model "
            "again."
        ) from cause
