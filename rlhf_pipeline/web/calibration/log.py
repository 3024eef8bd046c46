"""Describes the entries of the log of calibrators."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rlhf_pipeline.records import CalibrationReport
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.calibrations import LoggedCalibration

CalibratorState = Literal["serving", "standby", "replaced", "refused", "imported"]


class CalibrationOut(CalibrationReport):
    """One calibrator, measured on the test split it was fitted with, as it is logged."""

    version: int = Field(
        description="Number of the entry among those of its reward model; imported entries keep "
        "theirs as `calibrator_version`."
    )
    state: CalibratorState = Field(
        description="serving: used for the champion's predictions. standby: would be used if its "
        "reward model were champion. replaced: superseded by a later calibrator. refused: worse "
        "than its predecessor, never used. imported: a report without a calibrator."
    )


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
        CalibrationOut(
            **entry.report.model_dump(exclude={"data_seq"} if entry.is_imported else None),
            version=entry.version,
            state=_find_state(entry, serving[entry.report.reward_model], champion),
        )
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
