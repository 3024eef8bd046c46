import hashlib
import json
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.errors import DatasetError, NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.records import CalibrationReport, Interval
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.feedback.votes.splits import split_of
from rlhf_pipeline.learn.calibration import (
    CalibrationContext,
    CalibrationParams,
    calibrate,
    calibration_log,
    calibrator_from_json,
    cross_fitted_p,
    fit_calibrator,
    measure_pairs,
    voted_rows,
)
from rlhf_pipeline.learn.calibration.log import read_entries

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def logit_of(text: str) -> float:
    """The text's true utility, drawn from its hash: roughly normal with standard deviation 1."""
    draws = np.frombuffer(hashlib.sha256(text.encode()).digest()[:12], dtype=np.uint8) / 255
    return float(draws.sum() - 6)


class SharpenedModel:
    """Knows the true utilities and states them `sharpen` times too strongly."""

    def __init__(self, sharpen: float) -> None:
        self.sharpen = sharpen

    def score(self, prompts, completions, *, progress=None):
        return self.sharpen * np.array([logit_of(c) for c in completions])


def make_pairs(n: int = 2000, n_votes: int = 3, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        a = f"{i} a"
        b = f"{i} b"
        prompt_id = f"p{i // 2}"
        n_a = int(rng.binomial(n_votes, 1 / (1 + np.exp(logit_of(b) - logit_of(a)))))
        side = "a" if 2 * n_a > n_votes else "b"
        rows.append(
            {
                "day": "2026-01-01",
                "comparison_id": f"c{i:05d}",
                "prompt_id": prompt_id,
                "prompt": f"ask {i // 2}",
                "chosen": a if side == "a" else b,
                "rejected": b if side == "a" else a,
                "margin": 0.5,
                "n_votes": n_votes,
                "agreement": max(n_a, n_votes - n_a) / n_votes,
                "chosen_side": side,
                "annotator_kind": "human",
                "category": "factual",
                "split": split_of(prompt_id),
                "max_seq": i + 1,
            }
        )
    return check_frame(pd.DataFrame(rows), PREFERENCE_PAIRS)


def run(pairs: pd.DataFrame, sharpen: float, **more):
    params = more.pop("params", CalibrationParams(n_resamples=200))
    calibrator, report = calibrate(
        pairs,
        SharpenedModel(sharpen),
        params,
        reward_model_label="demo.reward_model@1",
        data_hash="h",
        votes=CalibrationContext(**more),
    )
    return calibrator, report.model_copy(update={"fitted_at": MOMENT})


def test_calibration_cuts_ece_by_more_than_30_percent():
    calibrator, report = run(make_pairs(), 3.0)
    assert report.method == calibrator.name != "none"
    for before, after in ((report.raw.binned_gap, report.calibrated.binned_gap),):
        assert after.value <= 0.7 * before.value
    assert report.calibrated.log_loss.value < report.raw.log_loss.value
    assert report.calibrated.accuracy == report.raw.accuracy
    assert report.raw.n == (make_pairs()["split"] == "test").sum()


def test_isotonic_ties_do_not_change_the_accuracy():
    pairs = make_pairs(2400, seed=2)
    names = {"category": dict.fromkeys(pairs["comparison_id"], "all")}
    params = CalibrationParams(n_resamples=100, methods=["isotonic"])
    calibrator, report = run(pairs, 3.0, groups=names, params=params)
    test = pairs[pairs["split"] == "test"]
    chosen, rejected = (
        SharpenedModel(3.0).score([], test[name]) for name in ("chosen", "rejected")
    )
    even = calibrator.transform(chosen - rejected) == 0.5
    assert 0 < even.sum() < len(test)
    assert report.calibrated.accuracy == report.raw.accuracy
    right = np.where(chosen > rejected, test["agreement"], 1 - test["agreement"])
    assert report.raw.accuracy.value == pytest.approx(right.mean())
    assert right[even].mean() != pytest.approx(0.5), "half right by p alone"
    (group,) = report.by_group
    assert group.calibrated.accuracy == group.raw.accuracy
    assert group.calibrated.accuracy.value == pytest.approx(right.mean())


def test_cross_fitting_excludes_votes_on_the_prompt():
    pairs, params = make_pairs(2400, seed=2), CalibrationParams(methods=["isotonic"])
    calib = pairs[pairs["split"] == "calib"].sample(frac=1, random_state=0)
    calibrator, _ = fit_calibrator(pairs, SharpenedModel(3.0), params)
    p = cross_fitted_p(calib, SharpenedModel(3.0), calibrator, params)
    is_first_prompt = calib["prompt_id"] == calib["prompt_id"].iloc[0]
    turned = calib.assign(
        agreement=calib["agreement"].mask(is_first_prompt, 1 - calib["agreement"])
    )
    again = cross_fitted_p(turned, SharpenedModel(3.0), calibrator, params)
    np.testing.assert_array_equal(again[is_first_prompt], p[is_first_prompt])
    assert np.abs(again - p)[~is_first_prompt].max() > 0
    scores = [SharpenedModel(3.0).score([], calib[side]) for side in ("chosen", "rejected")]
    fitted = calibrator.transform(scores[0] - scores[1])

    def loss(stated: np.ndarray) -> float:
        share = calib["agreement"].to_numpy()
        return float(-(share * np.log(stated) + (1 - share) * np.log1p(-stated)).mean())

    assert 0 < loss(p) - loss(fitted) < 0.05  # what the calibrator's own pairs hide


def test_report_has_all_candidates_and_the_calibrator():
    calibrator, report = run(
        make_pairs(3000), 3.0, noise_ceiling=Interval(value=0.8, low=0.75, high=0.85, n=100)
    )
    assert list(report.candidates) == ["none", "temperature", "isotonic"]
    grid = np.linspace(-4, 4, 9)
    np.testing.assert_array_equal(
        calibrator_from_json(report.params).transform(grid), calibrator.transform(grid)
    )
    assert report.noise_ceiling.value == 0.8
    assert report.n_fit == (make_pairs(3000)["split"] == "calib").sum()
    assert (
        sum(b.n for b in report.raw_bins) == sum(b.n for b in report.calibrated_bins) > report.raw.n
    )


def test_the_calibrator_never_sees_train_or_test_pairs():
    pairs = make_pairs()
    flipped = pairs.copy()
    rows = flipped["split"] != "calib"
    flipped.loc[rows, ["chosen", "rejected"]] = pairs.loc[rows, ["rejected", "chosen"]].to_numpy()
    assert run(pairs, 3.0)[1].params == run(flipped, 3.0)[1].params


def test_pairs_before_a_change_of_taste_count_less():
    before = make_pairs(3000)
    swapped = before.rename(columns={"chosen": "rejected", "rejected": "chosen"}).assign(max_seq=1)
    both = pd.concat([swapped.head(1500), before.tail(1500)], ignore_index=True)
    weighted, report = run(check_frame(both, PREFERENCE_PAIRS), 1.0, taste_changes=TasteChanges(2))
    blind, _ = run(check_frame(both, PREFERENCE_PAIRS), 1.0)
    two = np.array([2.0])
    assert weighted.transform(two)[0] > blind.transform(two)[0] + 0.1
    assert report.raw.accuracy.value > 0.6


def test_too_few_calibration_pairs_name_the_cure():
    with pytest.raises(NotEnoughData, match="lower min_pairs"):
        run(make_pairs(40), 1.0)
    with pytest.raises(NotEnoughData):
        run(PREFERENCE_PAIRS.empty_frame(), 1.0)


def test_an_unknown_method_is_named():
    with pytest.raises(ValidationError, match=r"'isotonik'\. Did you mean isotonic"):
        CalibrationParams(methods=["isotonik"])
    assert CalibrationParams(methods=["platt"]).methods == ["temperature"]


def test_isotonic_needs_a_thousand_votes():
    pairs = make_pairs(3000)
    calib = pairs[pairs["split"] == "calib"]
    assert 3 * len(calib) > 1000
    for n, methods in (
        (len(calib), ["none", "temperature", "isotonic"]),
        (200, ["none", "temperature"]),
    ):
        _, losses = fit_calibrator(calib.head(n), SharpenedModel(3.0))
        assert list(losses) == methods


def test_the_log_reads_back_unchanged_oldest_first():
    report = run(make_pairs(), 3.0)[1]
    later = report.model_copy(
        update={"fitted_at": datetime(2026, 1, 3, tzinfo=UTC), "calibrator_version": 2}
    )
    log = calibration_log([later, report])
    assert [CalibrationReport.model_validate(entry) for entry in log] == [report, later]
    assert read_entries(json.dumps(log)).reports == (report, later)
    assert calibration_log([report]) == log[:1]  # an earlier run's log is how a later one begins


def test_invalid_calibration_log_is_named():
    for text, words in (("[", "not JSON"), ("{}", "not a JSON list")):
        with pytest.raises(DatasetError, match=words):
            read_entries(text)
    entry = calibration_log([run(make_pairs(600), 3.0)[1]])[0]
    [(n, cause)] = read_entries(json.dumps([entry, {**entry, "n_fit": "many"}])).refused
    assert n == 2
    assert "n_fit" in cause


def test_calibrator_is_chosen_without_a_test_split():
    pairs = make_pairs()
    chosen, losses = fit_calibrator(pairs[pairs["split"] == "calib"], SharpenedModel(3.0))
    calibrator, report = run(pairs, 3.0)
    assert chosen.to_json() == calibrator.to_json()
    assert losses == report.candidates
    with pytest.raises(NotEnoughData, match="calib split"):
        fit_calibrator(pairs[pairs["split"] == "train"], SharpenedModel(3.0))


def test_too_few_pairs_may_stay_uncalibrated_if_allowed():
    pairs = make_pairs(400)
    thin = pairs[(pairs["split"] != "calib") | (pairs.groupby("split").cumcount() < 5)]
    with pytest.raises(NotEnoughData, match="5 preference pairs in the calib split"):
        calibrate(thin, SharpenedModel(3.0), reward_model_label="rm@1", data_hash="d")
    calibrator, report = calibrate(
        thin,
        SharpenedModel(3.0),
        CalibrationParams(allow_uncalibrated=True),
        reward_model_label="rm@1",
        data_hash="d",
    )
    assert (report.method, report.candidates, report.n_fit) == ("none", {}, 5)
    assert report.calibrated == report.raw
    assert calibrator.to_json() == {"method": "none"}


def test_calibration_without_test_pairs_is_refused():
    pairs = make_pairs(400)
    with pytest.raises(NotEnoughData, match="0 in the test split"):
        calibrate(
            pairs[pairs["split"] != "test"],
            SharpenedModel(1.0),
            CalibrationParams(allow_uncalibrated=True),
            reward_model_label="rm@1",
            data_hash="d",
        )


def test_the_test_split_is_scored_once_and_after_the_choice():
    test_prompts = []

    class Watching(SharpenedModel):
        def score(self, prompts, completions, *, progress=None):
            test_prompts.append(len(prompts) // 2)
            return super().score(prompts, completions)

    pairs = make_pairs(600)
    calibrate(pairs, Watching(2.0), reward_model_label="rm@7", data_hash="h")
    assert test_prompts == [(pairs["split"] == split).sum() for split in ("calib", "test")]


def test_missing_class_in_the_calib_split_is_refused():
    pairs = make_pairs(1200)
    one_sided = pairs[
        (pairs["split"] != "calib") | ((pairs["chosen_side"] == "b") & (pairs["agreement"] == 1))
    ]
    with pytest.raises(NotEnoughData, match="prefer side b"):
        calibrate(one_sided, SharpenedModel(2.0), reward_model_label="rm@7", data_hash="h")


def test_the_report_holds_each_category_beside_its_ceiling():
    pairs = make_pairs(1200)
    pairs["category"] = np.where(pairs["comparison_id"] < "c00800", "factual", "coding")
    names = dict(zip(pairs["comparison_id"], pairs["category"], strict=True))
    ceiling = Interval(value=0.7, low=0.6, high=0.8, n=9)
    _, report = run(
        pairs, 3.0, groups={"category": names}, group_ceilings={"category": {"coding": ceiling}}
    )
    sizes = pairs[pairs["split"] == "test"]["category"].value_counts()
    assert {(g.group, g.n, g.noise_ceiling) for g in report.by_group} == {
        ("factual", sizes["factual"], None), ("coding", sizes["coding"], ceiling),
    }  # fmt: skip
    assert all(g.calibrated.log_loss.value < g.raw.log_loss.value for g in report.by_group)
    assert CalibrationReport.from_json(report.model_dump_json()) == report


def test_repeated_measurement_gives_the_report_figures():
    pairs, params = make_pairs(600), CalibrationParams(n_resamples=100)
    calibrator, report = run(pairs, 3.0, params=params)
    test = pairs[pairs["split"] == "test"].sample(frac=1, random_state=0)
    assert measure_pairs(test, SharpenedModel(3.0), calibrator, params) == report.calibrated


def test_pairs_are_expanded_to_one_row_per_vote():
    pairs = make_pairs(60)
    p_chosen = np.linspace(0.5, 0.9, 60)
    rows = voted_rows(pairs, p_chosen)
    assert len(rows) == pairs["n_votes"].sum()
    by_pair = rows.groupby(np.repeat(np.arange(60), 3))
    chose_a = (pairs["chosen_side"] == "a").to_numpy()
    np.testing.assert_allclose(by_pair["p"].first(), np.where(chose_a, p_chosen, 1 - p_chosen))
    np.testing.assert_allclose(
        by_pair["outcome"].mean(), np.where(chose_a, pairs["agreement"], 1 - pairs["agreement"])
    )
    assert rows["group"].iloc[0] == pairs["prompt_id"].iloc[0]
    backwards = voted_rows(pairs.iloc[::-1], p_chosen[::-1])
    pd.testing.assert_frame_equal(rows, backwards)
