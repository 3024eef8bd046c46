"""Which annotators are the most doubtful."""

from rlhf_pipeline.store.vote_marks import MarkCount, MarkedVotes
from rlhf_pipeline.web.quality.queries import concern_score, describe_marks


def score(*, fast: int = 0, same: int = 0, again: int = 0, n: int = 60) -> float:
    marks = {
        "too_fast": MarkCount(fast, n),
        "same_as_before": MarkCount(same, n),
        "duplicate": MarkCount(again, n),
    }
    return concern_score(describe_marks(MarkedVotes("ann", n, marks), {}))


def test_straight_lining_is_doubtful_but_a_coin_is_not() -> None:
    assert score(same=60) > 0.8
    assert score(same=30) == score(same=3, n=3) == score(n=0) == 0.0
    assert 0 < score(again=1, n=2) < score(fast=60)
