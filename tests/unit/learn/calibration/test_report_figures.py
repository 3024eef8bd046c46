"""What the asset and `rlhf reward calibrate` leave behind of a version is one thing."""

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.learn.calibration import (
    CalibrationContext,
    CalibrationParams,
    calibrate_version,
    calibration_figures,
)
from tests.unit.learn.calibration.test_selection import SharpenedModel, make_pairs

CHANGE = 401
NOON = pd.Timestamp("2026-01-01T12:00Z")


def version(**params: float) -> ModelVersion:
    return ModelVersion(
        name="demo.reward_model",
        version=3,
        kind="reward_model",
        uri="?",
        content_hash="h",
        data_hash="d",
        params=params,
    )


def comparisons(pairs: pd.DataFrame) -> pd.DataFrame:
    rows = pairs[["day", "comparison_id", "prompt_id", "prompt", "category"]].assign(
        completion_a_id="a",
        completion_b_id="b",
        completion_a="a",
        completion_b="b",
        model_version_a="m@1",
        model_version_b="m@1",
        repeat_of=None,
        position=range(len(pairs)),
        seed=0,
        source=np.where(np.arange(len(pairs)) % 2, "web", "chat"),
    )
    return check_frame(rows, COMPARISONS)


def votes(pairs: pd.DataFrame, *, each: int) -> pd.DataFrame:
    some = pairs.loc[pairs.index.repeat(each), ["day", "comparison_id", "prompt_id"]].reset_index(
        drop=True
    )
    n = np.arange(len(some))
    rows = some.assign(
        seq=n + 1,
        vote_id=[f"v{i}" for i in n],
        annotator_id=[f"ann{i % each}" for i in n],
        annotator_kind="human",
        choice=np.where(n % 3 == 0, "a", "b"),
        strength=None,
        repeat_of=None,
        voted_at=NOON,
        received_at=NOON,
    )
    return check_frame(rows, VOTES)


def calibrated(
    pairs: pd.DataFrame, of: ModelVersion, cast: pd.DataFrame | None = None, **more: object
):
    params = CalibrationParams(n_resamples=100, methods=["temperature"], weight_before_change=0.1)
    return calibrate_version(
        of,
        SharpenedModel(2.0),
        pairs,
        CalibrationContext.of(
            votes(pairs, each=2) if cast is None else cast,
            comparisons(pairs),
            TasteChanges(CHANGE),
        ),
        params,
        **more,
    )[1]  # type: ignore[arg-type]


def weight_of(report) -> float:
    """The share that the half of the pairs from before the change have in the accuracy says what
    they weighed.
    """
    return round(report.raw.accuracy.value, 6)


def test_old_votes_keep_the_weight_of_the_fit():
    pairs = make_pairs(800)
    fitted = {
        weight: weight_of(calibrated(pairs, version(weight_before_change=weight)))
        for weight in (0.1, 1.0)
    }
    assert fitted[1.0] != fitted[0.1]
    # of a version that does not say: as the parameters do
    assert weight_of(calibrated(pairs, version())) == fitted[0.1]
    # asked for
    assert (
        weight_of(calibrated(pairs, version(weight_before_change=0.1), weight_before_change=1.0))
        == fitted[1.0]
    )


def test_groups_and_their_ceilings_are_in_the_report():
    pairs = make_pairs(800)
    report = calibrated(pairs, version())
    assert {(group.by, group.group) for group in report.by_group} == {
        ("category", "factual"),
        ("source", "chat"),
        ("source", "web"),
    }
    assert all(group.noise_ceiling is not None for group in report.by_group)
    figures = calibration_figures(report)
    assert figures["noise_ceiling_low"] <= figures["noise_ceiling"] <= figures["noise_ceiling_high"]
    assert {"accuracy_low", "ece_calibrated_high", "slope_raw"} <= set(figures)


def test_single_votes_have_a_ceiling_only_with_repeats():
    pairs = make_pairs(800)
    first = votes(pairs, each=1).assign(pass_no=1)
    alone = calibrated(pairs, version(), first)
    assert alone.noise_ceiling is None
    assert "noise_ceiling" not in calibration_figures(alone)
    again = first.iloc[::2].assign(
        pass_no=2, vote_id="again-" + first["vote_id"], seq=first["seq"] + len(first)
    )
    report = calibrated(pairs, version(), pd.concat([first, again], ignore_index=True))
    assert report.noise_ceiling is not None
    assert report.noise_ceiling.basis == "repeats"
    assert {group.group: group.noise_ceiling is None for group in report.by_group} == {
        "factual": False,
        "chat": False,
        "web": True,
    }
    assert type(report).from_json(report.model_dump_json()) == report
