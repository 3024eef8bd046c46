"""Describes the entries of the log of calibrators."""

from collections.abc import Sequence

from rlhf_pipeline.api_types.predictions import CalibrationOut, CalibratorState
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.calibrations import LoggedCalibration


def describe_entries(
    store: Store, keys: Sequence[tuple[str, int]], champion: str | None
) -> list[CalibrationOut]:
    """Entries by reward model and version, with their state given the current champion. Unknown
    entries are left out.
    """
    found = [entry for key in keys if (entry := store.calibrations.entry(*key)) is not None]
    names = {entry.report.reward_model for entry in found}
    serving = {name: find_serving_version(store, name) for name in names}
    return [
        _describe_entry(entry, _find_state(entry, serving[entry.report.reward_model], champion))
        for entry in found
    ]


def find_serving_version(store: Store, reward_model: str) -> int | None:
    """The version that a model predicts through, as `Calibrations.latest_serving` finds it."""
    for version in store.calibrations.versions(reward_model):
        entry = store.calibrations.entry(reward_model, version)
        if entry is not None and entry.report.may_serve:
            return version
    return None


def _find_state(
    entry: LoggedCalibration, serving: int | None, champion: str | None
) -> CalibratorState:
    if entry.is_imported:
        return "imported"
    if not entry.report.may_serve:
        return "refused"
    if entry.version != serving:
        return "replaced"
    return "serving" if entry.report.reward_model == champion else "standby"


def _describe_entry(entry: LoggedCalibration, state: CalibratorState) -> CalibrationOut:
    report = entry.report
    raw, calibrated = report.raw, report.calibrated
    return CalibrationOut(
        reward_model=report.reward_model,
        version=entry.version,
        calibrator_version=report.calibrator_version,
        method=report.method,
        state=state,
        fitted_at=report.fitted_at,
        n_fit=report.n_fit,
        n=calibrated.n,
        ece_raw=raw.ece_equal_mass,
        ece_calibrated=calibrated.ece_equal_mass,
        ece_debiased_raw=raw.ece_debiased,
        ece_debiased_calibrated=calibrated.ece_debiased,
        slope_raw=raw.slope,
        slope_calibrated=calibrated.slope,
        accuracy=raw.accuracy,
        noise_ceiling=report.noise_ceiling,
        refusal=None if report.refusal is None else report.refusal.cause,
        data_seq=None if entry.is_imported else report.data_seq,
    )
