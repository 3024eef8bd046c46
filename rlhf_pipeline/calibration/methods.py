"""The mapping of calibration methods, simplest first. Knows the classes; knows no data."""

from typing import Any

from rlhf_pipeline.calibration.base import Calibrator
from rlhf_pipeline.calibration.beta import BetaCalibration
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.calibration.isotonic import IsotonicCalibration
from rlhf_pipeline.calibration.platt import PlattScaling
from rlhf_pipeline.calibration.temperature import TemperatureScaling
from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.plugins import Members

_OWN: dict[str, type[Calibrator]] = {
    NoCalibration.name: NoCalibration,
    TemperatureScaling.name: TemperatureScaling,
    PlattScaling.name: PlattScaling,
    BetaCalibration.name: BetaCalibration,
    IsotonicCalibration.name: IsotonicCalibration,
}
CALIBRATORS = Members("calibration", _OWN)


def calibrator_from_json(state: dict[str, Any]) -> Calibrator:
    """The calibrator that `to_json` wrote, as `CalibrationReport.params` holds it. Raises
    ModelError for any other.
    """
    method = state.get("method")
    if not isinstance(method, str) or method not in CALIBRATORS:
        raise ModelError(
            f"No calibrator {method!r}. Known: {', '.join(CALIBRATORS)}. Calibrate the reward "
            "model again."
        )
    try:
        return CALIBRATORS[method].from_json(state)
    except (KeyError, TypeError, ValueError) as cause:
        raise ModelError(
            f"The stored {method} calibrator lacks or garbles {cause}. Calibrate the reward model "
            "again."
        ) from cause
