"""Live figures are at most ten seconds old."""

from rlhf_pipeline.web.memory_cache import CacheTimes


def test_caches_of_live_figures_leave_two_seconds_for_counting() -> None:
    times = CacheTimes()
    assert times.figures_s + times.work_s <= 8
