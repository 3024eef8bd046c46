"""Reads the log of calibrators. Reports are cached, because they are long and never change."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_pipeline.api_types.predictions import CalibrationOut, CalibratorState
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.web.memory_cache import ExpiringCache

MAX_CACHED = 1000


@dataclass(frozen=True)
class _CachedEntry:
    is_imported: bool
    may_serve: bool
    answer: CalibrationOut  # with the state standby


class CalibrationLog:
    """Caches the entries that this process has read."""

    def __init__(self, store: Store):
        self._calibrations = store.calibrations
        self._known = ExpiringCache[tuple[str, int], _CachedEntry](MAX_CACHED)

    def entries(
        self, keys: Sequence[tuple[str, int]], champion: str | None
    ) -> list[CalibrationOut]:
        """Entries by reward model and version, with their state given the current champion. Unknown
        entries are left out.
        """
        found = [
            (name, version, known)
            for name, version in keys
            if (known := self._read_entry(name, version)) is not None
        ]
        serving = {name: self.find_serving_version(name) for name in {name for name, _, _ in found}}
        return [
            known.answer.model_copy(
                update={
                    "state": _state(known, version == serving[name], is_champion=name == champion)
                }
            )
            for name, version, known in found
        ]

    def find_serving_version(self, reward_model: str) -> int | None:
        """The version that a model predicts through, as `Calibrations.latest` finds it."""
        for version in self._calibrations.versions(reward_model):
            known = self._read_entry(reward_model, version)
            if known is not None and known.may_serve:
                return version
        return None

    def _read_entry(self, reward_model: str, version: int) -> _CachedEntry | None:
        known = self._known.get((reward_model, version))
        if known is None:
            entry = self._calibrations.entry(reward_model, version)
            if entry is None:
                return None
            known = _CachedEntry(entry.is_imported, entry.report.may_serve, _describe_entry(entry))
            self._known.put((reward_model, version), known)
        return known


def _state(known: _CachedEntry, is_newest: bool, *, is_champion: bool) -> CalibratorState:
    if known.is_imported:
        return "imported"
    if not known.may_serve:
        return "refused"
    if not is_newest:
        return "replaced"
    return "serving" if is_champion else "standby"


def _describe_entry(entry: LoggedCalibration) -> CalibrationOut:
    report = entry.report
    raw, calibrated = report.raw, report.calibrated
    return CalibrationOut(
        reward_model=report.reward_model,
        version=entry.version,
        calibrator_version=report.calibrator_version,
        method=report.method,
        state="standby",
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
