"""Calibration of heads of the rubric's dimensions whose true probabilities are known."""

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import CalibrationReport, DimensionCalibration
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.learn.calibration import CalibrationParams, calibrate, calibration_figures
from rlhf_pipeline.learn.calibration.dimension_calibration import calibration_by_dimension
from tests.unit.learn.calibration.test_selection import SharpenedModel, logit_of, make_pairs

PARAMS = CalibrationParams(n_resamples=100, methods=["temperature"])
HEADS = {"correct": 1.0, "helpful": 2.0, "style": 0.5}  # how many times too strongly stated
N_VOTES = 4


class SharpenedHeads(SharpenedModel):
    """Knows the true utilities in each dimension and states them too strongly, by the factor of the
    dimension. The score of all knows a utility of its own.
    """

    def __init__(self, factors: Mapping[str, float] = HEADS) -> None:
        super().__init__(1.0)
        self.factors = factors

    def dimension_scores(self, prompts, completions, *, progress=None):
        return {
            name: factor * np.array([logit_of(name + text) for text in completions])
            for name, factor in self.factors.items()
        }


def judged_pairs(n: int = 3000, seed: int = 1) -> pd.DataFrame:
    """Pairs that N_VOTES annotators judge in each dimension, independently of their choice."""
    pairs, rng = make_pairs(n), np.random.default_rng(seed)
    texts = []
    for chosen, rejected in zip(pairs["chosen"], pairs["rejected"], strict=True):
        counts = {}
        for name in HEADS:
            p = 1 / (1 + np.exp(logit_of(name + rejected) - logit_of(name + chosen)))
            n_chosen = int(rng.binomial(N_VOTES, p))
            counts[name] = [n_chosen, N_VOTES - n_chosen]
        texts.append(json.dumps(counts))
    return pairs.assign(dimension_votes=texts)


@pytest.fixture(scope="module")
def pairs() -> pd.DataFrame:
    return judged_pairs()


@pytest.fixture(scope="module")
def report(pairs) -> CalibrationReport:
    return calibrate(
        pairs, SharpenedHeads(), PARAMS, reward_model_label="demo.reward_model@1", data_hash="h"
    )[1]


def measure(
    pairs: pd.DataFrame, changes: TasteChanges | None = None
) -> dict[str, DimensionCalibration]:
    calib, test = (pairs[pairs["split"] == split] for split in ("calib", "test"))
    more = () if changes is None else (changes,)
    heads = calibration_by_dimension(calib, test, SharpenedHeads(), PARAMS, *more)
    return {head.group: head for head in heads}


def test_overconfident_heads_are_recalibrated(report, pairs):
    assert [head.group for head in report.by_dimension] == sorted(HEADS)
    for head in report.by_dimension:
        true = 1 / HEADS[head.group]
        assert head.raw.slope.low <= true <= head.raw.slope.high
        assert head.n == head.raw.n == (pairs["split"] == "test").sum()
        assert head.n_fit == (pairs["split"] == "calib").sum()
        assert head.calibrated.slope.value == pytest.approx(1, abs=0.2)  # fitted on other prompts
        assert head.calibrated.accuracy == head.raw.accuracy  # which a temperature cannot change
        assert head.raw.accuracy.value <= head.noise_ceiling.high
    correct, helpful, style = report.by_dimension
    assert correct.raw.slope.low <= 1 <= correct.raw.slope.high
    assert helpful.raw.slope.high < 1 < style.raw.slope.low
    assert helpful.params["temperature"] == pytest.approx(2, abs=0.3)
    assert helpful.calibrated.ece.value < 0.5 * helpful.raw.ece.value
    assert helpful.raw.ece.low > correct.raw.ece.value


def test_figures_are_kept_in_mlflow_and_the_report_loads_again(report):
    figures = calibration_figures(report)
    helpful = report.by_dimension[1]
    assert figures["slope_raw_in_helpful"] == helpful.raw.slope.value
    assert figures["ece_calibrated_in_helpful_high"] == (helpful.calibrated.ece.high)
    assert figures["brier_raw_in_helpful"] == helpful.raw.brier.value
    assert CalibrationReport.from_json(report.model_dump_json()) == report
    old = report.model_dump(mode="json")
    del old["by_dimension"]
    assert CalibrationReport.model_validate(old).by_dimension == ()


def test_few_judged_pairs_have_no_figures(pairs):
    """10 test pairs for figures, `min_pairs` of the calib split for a calibrator."""
    rated = {
        "calib": pairs.index[pairs["split"] == "calib"][:19],
        "test": pairs.index[pairs["split"] == "test"][:9],
    }

    def keep(more: int) -> dict[str, DimensionCalibration]:
        test = pairs.index[pairs["split"] == "test"][: 9 + more]
        remaining = rated["calib"].union(test)
        return measure(
            pairs.assign(
                dimension_votes=pairs["dimension_votes"].where(pairs.index.isin(remaining))
            )
        )

    few = keep(0)["helpful"]
    assert (few.n, few.raw, few.calibrated, few.raw_bins) == (9, None, None, ())
    assert str(few) == "helpful too few test pairs (9) for figures"
    enough = keep(1)["helpful"]
    assert enough.raw is not None
    assert (enough.method, enough.calibrated, enough.n_fit) == (None, None, 19)
    assert measure(pairs.assign(dimension_votes=None)) == {}


def test_pairs_from_before_a_change_count_less(pairs):
    now = measure(pairs, TasteChanges(1501))["helpful"]
    late = pairs[pairs["max_seq"] >= 1501]
    alone, all_alike = measure(late)["helpful"], measure(pairs)["helpful"]
    of_late, of_all = (abs(now.raw.brier.value - h.raw.brier.value) for h in (alone, all_alike))
    assert of_late < of_all
