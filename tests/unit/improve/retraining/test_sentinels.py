import pandas as pd
import pytest

from rlhf_pipeline.core.errors import StoppedBySentinel
from rlhf_pipeline.improve.retraining.sentinels import (
    Measurement,
    SentinelParams,
    SentinelWatch,
    find_violation,
)

START = Measurement(
    step=0,
    kl=0.0,
    entropy=1.0,
    diversity=0.5,
    length=20.0,
    cut=0.2,
    flat_groups=None,
    chosen_log_p=-10.0,
    reward=0.0,
    disagreement=0.1,
)


def after(**changes):
    return START.model_copy(update={"step": 20} | changes)


@pytest.mark.parametrize(
    ("changes", "sentinel", "limit"),
    [
        ({"kl": 0.6}, "kl", 0.5),
        ({"entropy": 0.2}, "entropy", 0.3),
        ({"diversity": 0.2}, "diversity", 0.3),
        ({"length": 31.0}, "length", 30.0),
        ({"length": 9.0}, "length", 10.0),
        ({"cut": 0.55}, "cut", 0.5),
        ({"flat_groups": 0.9}, "flat_groups", 0.8),
        ({"disagreement": 0.21}, "disagreement", 0.2),
        ({"chosen_log_p": -25.5}, "chosen_log_p", -25.0),
        ({"kl": float("nan")}, "kl", 0.5),
    ],
)
def test_each_sentinel_has_its_limit(changes, sentinel, limit):
    name, value, broken = find_violation(after(**changes), START, SentinelParams())
    assert (name, broken) == (sentinel, pytest.approx(limit))
    assert value == pytest.approx(next(iter(changes.values())), nan_ok=True)


def watch_that_stopped(tmp_path):
    watch = SentinelWatch(SentinelParams(), None, pd.DataFrame(), tmp_path / "log.json", 8)
    watch.measurements = [START, after(length=40.0)]
    watch.violation = ("length", 40.0, 30.0)
    return watch


def test_sentinel_stop_names_cure_and_checkpoint(tmp_path):
    stop = watch_that_stopped(tmp_path).describe_stop(kept_step=10)
    assert (stop.step, stop.kept_step) == (20, 10)
    assert stop.diagnosis.startswith(
        "Sentinel length stopped the training at step 20: 40, limit 30. The candidate has the "
        "weights of step 10. The policy changes the length instead of the content."
    )


def test_a_stop_before_the_first_checkpoint_fails(tmp_path):
    message = r"Sentinel length .* before its first checkpoint: 40"
    with pytest.raises(StoppedBySentinel, match=message):
        watch_that_stopped(tmp_path).describe_stop(kept_step=None)
