"""The sequential test: what is no change for it, what is, and when it began."""

from benchmarks.vote_worlds import Change, VoteWorld, draw_reference, draw_votes
from rlhf_pipeline.simulation.testing.drift import draw_votes as draw_stream
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest, SequentialTestParams
from rlhf_pipeline.watch.drift.stream import reference_votes, stream_votes

AT = 1200


def find_rises(world: VoteWorld, seed: int = 1, **params: float):
    detector = SequentialTest(SequentialTestParams(**params))
    known = reference_votes(draw_reference(world, seed))
    return list(detector.find_rises(stream_votes(draw_votes(world, seed)), known))


def changed(cause: str, size: float, **more: float) -> VoteWorld:
    return VoteWorld(n_votes=AT + 600, changes=(Change(cause=cause, at=AT, size=size),), **more)


def test_a_rise_is_found_and_dated():
    (first, *_) = find_rises(changed("taste", 0.2))
    assert AT < first.seq < AT + 300
    assert abs(first.change_seq - AT) < 100
    assert first.category is None
    assert first.evidence["error_after"] > first.evidence["error_expected"] + 0.1


def test_a_change_in_one_category_names_it():
    votes = [
        v._replace(category=f"k{i % 10}", error=1.0 if i % 10 == 3 and i > 1000 else v.error)
        for i, v in enumerate(draw_stream(4, (1800, 0.25)))
    ]
    (first, *_) = SequentialTest(SequentialTestParams()).find_rises(votes)
    assert first.category == "k3"
    assert 2500 < first.change_seq <= first.seq < 4000


def test_harder_prompts_with_stated_doubt_are_no_change():
    assert find_rises(changed("mix", 0.7)) == []


def test_change_from_the_first_vote_on_is_found():
    world = VoteWorld(n_votes=800, changes=(Change(cause="taste", at=0, size=0.2),))
    (first, *_) = find_rises(world)
    assert first.seq < 500
    assert first.change_seq < 150


def test_one_day_alone_is_no_change():
    votes = draw_stream(1, (700, 0.25), (100, 0.6), (700, 0.25))
    test = SequentialTest(SequentialTestParams())
    assert list(test.find_rises(votes)) == []
    days = draw_stream(1, (700, 0.25), (300, 0.6))
    assert list(test.find_rises(days))


def test_repeated_votes_on_a_comparison_weigh_little():
    votes = draw_stream(2, (1000, 0.25))
    repeated = [
        v._replace(comparison_id=f"c{i // 10}", error=votes[i // 10 * 10].error)
        for i, v in enumerate(votes)
    ]
    test = SequentialTest(SequentialTestParams())
    assert list(test.find_rises(repeated)) == []
    assert list(test.find_rises([v._replace(comparison_id=str(v.seq)) for v in repeated]))


def test_late_vote_does_not_change_its_day():
    votes = draw_stream(3, (900, 0.25), (300, 0.5))
    late = votes[700]._replace(day=votes[0].day, seq=votes[700].seq + 1)
    test = SequentialTest(SequentialTestParams())
    signals = list(test.find_rises([*votes[:701], late, *votes[701:]]))
    again = [
        v if v is not late else late._replace(day=votes[700].day) for v in [*votes[:701], late]
    ]
    assert signals == list(test.find_rises([*again, *votes[701:]]))


def test_probabilities_of_a_new_model_are_corrected():
    """It errs in 42 % of the votes where it states 25 %, from the beginning."""
    reference = [v._replace(day="") for v in draw_stream(5, (300, 0.42))]
    votes = draw_stream(6, (600, 0.42))
    test = SequentialTest(SequentialTestParams())
    assert list(test.find_rises(votes))
    assert list(test.find_rises(votes, reference)) == []
