from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.simulation import (
    RUBRIC,
    WARM_TASTE,
    AnnotatorPool,
    SimulatedAnnotator,
    judge_rubric,
    simulate_votes,
    utility_gaps,
)

DAY = "2026-01-03"
START = datetime(2026, 1, 3, 9, tzinfo=UTC)
PARTS = [
    "Thank you, friend!",
    "Source: the archive.",
    "Anyway, who knows.",
    "It is Rome.",
    "It is Paris.",
]


def comparisons_of(n, *, repeats=0, seed=0):
    rng = np.random.default_rng(seed)

    def text():
        return " ".join(PARTS[i] for i in rng.permutation(len(PARTS))[: rng.integers(1, 4)])

    rows = [
        {
            "comparison_id": f"c{i}",
            "prompt_id": "p",
            "prompt": "q",
            "completion_a": text(),
            "completion_b": text(),
            "repeat_of": None,
            "position": i,
        }
        for i in range(n)
    ]
    for i in range(repeats):
        swapped = {"completion_a": rows[i]["completion_b"], "completion_b": rows[i]["completion_a"]}
        rows.append(
            rows[i] | swapped | {"comparison_id": f"r{i}", "repeat_of": f"c{i}", "position": n + i}
        )
    return pd.DataFrame(rows)


def cast(comparisons, pool=None, **more):
    options = {"day": DAY, "votes_per_comparison": 3, "seed": 0, "start": START} | more
    return simulate_votes(
        comparisons, {"p": "Rome"}, WARM_TASTE, pool or AnnotatorPool(), **options
    )


def test_votes_do_not_depend_on_the_order_of_rows():
    comparisons = comparisons_of(40, repeats=5)
    shuffled = comparisons.sample(frac=1, random_state=1)
    assert cast(comparisons) == cast(shuffled)
    assert cast(comparisons) != cast(comparisons, seed=1)


def test_a_repeat_has_the_same_annotators_as_its_comparison():
    comparisons = comparisons_of(30, repeats=10)
    judges = {}
    for vote in cast(comparisons):
        judges.setdefault(vote.comparison_id, []).append(vote.annotator_id)
    assert all(len(set(people)) == 3 for people in judges.values())
    assert all(judges[f"r{i}"] == judges[f"c{i}"] for i in range(10))


def test_votes_are_in_time_order_inside_their_day_with_distinct_keys():
    late = datetime(2026, 1, 3, 23, 59, tzinfo=UTC)
    for start in (START, late):
        votes = cast(comparisons_of(300), start=start)
        moments = [vote.voted_at for vote in votes]
        assert moments == sorted(moments)
        assert moments[0] >= start
        assert moments[-1].date().isoformat() == DAY
        assert len({vote.idempotency_key for vote in votes}) == len(votes) == 900


def test_strength_comes_with_a_side_only():
    votes = cast(comparisons_of(300), AnnotatorPool(skip_rate=0.05))
    n_of_choice = Counter(vote.choice for vote in votes)
    assert {Choice.A, Choice.B, Choice.TIE, Choice.SKIP} <= set(n_of_choice)
    assert all(
        (vote.strength is not None) == (vote.choice in (Choice.A, Choice.B)) for vote in votes
    )
    assert {vote.strength for vote in votes} >= {1, 2, 3, 4}


def test_a_tie_of_two_bad_completions_is_a_both_bad_vote():
    annotator = SimulatedAnnotator(annotator_id="x", noise=0.01, tie_width=0.5)
    assert annotator.vote(-3, -3, n_earlier=0, rng=np.random.default_rng(0)) == (
        Choice.BOTH_BAD,
        None,
    )
    assert annotator.vote(0, 0, n_earlier=0, rng=np.random.default_rng(0)) == (Choice.TIE, None)


def test_rubric_answers_follow_qualities_and_keep_votes():
    comparisons = comparisons_of(300, repeats=5)
    pool = AnnotatorPool(skip_rate=0.05)
    votes = cast(comparisons, pool)

    def judge(rows=comparisons):
        return judge_rubric(votes, rows, {"p": "Rome"}, WARM_TASTE, pool)

    votes_with_answers = judge()
    assert [vote.model_copy(update={"details": None}) for vote in votes_with_answers] == votes
    assert votes_with_answers == judge(rows=comparisons.sample(frac=1, random_state=1))
    assert all(
        (vote.details is None) == (vote.choice == Choice.SKIP) for vote in votes_with_answers
    )
    gaps = pd.DataFrame(
        utility_gaps(comparisons, {"p": "Rome"}, list(RUBRIC.values())),
        index=comparisons["comparison_id"],
        columns=list(RUBRIC),
    )
    for name in RUBRIC:
        large = gaps[name][gaps[name].abs() > 0.9]
        sides = [
            (vote.details.dimensions[name], large[vote.comparison_id] > 0)
            for vote in votes_with_answers
            if vote.details and vote.comparison_id in large.index
        ]
        right = [side == ("a" if is_a else "b") for side, is_a in sides if side != "tie"]
        assert len(right) > 100
        assert np.mean(right) > 0.7, name
