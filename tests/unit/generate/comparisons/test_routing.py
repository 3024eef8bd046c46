from datetime import UTC, datetime, timedelta
from math import ceil

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, Choice
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.generate.comparisons.routing import (
    RoutingParams,
    count_routes,
    machine_votes,
    n_places,
    route,
    send_routes,
)
from rlhf_pipeline.store import Store

DAWN = datetime(2026, 1, 1, 5, tzinfo=UTC)
EXAMPLE = RoutingParams(human_feedback_ratio=0.3, confidence_threshold=0.8)


def comparisons(n: int, **more: object) -> pd.DataFrame:
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": f"c{i:03d}",
            "prompt_id": f"p{i}",
            "prompt": f"ask {i}",
            "completion_a_id": f"a{i}",
            "completion_b_id": f"b{i}",
            "completion_a": "one",
            "completion_b": "two",
            "model_version_a": "m@1",
            "model_version_b": "m@1",
            "category": "factual",
            "repeat_of": None,
            "position": i,
            "seed": 0,
            **more,
        }
        for i in range(n)
    ]
    return check_frame(pd.DataFrame(rows, columns=list(COMPARISONS.columns)), COMPARISONS)


def predictions(
    *p: float, reward_model: str = "demo.reward_model@1", at: datetime = DAWN
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "day": "2026-01-01",
            "comparison_id": [f"c{i:03d}" for i in range(len(p))],
            "reward_model": reward_model,
            "calibrator": "1",
            "data_hash": "d",
            "features_hash": "f",
            "score_a": 0.0,
            "score_b": 0.0,
            "p_raw": 0.5,
            "p_calibrated": p,
            "predicted_at": at,
        }
    )
    return check_frame(frame, PREDICTIONS)


def routed(frame: pd.DataFrame, to: str) -> list[str]:
    return sorted(frame.loc[frame["route"] == to, "comparison_id"])


def test_ratio_sends_the_least_confident_to_people():
    p = [0.95, 0.5, 0.1, 0.7, 0.45, 0.9, 0.25, 0.99, 0.6, 0.85]
    frame = route(comparisons(10), predictions(*p), EXAMPLE)
    # Confidences below 0.8: c001 .5, c004 .55, c008 .6, c003 .7, c006 .75. Three places: ceil(0.3 x
    # 10).
    assert routed(frame, "people") == ["c001", "c004", "c008"]
    assert routed(frame, "open") == ["c003", "c006"]
    assert routed(frame, "machine") == ["c000", "c002", "c005", "c007", "c009"]
    assert set(frame.loc[frame["route"] == "people", "reason"]) == {"unsure"}


def test_remaining_places_are_drawn_from_confident_predictions():
    frame = route(comparisons(20), predictions(*([0.95] * 18 + [0.55, 0.6])), EXAMPLE)
    assert count_routes(frame).model_dump(exclude_defaults=True) == {
        "n": 20, "n_people": 6, "n_unsure": 2, "n_checks": 4, "n_machine": 14, "n_open": 0,
    }  # fmt: skip
    assert {"c018", "c019"} <= set(routed(frame, "people"))
    other = route(
        comparisons(20),
        predictions(*([0.95] * 18 + [0.55, 0.6])),
        EXAMPLE.model_copy(update={"routing_seed": 1}),
    )
    assert routed(other, "people") != routed(frame, "people")


def test_a_comparison_without_a_prediction_goes_to_people_first():
    frame = route(comparisons(10), predictions(0.51, 0.99, 0.99), EXAMPLE)
    assert routed(frame, "people") == sorted(routed(frame, "people"))
    assert "c000" not in routed(frame, "people")
    assert routed(frame, "machine") == ["c001", "c002"]
    assert len(routed(frame, "open")) == 5


def test_first_prediction_counts_not_that_of_a_later_model():
    later = predictions(0.99, reward_model="demo.reward_model@2", at=DAWN + timedelta(days=1))
    frame = route(
        comparisons(1), pd.concat([later, predictions(0.55)]), RoutingParams(human_feedback_ratio=0)
    )
    assert frame["reward_model"].tolist() == ["demo.reward_model@1"]
    assert frame["route"].tolist() == ["open"]


def test_repeats_and_flagged_comparisons_are_not_offered():
    both = pd.concat(
        [
            comparisons(1),
            comparisons(1, comparison_id="r", repeat_of="c000"),
            comparisons(1, comparison_id="f", flag="identical"),
        ]
    )
    assert route(both, predictions(0.9))["comparison_id"].tolist() == ["c000"]


def test_a_prediction_of_another_comparison_is_refused():
    with pytest.raises(FrameError, match="c001"):
        route(comparisons(1), predictions(0.9, 0.9))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    p=st.lists(st.integers(0, 1000).map(lambda i: i / 1000), max_size=40),
    ratio=st.integers(0, 100),
    threshold=st.integers(50, 100),
    seed=st.integers(0, 3),
)
def test_routing_rule_holds_for_all_sizes(p, ratio, threshold, seed):
    params = RoutingParams(
        human_feedback_ratio=ratio / 100, confidence_threshold=threshold / 100, routing_seed=seed
    )
    frame = route(comparisons(len(p)), predictions(*p), params)
    people, machine, left = (frame[frame["route"] == to] for to in ("people", "machine", "open"))
    assert len(frame) == len(p)
    assert len(people) == ceil(ratio * len(p) / 100 - 1e-9)
    assert (machine["confidence"] >= params.confidence_threshold).all()
    assert (left["confidence"] < params.confidence_threshold).all()
    unsure = frame[frame["confidence"] < params.confidence_threshold]
    if len(left):  # then every place went to the least confident
        assert people["confidence"].max() <= left["confidence"].min() if len(people) else True
    else:
        assert set(unsure["comparison_id"]) <= set(people["comparison_id"])
    shuffled = route(
        comparisons(len(p)).sample(frac=1, random_state=seed),
        predictions(*p).sample(frac=1, random_state=seed),
        params,
    )
    pd.testing.assert_frame_equal(shuffled, frame)


@pytest.mark.parametrize(
    ("ratio", "n", "places"),
    [(0.1, 30, 3), (0.07, 100, 7), (0.29, 100, 29), (1e-05, 10, 1), (0.3, 0, 0)],
)
def test_the_ratio_is_applied_as_written(ratio, n, places):
    assert n_places(ratio, n) == places


def test_machine_votes_take_the_likelier_side_at_prediction_time():
    frame = route(comparisons(3), predictions(0.9, 0.1, 0.6), RoutingParams(human_feedback_ratio=0))
    votes = {vote.comparison_id: vote for vote in machine_votes(frame)}
    assert {c: v.choice for c, v in votes.items()} == {"c000": Choice.A, "c001": Choice.B}
    assert votes["c001"].stated_confidence == pytest.approx(0.9)
    assert votes["c001"].annotator_kind == AnnotatorKind.MACHINE
    assert (votes["c001"].voted_at, votes["c001"].annotator_id, votes["c001"].strength) == (
        DAWN,
        "demo.reward_model@1",
        None,
    )


def test_routing_is_idempotent(tmp_path):
    published, predicted = comparisons(10), predictions(*[0.95] * 7, 0.5, 0.55, 0.6)
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        store.comparisons.publish(published, predicted, published_at=DAWN)
        frame = route(
            store.comparisons.for_days(["2026-01-01"]),
            store.predictions.for_comparisons(published["comparison_id"].tolist()),
            EXAMPLE,
        )
        first = send_routes(frame, store.cards, store.votes, overlap=2)
        again = send_routes(frame, store.cards, store.votes, overlap=2)
        assert (first.n_people, first.n_wanted, first.n_machine_votes, first.n_open) == (3, 6, 7, 0)
        assert (again.n_wanted, again.n_machine_votes) == (0, 0)
        left = store.cards.remaining_work()
        assert (left.n_comparisons, left.n_open) == (3, 6)
        cast = counting_votes(store.votes.log(["2026-01-01"]))
        assert set(cast["annotator_kind"]) == {"machine"}
        assert sorted(cast["comparison_id"]) == routed(frame, "machine")
        store.audit.verify()
