"""Feedback: kept as sent, read by session and kind; a correction becomes a comparison and a vote
for the corrected text.
"""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.api_types.filters import FeedbackFilter
from rlhf_pipeline.core.errors import IdempotencyConflict
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, NewFeedback, content_id
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.feedback.votes.preference_pairs import make_pairs

CORRECTION = {
    "kind": "correction",
    "prompt": "2+2?",
    "completion": "5",
    "correction": "4 — ü",
    "session_id": "s",
    "text": "arithmetic",
}
GIVEN = datetime(2026, 1, 3, 9, tzinfo=UTC)


def test_feedback_comes_back_as_it_was_sent(store):
    feedback = NewFeedback(
        kind="rating",
        value=4,
        completion="text",
        session_id="s",
        turn=2,
        tags=("web", "de"),
        given_at=GIVEN,
    )
    stored = store.feedback.add(feedback, created_by="app")
    assert store.feedback.page() == [stored]
    assert stored.model_dump(include=set(NewFeedback.model_fields)) == feedback.model_dump()
    assert (stored.feedback_id, stored.comparison_id, stored.vote_id) == (1, None, None)


def test_feedback_is_listed_newest_first_by_page_and_filter(store):
    for i in range(5):
        store.feedback.add(
            NewFeedback(kind="thumbs", value=i % 2, completion_id=f"x{i}", session_id=f"s{i % 2}"),
            created_by=f"app{i % 3}",
        )
    store.feedback.add(NewFeedback(kind="detailed", text="nice", completion="x"), created_by="app0")
    assert [feedback.feedback_id for feedback in store.feedback.page(before_id=3)] == [2, 1]
    for only, expected in (
        ({"limit": 4}, [6, 5, 4, 3]),
        ({"session_id": "s1"}, [4, 2]),
        ({"kind": "detailed"}, [6]),
        ({"created_by": "app2"}, [3]),
    ):
        page = store.feedback.page(FeedbackFilter(**only))
        assert [feedback.feedback_id for feedback in page] == expected, only
    assert store.feedback.count_by_kind() == {"thumbs": 5, "detailed": 1}


def test_a_correction_becomes_a_vote_and_its_text_is_chosen(store):
    feedback = store.feedback.add(NewFeedback(**CORRECTION, given_at=GIVEN), created_by="ann")
    vote = store.votes.get(feedback.vote_id)
    assert (vote.strength, vote.annotator_id, vote.annotator_kind) == (
        4,
        "ann",
        AnnotatorKind.HUMAN,
    )
    assert (str(vote.day), vote.reason) == ("2026-01-03", "arithmetic")
    comparisons = check_frame(store.comparisons.with_ids([feedback.comparison_id]), COMPARISONS)
    pairs = make_pairs(counting_votes(store.votes.log(["2026-01-03"])), comparisons)[0]
    assert (pairs["chosen"].iloc[0], pairs["rejected"].iloc[0], pairs["prompt"].iloc[0]) == (
        "4 — ü",
        "5",
        "2+2?",
    )
    assert [day.day.isoformat() for day in store.votes.touched_days()] == ["2026-01-03"]
    store.audit.verify()


def test_side_position_and_id_do_not_reveal_a_correction(store, make_comparisons):
    """Whoever could tell which comparisons are corrections would still not know which text their
    authors preferred.
    """
    store.comparisons.publish(make_comparisons(20, day="2026-01-03"), published_at=GIVEN)
    ids = [
        store.feedback.add(
            NewFeedback(**{**CORRECTION, "prompt": f"{n}+2?"}, given_at=GIVEN), created_by="ann"
        ).comparison_id
        for n in range(40)
    ]
    frame = store.comparisons.with_ids(ids).set_index("comparison_id")
    votes = counting_votes(store.votes.log(comparison_ids=ids)).set_index("comparison_id")
    assert 4 < (votes["choice"] == "a").sum() < 36
    for comparison_id in ids:
        side, other = ("a", "b") if votes.loc[comparison_id, "choice"] == "a" else ("b", "a")
        assert (
            frame.loc[comparison_id, f"completion_{side}"],
            frame.loc[comparison_id, f"completion_{other}"],
        ) == (
            "4 — ü",
            "5",
        )
        assert (
            frame.loc[comparison_id, f"model_version_{side}"],
            frame.loc[comparison_id, f"model_version_{other}"],
        ) == ("correction", "unknown")
    assert len(set(frame["position"])) > 5
    assert frame["position"].between(0, 19).all(), "as those of the day that are none"
    assert len(set(frame["seed"])) == 40, "the seed of each draw is kept"
    assert content_id("comparison", "correction", "0+2?", "5", "4 — ü", "ann") not in ids, (
        "nor can it be worked out from the texts"
    )


def test_equal_corrections_share_a_comparison_per_author(store):
    first = store.feedback.add(NewFeedback(**CORRECTION), created_by="ann")
    two = store.feedback.add(NewFeedback(**CORRECTION), created_by="ann")
    other = store.feedback.add(NewFeedback(**CORRECTION), created_by="bob")
    assert first.comparison_id == two.comparison_id != other.comparison_id
    assert first.vote_id == two.vote_id  # sent within seconds
    assert store.votes.count() == 2
    assert store.comparisons.count() == 2


def test_correction_by_a_machine_is_a_machine_vote(store):
    feedback = store.feedback.add(
        NewFeedback(**CORRECTION), created_by="robot", annotator_kind=AnnotatorKind.MACHINE
    )
    assert store.votes.get(feedback.vote_id).annotator_kind == AnnotatorKind.MACHINE


def test_correction_has_the_day_of_its_vote(store):
    given_at = datetime(2026, 1, 3, 23, 30, tzinfo=timezone(timedelta(hours=-5)))  # the 4th in UTC
    feedback = store.feedback.add(NewFeedback(**CORRECTION, given_at=given_at), created_by="ann")
    assert str(store.votes.get(feedback.vote_id).day) == "2026-01-04"
    assert list(store.comparisons.with_ids([feedback.comparison_id])["day"]) == ["2026-01-04"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "thumbs", "completion": "x"}, "thumbs need value"),
        ({"kind": "thumbs", "value": 0.5, "completion": "x"}, "thumbs need value"),
        ({"kind": "rating", "value": True, "completion": "x"}, "valid number"),
        ({"kind": "rating", "value": 6, "completion": "x"}, "from 1 to 5"),
        ({"kind": "rating", "value": float("nan"), "completion": "x"}, "finite"),
        ({"kind": "detailed", "completion": "x"}, "needs a text"),
        ({"kind": "detailed", "text": "x", "value": 1, "completion": "x"}, "takes no value"),
        (
            {"kind": "detailed", "text": "x", "correction": "y", "completion": "x"},
            "takes no correction",
        ),
        ({"kind": "detailed", "text": "x"}, "must name its completion"),
        ({"kind": "detailed", "text": "x\x00", "completion": "x"}, "NUL"),
        (
            {"kind": "detailed", "text": "x\ud800", "completion": "x"},
            "lone surrogate .* remove character 2",
        ),
        ({**CORRECTION, "correction": "5"}, "equals the completion"),
        ({**CORRECTION, "prompt": None}, "needs the prompt"),
        ({**CORRECTION, "given_at": "2026-01-03T09:00:00"}, "timezone"),
    ],
)
def test_feedback_without_content_is_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        NewFeedback.model_validate(wrong)


def test_feedback_key_gives_one_entry(store):
    thumb = NewFeedback(kind="thumbs", value=1, completion="text")
    first, again = (
        store.feedback.add(thumb, created_by="app", idempotency_key="k") for _ in range(2)
    )
    assert first == again
    assert store.feedback.add(thumb, created_by="other", idempotency_key="k") != first
    with pytest.raises(IdempotencyConflict):
        store.feedback.add(
            NewFeedback(kind="thumbs", value=0, completion="text"),
            created_by="app",
            idempotency_key="k",
        )
