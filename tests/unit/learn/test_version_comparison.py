"""Which reward-model versions are compared on the same votes, and which are left out."""

import logging
from types import SimpleNamespace

import pytest

from rlhf_pipeline.core.errors import InvalidScores, ModelNotFound
from rlhf_pipeline.learn.calibration import CalibrationParams
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.learn.champions import CalibratedModel
from rlhf_pipeline.learn.champions.version_comparison import measure_versions
from tests.unit.learn.test_champions import judge, pairs, version

CURRENT = judge(1.5, number=4)
PARAMS = CalibrationParams(n_resamples=100)


class UnableToScore:
    def score(self, prompts, completions, **_):
        raise InvalidScores("the score of row 0 is NaN")


def unable(number):
    return CalibratedModel(version(number), UnableToScore(), None, "none")


def removed(label):
    raise ModelNotFound(f"{label} was removed")


def promoted(**by_number):
    """Champions whose registry has promoted these versions in turn: `v1=judge`, or a function that
    raises when the version is loaded.
    """
    judges = {int(name[1:]): judge for name, judge in by_number.items()}

    def load(version):
        judge = judges[version.version]
        return judge if isinstance(judge, CalibratedModel) else judge(version.label)

    return SimpleNamespace(
        registry=SimpleNamespace(
            model_name=lambda kind: f"demo.{kind}", get=lambda kind, number: version(number)
        ),
        store=SimpleNamespace(
            promotions=SimpleNamespace(history=lambda name: [version(number) for number in judges])
        ),
        judge=load,
    )


def test_versions_are_measured_on_the_same_votes_newest_first():
    champions = promoted(v1=judge(-1.0, 1), v3=judge(0.5, 3), v4=CURRENT)
    measured = measure_versions(champions, CURRENT, pairs(MIN_PAIRS, 1), PARAMS)
    labels = [f"demo.reward_model@{number}" for number in (4, 3, 1)]
    assert list(measured) == labels
    # 4 of 5 votes are for the completion that versions 4 and 3 prefer
    assert [measured[label].accuracy.value for label in labels] == pytest.approx([0.8, 0.8, 0.2])
    assert {measurement.n for measurement in measured.values()} == {MIN_PAIRS}  # comparisons


def test_versions_that_do_not_load_or_score_are_left_out_and_logged(caplog):
    champions = promoted(v1=judge(1.0, 1), v2=removed, v3=unable(3), v4=CURRENT)
    with caplog.at_level(logging.WARNING):
        measured = measure_versions(champions, CURRENT, pairs(MIN_PAIRS, 1), PARAMS)
    assert list(measured) == ["demo.reward_model@4", "demo.reward_model@1"]
    assert [line.getMessage() for line in caplog.records] == [
        "reward model 2 is not compared with the others: demo.reward_model@2 was removed",
        "demo.reward_model@3 is not compared with the others: the score of row 0 is NaN",
    ]


def test_current_version_that_cannot_score_is_an_error():
    with pytest.raises(InvalidScores, match="row 0"):
        measure_versions(promoted(v1=judge(1.0, 1)), unable(4), pairs(MIN_PAIRS, 1), PARAMS)
