"""When a fitted reward model may take the champion's place: around a change of taste, when refused,
and by force.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import pytest

from rlhf_pipeline.core.records import CalibrationReport, Interval, ModelVersion, TasteChange
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.calibration import calibration_metrics
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.champions import (
    AcceptanceParams,
    CalibratedModel,
    Champions,
    assess,
    compare_with_champion,
)
from rlhf_pipeline.learn.reward_model import LearningData, fit_reward_model, reward_model_params
from rlhf_pipeline.store import Store
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs

CHANGE = 10_000
QUICK = reward_model_params(
    l2_grid=[0.1], context_penalty_grid=[3.0], n_resamples=100, weight_before_change=0.02
)
RECORDED = TasteChange(
    change_id=1,
    change_seq=CHANGE,
    cause="confirmed",
    actor="pipeline",
    recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def after_the_change(n: int, seed: int) -> pd.DataFrame:
    """People choose what they had rejected."""
    pairs_after = make_pairs(n, seed=seed)
    sides = pairs_after["chosen_side"].map({"a": "b", "b": "a"})
    return pairs_after.assign(
        chosen=pairs_after["rejected"],
        rejected=pairs_after["chosen"],
        chosen_side=sides,
        max_seq=pairs_after["max_seq"] + CHANGE,
    )


@pytest.fixture(scope="module")
def pairs() -> pd.DataFrame:
    """Many from before a reversal of taste, some since."""
    return pd.concat([make_pairs(900, seed=3), after_the_change(240, seed=4)], ignore_index=True)


@pytest.fixture(scope="module")
def calib(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[pairs["split"] == "calib"]


def fitted(number: int, pairs: pd.DataFrame, changes: TasteChanges) -> CalibratedModel:
    version = ModelVersion(
        name="demo.reward_model",
        version=number,
        kind="reward_model",
        uri="runs:/r",
        content_hash="h",
        data_seq=CHANGE,
    )
    return CalibratedModel(
        version,
        fit_reward_model(
            LearningData(pairs, taste_changes=changes), QUICK, encoder=WordEncoder()
        ).model,
        None,
        "none",
    )


@pytest.fixture(scope="module")
def champion(pairs: pd.DataFrame) -> CalibratedModel:
    """Retrained when the change was confirmed."""
    return fitted(2, pairs, TasteChanges(CHANGE))


@pytest.fixture(scope="module")
def forgetful(pairs: pd.DataFrame) -> CalibratedModel:
    """Fitted by hand afterwards, as if taste had not changed."""
    return fitted(3, pairs, NO_CHANGES)


def test_challenger_without_the_change_is_refused(champion, forgetful, calib):
    """Most pairs are from before the change: by all of them it won, at 0.44 on the latest days
    where the champion had 0.88.
    """
    assert compare_with_champion(forgetful, champion, calib)[0]
    verdict = assess(forgetful, champion, calib, taste_changes=TasteChanges.from_log([RECORDED]))
    assert verdict.is_refused
    assert "is below that of the champion" in verdict.reason


def test_latest_window_refuses_it_without_a_recorded_change(champion, forgetful, calib):
    """The window holds today's taste, and most of all pairs do not."""
    assert compare_with_champion(forgetful, champion, calib)[0]
    n_since = int((calib["max_seq"] >= CHANGE).sum())
    verdict = assess(forgetful, champion, calib, params=AcceptanceParams(window_pairs=n_since))
    assert verdict.is_refused
    assert "is below that of the champion" in verdict.reason


def test_weak_model_replaces_a_champion_that_is_wrong(champion, forgetful, calib):
    """Without a champion it is refused; to keep a champion that is worse still would help
    nobody.
    """
    # above any accuracy
    weak = {
        "taste_changes": TasteChanges(CHANGE),
        "ceiling": Interval(value=3, low=2.9, high=3.1, n=9),
    }
    assert assess(champion, None, calib, **weak).is_refused
    assert assess(champion, forgetful, calib, **weak).is_accepted
    assert assess(forgetful, champion, calib, **weak).is_refused


def test_refit_after_the_change_is_accepted(pairs, champion, calib):
    again = fitted(4, pairs, TasteChanges.from_log([RECORDED]))
    assert assess(again, champion, calib, taste_changes=TasteChanges(CHANGE)).is_accepted


@pytest.fixture(scope="module")
def champions(tmp_path_factory, champion):
    """Whose champion is version 2, at hand."""

    class AtHand(Champions):
        def champion(self, kind):
            return champion.version

        def judge(self, version=None):
            return champion

    home = tmp_path_factory.mktemp("home")
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
        yield AtHand(store, None, home / "cache")


@pytest.fixture
def settle(champions, calib):
    """The end of a calibration, as the asset comes to it."""
    measured = calibration_metrics([0.7, 0.6] * 20, [1.0, 0.0, 1.0, 1.0] * 10)

    def run(judge, **more):
        report = CalibrationReport(
            reward_model=judge.label,
            method="none",
            params={},
            raw=measured,
            calibrated=measured,
            candidates={},
            data_hash="h",
            n_fit=9,
        )
        return champions.record_calibration(
            replace(judge, calibrator=NoCalibration()), report, calib, **more
        )

    return run


def test_refusal_is_stored_with_the_votes_of_the_model(champions, settle, forgetful):
    settled = settle(forgetful, taste_changes=TasteChanges(CHANGE))
    assert not settled.takes_over
    assert settled.summary.startswith(
        "demo.reward_model@3 was refused and stays candidate: accuracy"
    )
    refusal = champions.refusal("demo.reward_model@3")
    assert (refusal.data_seq, refusal.cause) == (CHANGE, settled.reason)
    assert champions.store.calibrations.of_latest_fit().refusal == refusal


def test_champion_itself_is_never_refused(champions, settle, champion, forgetful):
    settled = settle(
        CalibratedModel(champion.version, forgetful.reward_model, None, "none"),
        taste_changes=TasteChanges(CHANGE),
    )
    assert settled.was_champion
    assert settled.report.refusal is None
    assert champions.refusal(champion.label) is None
