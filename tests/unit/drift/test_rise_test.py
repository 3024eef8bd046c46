"""The rise test: its level, its date, its start from a reference; categories tested together."""

import numpy as np
import pytest

from rlhf_pipeline.drift.category_rises import CategoryParams, CategoryRises
from rlhf_pipeline.drift.rise_test import RiseTest, RiseTestParams
from rlhf_pipeline.testing.drift import draw_errors, find_drifts, read_errors


def test_a_rise_is_found_and_dated() -> None:
    delays, dates = [], []
    for seed in range(20):
        detector = RiseTest(RiseTestParams())
        errors = draw_errors(seed, (2000, 0.25), (1000, 0.4))
        found = next(s for s in read_errors(detector, errors) if s.seq > 6000)
        delays.append(found.seq / 3 - 2000)
        dates.append(found.change_seq / 3 - 2000)
    assert np.median(delays) < 250
    assert abs(np.median(dates)) < 60


def test_a_reference_makes_a_change_at_the_first_vote_visible() -> None:
    found = 0
    for seed in range(20):
        detector = RiseTest(RiseTestParams())
        detector.start_from(300, 0.25)
        found += bool(find_drifts(read_errors(detector, draw_errors(seed, (800, 0.4)))))
        alone = RiseTest(RiseTestParams())
        assert not find_drifts(read_errors(alone, draw_errors(seed, (200, 0.4))))
    assert found >= 18


def test_steady_streams_rarely_fire() -> None:
    fired = sum(
        len(find_drifts(read_errors(RiseTest(RiseTestParams()), draw_errors(seed, (5000, 0.25)))))
        for seed in range(20)
    )
    assert fired <= 7  # two in 100,000 votes are expected


def test_a_rate_near_one_does_not_rise() -> None:
    for rate in (0.95, 1.0):
        detector = RiseTest(RiseTestParams())
        assert not find_drifts(read_errors(detector, draw_errors(1, (3000, rate))))


def stream_of_categories(seed: int, n: int, turned: str | None) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    names = [f"category {i}" for i in rng.integers(0, 8, n)]
    return [
        (name, int(rng.random() < (0.75 if name == turned and i > n // 2 else 0.25)))
        for i, name in enumerate(names)
    ]


def test_the_turned_category_is_named() -> None:
    for seed in range(5):
        rises = CategoryRises(CategoryParams(), guard=1.75)
        rows = enumerate(stream_of_categories(seed, 3000, "category 3"))
        signals = [(name, s) for i, (name, e) in rows if (s := rises.update(name, e, i))]
        name, signal = signals[0]
        assert name == "category 3"
        assert 1500 < signal.seq < 2300
        assert signal.evidence["threshold"] == pytest.approx(5.2 + np.log(8))


def test_a_state_continues_where_it_stopped() -> None:
    rows = list(enumerate(stream_of_categories(4, 3000, "category 1")))
    whole = CategoryRises(CategoryParams(), guard=1.75)
    expected = [s for i, (name, e) in rows if (s := whole.update(name, e, i))]
    rises, found = CategoryRises(CategoryParams(), guard=1.75), []
    for i, (name, error) in rows:
        found += [s] if (s := rises.update(name, error, i)) else []
        if i % 500 == 0:
            rises = CategoryRises.from_state(CategoryParams(), 1.75, rises.state())
    assert found == expected
    assert rises.state() == whole.state()
