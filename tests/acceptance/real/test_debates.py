"""Accuracy and calibration on debates that the reward model has not learnt."""

import shutil
from pathlib import Path

import pytest

from tests.acceptance.home import Home
from tests.acceptance.real.debates import FIGURES, interval, measure_split

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def figures(imported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("debates")
    home = Home(shutil.copytree(imported / "home", folder / "home"))
    return measure_split(home, folder, 0)


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_on_left_out_debates_lie_in_their_intervals(
    figures: dict[str, float], figure: str
) -> None:
    low, high = interval(figure)
    assert low <= figures[figure] <= high


def test_accuracy_is_below_the_ceiling_and_above_chance(figures: dict[str, float]) -> None:
    assert 0.7 < figures["accuracy"] < figures["noise ceiling"] + 0.02
