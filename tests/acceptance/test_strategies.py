"""Trainings lift the true utility of the demo's policy after its change of taste."""

from pathlib import Path

import pytest

from tests.acceptance.demo import (
    Demo,
    copy_before_retraining,
    interval,
    measure_lift,
    read_samples,
    train,
)

pytestmark = pytest.mark.timeout(3600)


def test_dpo_lifts_true_utility(demo: Demo) -> None:
    low, high = interval("lift by dpo")
    assert max(0, low) < measure_lift(read_samples(demo.home, "demo.policy@2")) < high


def test_sft_lifts_true_utility(demo: Demo, tmp_path: Path) -> None:
    low, high = interval("lift by sft")
    samples = train(copy_before_retraining(demo, tmp_path), "sft")
    assert max(0, low) < measure_lift(samples) < high


def test_ppo_lifts_true_utility(demo: Demo, tmp_path: Path) -> None:
    once = ("--set", "epochs=1", "--set", "min_steps=0")  # 24 steps instead of 60
    assert measure_lift(train(copy_before_retraining(demo, tmp_path), "ppo", *once)) > 0
