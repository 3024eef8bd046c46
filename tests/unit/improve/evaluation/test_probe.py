"""The model against people: what a bin counts is what it lists."""

from datetime import UTC, datetime

import pandas as pd
import pytest

from rlhf_pipeline.core.frames import PREDICTIONS, VOTES, check_frame
from rlhf_pipeline.improve.evaluation.probe import (
    judged_rows,
    pairs_of_bin,
    probe_groups,
    probe_model,
    rank_pairs,
)
from rlhf_pipeline.watch.reflection import reflect

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def predicted(p: list[float]) -> pd.DataFrame:
    rows = {
        "day": "2026-01-01",
        "comparison_id": [f"c{i}" for i in range(len(p))],
        "reward_model": "m@1",
        "calibrator": "none",
        "data_hash": "d",
        "features_hash": "f",
        "score_a": [probability - 0.5 for probability in p],
        "score_b": 0.0,
        "p_raw": p,
        "p_calibrated": p,
        "predicted_at": NOON,
    }
    return check_frame(pd.DataFrame(rows), PREDICTIONS)


def cast(choices: str, person: str = "ann", first_seq: int = 1) -> pd.DataFrame:
    rows = [
        {
            "seq": first_seq + i,
            "vote_id": f"{person}{i}",
            "comparison_id": f"c{i}",
            "prompt_id": f"p{i}",
            "annotator_id": person,
            "annotator_kind": "human",
            "choice": {"t": "tie"}.get(choice, choice),
            "strength": None,
            "voted_at": NOON,
            "received_at": NOON,
            "day": "2026-01-01",
        }
        for i, choice in enumerate(choices)
    ]
    frame = pd.DataFrame(rows)
    return check_frame(frame.reindex(columns=list(VOTES.columns)), VOTES)


# Edges that binary fractions miss: 0.6 - 0.5 is less than 0.1.
EDGES = (
    [0.5 + n / 20 for n in range(1, 11)]
    + [1 - n / 20 for n in range(11)]
    + [0.55, 0.3, 0.7, 0.15, 0.85]
)


def test_bins_list_as_many_votes_as_they_count():
    votes = cast("ab" * (len(EDGES) // 2))
    reflections = reflect(predicted(EDGES), votes)
    bins = probe_model(reflections, votes).bins
    listed = [pairs_of_bin(reflections, probe_bin) for probe_bin in bins]
    for probe_bin, rows in zip(bins, listed, strict=True):
        pd.testing.assert_frame_equal(pairs_of_bin(judged_rows(reflections), probe_bin), rows)
    assert [len(rows) for rows in listed] == [probe_bin.n for probe_bin in bins]
    assert sum(map(len, listed)) == reflections["is_error"].notna().sum()
    assert not pd.concat(listed)["vote_id"].duplicated().any()
    for probe_bin, rows in zip(bins, listed, strict=True):
        assert (1 - rows["wrong"].mean()) == pytest.approx(probe_bin.accuracy)


def test_wrong_predictions_are_listed_first():
    votes = pd.concat([cast("abb"), cast("baa", "bob", 4)])
    reflections = reflect(predicted([0.91, 0.92, 0.09]), votes)
    (probe_bin,) = probe_model(reflections, votes).bins
    rows = pairs_of_bin(reflections.sample(frac=1, random_state=1), probe_bin)
    assert rows["seq"].tolist() == [2, 4, 6, 1, 3, 5]
    assert rows["wrong"].tolist() == [True] * 3 + [False] * 3


def test_even_prediction_counts_half_in_its_bin():
    """Calibration made p 0.5 of four comparisons of the lowest bin, which scores tell apart."""
    votes = cast("abbbab" * 10)
    p = [0.52, 0.52, 0.6, 0.6, 0.6, 0.6] * 10
    predictions = predicted(p).assign(p_calibrated=[0.52, 0.52, 0.5, 0.5, 0.5, 0.5] * 10)
    reflections = reflect(predictions, votes)
    probe = probe_model(reflections, votes)
    assert probe.metrics.accuracy.value == pytest.approx(1 - reflections["is_error"].mean())
    assert probe.metrics.accuracy.value == pytest.approx(2 / 6)
    names = {"category": dict.fromkeys(votes["comparison_id"], "all")}
    (group,) = probe_groups(reflections, votes, names)
    assert group.calibrated is not None
    assert group.calibrated.accuracy.value == pytest.approx(2 / 6)
    (lowest,) = probe.bins
    rows = pairs_of_bin(reflections, lowest)
    assert rows["wrong"].isna().tolist() == [False] * 10 + [True] * 40 + [False] * 10
    assert lowest.accuracy == pytest.approx((1 - rows["wrong"].astype(float)).fillna(0.5).mean())
    wrong, _, right = (part["seq"].tolist() for _, part in rows.groupby(rank_pairs(rows["wrong"])))
    assert (wrong, right) == ([2 + 6 * i for i in range(10)], [1 + 6 * i for i in range(10)])


def test_probe_shows_its_ceiling_or_that_it_is_unknown():
    votes = pd.concat([cast("ab" * 10), cast("ab" * 9 + "ba", "bob", 21)])
    probe = probe_model(reflect(predicted([0.8, 0.2] * 10), votes), votes)
    assert (probe.n_votes, probe.n_comparisons) == (40, 20)
    assert probe.metrics.accuracy.value == pytest.approx(38 / 40)
    assert probe.noise_ceiling is not None
    alone = cast("ab" * 10)
    assert probe_model(reflect(predicted([0.8, 0.2] * 10), alone), alone).noise_ceiling is None
