"""A project's votes, queue, spending and champions are measured as they stand."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.metric_catalogue import METRICS, require_metrics
from rlhf_pipeline.core.records import AnnotationRules, Promotion
from rlhf_pipeline.watch.metrics import measure_project
from tests.unit.store.conftest import NOON


def measure(store, now=NOON):
    points = measure_project(store, "demo", now)
    for point in points:
        assert set(point.labels) <= set(METRICS[point.name].labels)
    return {(point.name, *point.labels.values()): point for point in points}


def test_empty_project_has_an_empty_queue(store):
    assert {key: point.value for key, point in measure(store).items()} == {
        ("queue.open",): 0,
        ("queue.oldest_hours",): 0,
        ("votes.idle_hours",): 0,
    }


def test_votes_are_counted_by_source_and_timed_for_people(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    for n, more in enumerate(
        (
            {"origin": "page", "duration_s": 2.0},
            {"origin": "api", "duration_s": 4.0},
            {"origin": "page", "duration_s": 60.0, "choice": "skip"},
            {"origin": "pipeline", "duration_s": 0.1, "annotator_kind": "machine"},
        )
    ):
        store.votes.cast(make_vote(f"c{n}", **more))
    points = measure(store)
    assert {key[1]: point.n for key, point in points.items() if key[0] == "votes.cast"} == {
        "page": 2,
        "api": 1,
        "pipeline": 1,
    }
    seconds = points["votes.seconds",]
    assert (seconds.n, seconds.total, seconds.total_squares, seconds.value) == (2, 6.0, 20.0, 3.0)
    assert ("votes.seconds",) not in measure(store, NOON + timedelta(days=1))


def test_queue_metrics_equal_the_annotators_queue(store, make_comparisons):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    store.cards.offer(["c0", "c1"], overlap=2)
    store.cards.deal("ann", 1, AnnotationRules(repeat_share=0))
    now = store.database.clock.now()
    points = measure(store, now)
    assert points["queue.open",].value == store.cards.remaining_work().n_open == 3
    assert points["queue.oldest_hours",].value == pytest.approx(0, abs=0.1), "since the offer"
    later = measure(store, now + timedelta(hours=5))
    assert later["queue.oldest_hours",].value == pytest.approx(5, abs=0.1)
    assert later["votes.idle_hours",].value == pytest.approx(5, abs=0.1), "nobody has voted yet"


def test_the_age_of_a_champion_counts_from_its_promotion(store):
    for version, days in ((1, 9), (2, 2)):
        store.promotions.record(
            Promotion(
                model_name="demo.policy",
                version=version,
                previous_version=version - 1 or None,
                data_seq=None,
                reason="first",
                actor="ada",
                promoted_at=NOON - timedelta(days=days),
            )
        )
    ages = {key[1]: p.value for key, p in measure(store).items() if key[0] == "champion.age_days"}
    assert ages == {"policy": 2.0}


def test_unknown_metric_is_refused_with_the_known_ones():
    with pytest.raises(NotFound, match=r"No metric 'votes'\. There are agreement\.rate, "):
        require_metrics(["votes"])
