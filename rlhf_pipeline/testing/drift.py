"""Checks a drift detector: its signals, its exact restart, and the inputs it rejects."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_pipeline.drift.base import DriftDetector, Signal
from rlhf_pipeline.errors import InvalidScores
from rlhf_pipeline.testing.members import check_member, expect_error

NOT_ERRORS = (float("nan"), float("inf"), True, np.bool_(True), None, "1", -0.1, 1.5)


def check_detector(kind: type[DriftDetector]) -> None:
    """Check a detector class against its protocol, with its default parameters; takes some seconds.

    Raises AssertionError with the promise, the stream and the actual result.
    """
    check_member(kind)
    _check_names_of_params(kind)
    _check_refusals(kind)
    _check_quiet_streams(kind)
    _check_rises(kind)
    _check_fresh_start(kind)
    for seed in range(25):
        _check_restart(kind, seed)


def draw_errors(seed: int, *stretches: tuple[int, float]) -> list[int]:
    """A stream of errors: each stretch is a number of votes and their error rate."""
    rng = np.random.default_rng(seed)
    return [int(rng.random() < rate) for n, rate in stretches for _ in range(n)]


def read_errors(detector: DriftDetector, errors: Iterable[int], first: int = 0) -> list[Signal]:
    """The detector's signals over `errors`; seqs are 3, 6, 9 …, because a detector must not rely on
    seqs without gaps.
    """
    signals = (detector.update(error, 3 * i + 3) for i, error in enumerate(errors, start=first))
    return [signal for signal in signals if signal is not None]


def find_drifts(signals: Iterable[Signal]) -> list[Signal]:
    """Keep the signals of level drift."""
    return [signal for signal in signals if signal.level == "drift"]


def _check_names_of_params(kind: type[DriftDetector]) -> None:
    odd = [name for name in kind.Params.model_fields if not name.startswith(f"{kind.name}_")]
    assert not odd, (
        f"{kind.name}: parameters {odd} do not begin with '{kind.name}_'. The launchpad shows the "
        "parameters of all detectors together, so they need the detector's name in front."
    )


def _check_refusals(kind: type[DriftDetector]) -> None:
    for value in NOT_ERRORS:
        update: Any = kind(kind.Params()).update
        message = expect_error(
            InvalidScores,
            partial(update, value, 17),
            f"{kind.name}: update({value!r}, 17) is accepted; it must raise InvalidScores. "
            "rlhf_pipeline.drift.base.require_error does that.",
        )
        assert "vote 17" in message, (
            f"{kind.name}: the refusal of {value!r} does not name the vote: {message}"
        )


def _check_quiet_streams(kind: type[DriftDetector]) -> None:
    """A detector that fires on a stream without a rise would confirm other detectors' false
    alarms.
    """
    for constant in (0, 1):
        found = find_drifts(read_errors(kind(kind.Params()), [constant] * 500))
        assert not found, f"{kind.name}: 500 errors of {constant} give drift: {found[0]}"
    for seed in range(5):
        found = find_drifts(
            read_errors(kind(kind.Params()), draw_errors(seed, (400, 0.7), (400, 0.3)))
        )
        assert not found, f"{kind.name}: an error rate that falls gives drift: {found[0]}"
    alarms = sum(
        bool(find_drifts(read_errors(kind(kind.Params()), draw_errors(seed, (1000, 0.25)))))
        for seed in range(20)
    )
    assert alarms <= 6, (
        f"{kind.name}: {alarms} of 20 streams of 1,000 votes with a constant error rate give "
        "drift; at most 6 may. Make its defaults less sensitive."
    )


def _check_rises(kind: type[DriftDetector]) -> None:
    missed = []
    for seed in range(20):
        signals = read_errors(kind(kind.Params()), draw_errors(seed, (1000, 0.25), (500, 0.55)))
        if not any(signal.seq > 3000 for signal in find_drifts(signals)):
            missed.append(seed)
        for signal in signals:
            assert signal.change_seq <= signal.seq, (
                f"{kind.name}: the change lies after the vote that showed it: {signal}"
            )
        warned = [signal.seq for signal in signals if signal.level == "warning"]
        assert len(warned) == len(set(warned)), f"{kind.name}: one vote gives two warnings."
    assert not missed, (
        f"{kind.name}: a rise from 25 % to 55 % errors is missed within 500 votes in streams "
        f"{missed} of 20."
    )


def _check_fresh_start(kind: type[DriftDetector]) -> None:
    detector, fresh = kind(kind.Params()), kind(kind.Params()).state()
    for seq, error in enumerate(draw_errors(3, (600, 0.15), (1200, 0.6))):
        signal = detector.update(error, seq)
        if signal is not None and signal.level == "drift":
            break
    assert detector.state() == fresh, (
        f"{kind.name}: after drift its state is not that of a new detector, so what it read before "
        "the change would still count."
    )


def _check_restart(kind: type[DriftDetector], seed: int) -> None:
    """Rates rise and fall, so alarms, warnings and resets lie around the interruptions."""
    stream = draw_errors(seed, (300, 0.25), (250, 0.5), (250, 0.2), (200, 0.6))
    detector, signals = kind(kind.Params()), []
    for start, end in _draw_cuts(len(stream), seed):
        signals += read_errors(detector, stream[start:end], first=start)
        saved = json.dumps(detector.state(), allow_nan=False)
        detector = kind.from_state(kind.Params(), json.loads(saved))
        again = json.dumps(detector.state(), allow_nan=False)
        assert again == saved, (
            f"{kind.name}: from_state(params, state) has another state after {end} votes of "
            f"stream {seed}:\n{saved}\n{again}"
        )
    whole = read_errors(kind(kind.Params()), stream)
    assert signals == whole, (
        f"{kind.name}: interrupted and restored, it gives other signals on stream {seed}: "
        f"{signals}, not {whole}"
    )


def _draw_cuts(n: int, seed: int) -> Iterator[tuple[int, int]]:
    inside = np.random.default_rng([seed, 1]).integers(0, n, size=12).tolist()
    return pairwise(sorted({0, n, *inside}))
