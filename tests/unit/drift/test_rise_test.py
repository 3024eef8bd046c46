"""The rise test: its level, its date, its start from a reference; categories tested together."""

import numpy as np
import pytest

from rlhf_pipeline.drift.category_rises import CategoryParams, CategoryRises
from rlhf_pipeline.drift.rise_test import RiseTest, RiseTestParams
from rlhf_pipeline.testing.drift import draw_errors, find_drifts, read_errors


def find_rises(*parts: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Of 40 streams that rise after 2,000 votes: votes until it is found, and how far its date is
    off.
    """
    delays, dates = [], []
    for seed in range(40):
        signals = read_errors(RiseTest(RiseTestParams()), draw_errors(seed, (2000, 0.25), *parts))
        if found := [s for s in signals if s.seq > 6000]:  # every third vote is one of the stream
            delays.append(found[0].seq / 3 - 2000)
            dates.append(found[0].change_seq / 3 - 2000)
    return np.array(delays), np.array(dates)


@pytest.mark.parametrize(
    ("rate", "delay", "off"), [(0.35, 300, 60), (0.4, 200, 35), (0.5, 100, 20)]
)
def test_an_abrupt_rise_is_found_and_dated(rate: float, delay: float, off: float) -> None:
    delays, dates = find_rises((1500, rate))
    assert len(delays) >= 38  # one that a false alarm hides until the level is learnt again
    assert np.median(delays) < delay
    assert np.median(np.abs(dates)) < off
    assert abs(np.median(dates)) < off / 2


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


def stream_of_categories(seed: int, n: int, turned: str | None) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    names = [f"category {i}" for i in rng.integers(0, 8, n)]
    return [
        (name, int(rng.random() < (0.75 if name == turned and i > n // 2 else 0.25)))
        for i, name in enumerate(names)
    ]


def test_the_turned_category_is_named() -> None:
    for seed in range(5):
        rises = CategoryRises(CategoryParams())
        rows = enumerate(stream_of_categories(seed, 3000, "category 3"))
        signals = [(name, s) for i, (name, e) in rows if (s := rises.update(name, e, i))]
        name, signal = signals[0]
        assert name == "category 3"
        assert 1500 < signal.seq < 2300
        assert signal.evidence["threshold"] == pytest.approx(5.2 + np.log(8))


def test_a_state_continues_where_it_stopped() -> None:
    rows = list(enumerate(stream_of_categories(4, 3000, "category 1")))
    whole = CategoryRises(CategoryParams())
    expected = [s for i, (name, e) in rows if (s := whole.update(name, e, i))]
    rises, found = CategoryRises(CategoryParams()), []
    for i, (name, error) in rows:
        found += [s] if (s := rises.update(name, error, i)) else []
        if i % 500 == 0:
            rises = CategoryRises.from_state(CategoryParams(), rises.state())
    assert found == expected
    assert rises.state() == whole.state()
