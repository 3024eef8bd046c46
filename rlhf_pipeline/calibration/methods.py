"""Calibrators by name, simplest first."""

from typing import Any

from rlhf_pipeline.calibration.base import Calibrator
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.calibration.isotonic import IsotonicCalibration
from rlhf_pipeline.calibration.temperature import TemperatureScaling
from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.plugins import Members

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
