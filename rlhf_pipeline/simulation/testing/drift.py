"""Checks a drift detector: its signals, and that later votes change none of them."""

import math
from collections.abc import Iterable

import numpy as np

from rlhf_pipeline.simulation.testing.members import check_member
from rlhf_pipeline.watch.drift.base import DriftDetector, Signal, StreamVote

VOTES_PER_DAY, N_PEOPLE, STATED = 100, 9, 0.25


def check_detector(kind: type[DriftDetector]) -> None:
    """Check a detector class against its protocol, with its default parameters; takes some seconds.

    Raises AssertionError with the promise, the stream and the actual result.
    """
    check_member(kind)
    odd = [name for name in kind.Params.model_fields if not name.startswith(f"{kind.name}_")]
    assert not odd, (
        f"{kind.name}: parameters {odd} do not begin with '{kind.name}_'. The launchpad shows the "
        "parameters of all detectors together, so they need the detector's name in front."
    )
    _check_quiet_streams(kind)
    _check_rises(kind)
    for seed in range(3):
        _check_prefixes(kind, seed)


def draw_votes(seed: int, *stretches: tuple[int, float]) -> list[StreamVote]:
    """Votes of predictions that state an error of STATED: each stretch is a number of votes and
    their error rate. Seqs are 3, 6, 9 …, because a detector must not rely on seqs without gaps.
    """
    rng = np.random.default_rng(seed)
    errors = [float(rng.random() < rate) for n, rate in stretches for _ in range(n)]
    stated = math.log(STATED / (1 - STATED))
    return [
        StreamVote(
            seq=3 * i + 3,
            day=str(np.datetime64("2031-01-06") + i // VOTES_PER_DAY),
            annotator_id=f"p{rng.integers(N_PEOPLE)}",
            comparison_id=f"c{i}",
            category="all",
            stated=stated,
            error=error,
        )
        for i, error in enumerate(errors)
    ]


def find_rises(kind: type[DriftDetector], votes: Iterable[StreamVote]) -> list[Signal]:
    """The signals of a detector with its default parameters."""
    return list(kind(kind.Params()).find_rises(votes))


def _check_quiet_streams(kind: type[DriftDetector]) -> None:
    """A detector that fires on a stream without a rise would confirm other detectors' false
    alarms.
    """
    rises = find_rises(kind, draw_votes(0, (500, 0.0)))
    assert not rises, f"{kind.name}: 500 votes without an error give drift: {rises[0]}"
    for seed in range(5):
        rises = find_rises(kind, draw_votes(seed, (400, STATED), (400, 0.1)))
        assert not rises, f"{kind.name}: an error rate that falls gives drift: {rises[0]}"
    alarms = sum(bool(find_rises(kind, draw_votes(seed, (1000, STATED)))) for seed in range(20))
    assert alarms <= 6, (
        f"{kind.name}: {alarms} of 20 streams of 1,000 votes with the stated error rate give "
        "drift; at most 6 may. Make its defaults less sensitive."
    )


def _check_rises(kind: type[DriftDetector]) -> None:
    missed = []
    for seed in range(20):
        signals = find_rises(kind, draw_votes(seed, (1000, STATED), (500, 0.55)))
        if not any(signal.seq > 3000 for signal in signals):
            missed.append(seed)
        for signal in signals:
            assert signal.change_seq <= signal.seq, (
                f"{kind.name}: the change lies after the vote that showed it: {signal}"
            )
    assert not missed, (
        f"{kind.name}: a rise from 25 % to 55 % errors is missed within 500 votes in streams "
        f"{missed} of 20."
    )


def _check_prefixes(kind: type[DriftDetector], seed: int) -> None:
    """A report is made several times a day: its signals must not change with later votes."""
    votes = draw_votes(seed, (400, STATED), (250, 0.5), (150, 0.2), (200, 0.6))
    whole = find_rises(kind, votes)
    for end in np.random.default_rng([seed, 1]).integers(1, len(votes), size=6).tolist():
        rises = find_rises(kind, votes[:end])
        expected = [signal for signal in whole if signal.seq <= votes[end - 1].seq]
        assert rises == expected, (
            f"{kind.name}: after {end} votes of stream {seed} it gives other signals than once all "
            f"are read: {rises}, not {expected}"
        )
