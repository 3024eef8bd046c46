"""Further strategies lift the true utility of the demo's policy, as sft and dpo do."""

from pathlib import Path

import pytest

from tests.acceptance.demo import Demo, copy_before_retraining, measure_lift, train

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("strategy", ["kto", "grpo", "rloo", "ppo"])
def test_strategy_lifts_true_utility(demo: Demo, tmp_path: Path, strategy: str) -> None:
    assert measure_lift(train(copy_before_retraining(demo, tmp_path), strategy)) > 0
