"""Reviews of feedback: by ids or filter, all or none, undone once; a rejected correction teaches
nothing.
"""

from collections.abc import Callable
from datetime import date

import pytest
from sqlalchemy import text

from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview
from rlhf_pipeline.core.api_types.filters import AuditFilter, FeedbackFilter, FeedbackSelection
from rlhf_pipeline.core.curation import FeedbackQuery
from rlhf_pipeline.core.errors import NotFound, ReviewConflict, StoreError
from rlhf_pipeline.core.records import Feedback, NewFeedback
from rlhf_pipeline.feedback.votes.preference_pairs import make_pairs
from rlhf_pipeline.feedback.votes.teaching import teaching_votes
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import feedback
from tests.unit.store.conftest import tamper

CORRECTION = {"kind": "correction", "prompt": "2+2?", "completion": "5", "correction": "4"}

THUMB = {"kind": "thumbs", "value": 1, "completion": "x"}


@pytest.fixture
def send(store: Store) -> Callable[..., list[int]]:
    def send(n: int = 3, created_by: str = "app", **values: object) -> list[int]:
        fields = values if "kind" in values else THUMB | values
        return [
            store.feedback.add(NewFeedback(**fields), created_by=created_by).feedback_id
            for _ in range(n)
        ]

    return send


def review(store: Store, ids: list[int] | None = None, **values: object):
    order = FeedbackReview(feedback_ids=ids or [], **values)
    return store.feedback_reviews.review(order, actor="cora")


def get(store: Store, feedback_id: int) -> Feedback:
    return store.feedback.select(FeedbackQuery(feedback_ids=(feedback_id,)))[0]


def teaches(store: Store, *feedback_ids: int) -> bool:
    """Whether preference pairs are made of the votes of these corrections."""
    ids = {get(store, feedback_id).comparison_id for feedback_id in feedback_ids}
    log, comparisons = store.votes.log(comparison_ids=ids), store.comparisons.with_ids(ids)
    return len(make_pairs(teaching_votes(log, comparisons).votes, comparisons)[0]) > 0


def test_feedback_is_pending_until_it_is_reviewed(store, send):
    first, second, third = send()
    done = review(store, [first, second], status="approved", add_tags=("Tone ", "b"), notes=" ok ")
    assert (done.review_id, done.n_matched, done.n_changed) == (1, 2, 2)
    entry = get(store, first)
    assert (entry.status, entry.curator_tags, entry.notes) == ("approved", ("tone", "b"), "ok")
    assert (entry.reviewed_by, entry.reviewed_at is None) == ("cora", False)
    assert get(store, third).status == "pending"
    assert review(store, [first], status="approved").review_id is None, "nothing changed"
    assert store.feedback_reviews.count_by_status() == {"approved": 2, "pending": 1}
    review(store, [second], status="rejected", tags=("c",), notes="")
    entry = get(store, second)
    assert (entry.status, entry.curator_tags, entry.notes) == ("rejected", ("c",), None)
    assert store.feedback_reviews.list_tags() == ["b", "c", "tone"]
    for only, expected in (
        ({"status": "pending"}, [third]),
        ({"status": "rejected", "tag": "C"}, [second]),
        ({"tag": "one"}, []),
        ({"feedback_id": second}, [second]),
        ({"status": "all"}, [third, second, first]),
        ({"until": "2020-01-01"}, []),
    ):
        page = store.feedback.page(FeedbackFilter(**only))
        assert [entry.feedback_id for entry in page] == expected, only
        assert store.feedback_reviews.count(FeedbackSelection(**only)) == len(expected), only
    approved = store.feedback.select(FeedbackQuery(), "approved")
    assert [entry.feedback_id for entry in approved] == [first]


def test_a_filter_reviews_what_it_matched_when_it_was_counted(store, send):
    send(3, session_id="s")
    send(2, session_id="other")
    only = {"session_id": "s", "status": "pending", "until": date.max}
    chosen = {"filter": only, "n_expected": 3}
    assert review(store, status="approved", **chosen).n_changed == 3
    with pytest.raises(ReviewConflict, match="matches 0 entries now, not 3"):
        review(store, status="rejected", **chosen)
    assert store.feedback_reviews.count_by_status() == {"approved": 3, "pending": 2}


def test_an_undo_leaves_what_was_reviewed_again(store, send):
    ids = send(4)
    review(store, ids[:2], add_tags=("old",), notes="before")
    bulk = review(store, ids, status="rejected", tags=(), notes="spam").review_id
    review(store, ids[-1:], status="approved")
    undone = store.feedback_reviews.undo(bulk, actor="otto")
    assert (undone.n_changed, undone.left) == (3, (ids[-1],))
    restored = [(e.status, e.curator_tags, e.notes) for e in store.feedback.page()[::-1]]
    assert restored == [
        *[("pending", ("old",), "before")] * 2,
        ("pending", (), None),
        ("approved", (), "spam"),
    ]
    with pytest.raises(ReviewConflict, match="was undone"):
        store.feedback_reviews.undo(bulk, actor="otto")
    with pytest.raises(NotFound):
        store.feedback_reviews.undo(99, actor="otto")
    acts = store.audit.page(AuditFilter(action="review.*"))[0]
    assert [act.action for act in acts][:4] == [*["review.undo"] * 3, "review.approved"]
    assert (acts[0].actor, acts[0].object_id) == ("otto", f"{ids[2]} review 4")
    store.audit.verify()


def test_a_rejected_correction_teaches_nothing_until_it_returns(store, send):
    correction = send(1, **CORRECTION)
    assert teaches(store, *correction), "a pending one teaches"
    comparison_id = get(store, correction[0]).comparison_id
    assert store.feedback.find_unapproved_comparisons() == {comparison_id}
    rejected = review(store, correction, status="rejected").review_id
    assert not teaches(store, *correction)
    assert store.comparisons.with_ids([comparison_id])["flag"].tolist() == ["rejected"]
    assert store.comparisons.flag([comparison_id], None, actor="ann") == 0, "the queue decides"
    store.feedback_reviews.undo(rejected, actor="cora")
    assert teaches(store, *correction)
    review(store, correction, status="rejected")
    review(store, correction, status="approved")
    assert teaches(store, *correction)
    assert store.feedback.find_unapproved_comparisons() == set()


def test_a_correction_sent_twice_teaches_while_one_is_not_rejected(store, send):
    first, second = send(2, **CORRECTION)
    review(store, [first], status="rejected")
    assert teaches(store, first)
    review(store, [second], status="rejected")
    assert not teaches(store, first, second)


def test_a_flag_of_people_outlives_reviews(store, send):
    correction = send(1, **CORRECTION)
    comparison_id = get(store, correction[0]).comparison_id
    store.comparisons.flag([comparison_id], "pii", actor="ann")
    for status in ("rejected", "approved"):
        review(store, correction, status=status)
        assert store.comparisons.with_ids([comparison_id])["flag"].tolist() == ["pii"]


def test_a_tampered_review_breaks_the_audit_chain(store, send):
    review(store, send(1), status="rejected")
    with pytest.raises(StoreError), store.database.write_transaction() as connection:
        connection.execute(text("DELETE FROM feedback_reviews"))
    tamper(store, "UPDATE feedback_reviews SET status = 'approved'")
    with pytest.raises(StoreError, match="review of feedback 1 review 1, which was changed"):
        store.audit.verify()


def test_a_thousand_entries_are_reviewed_and_undone_at_once(store):
    row = {
        "kind": "thumbs",
        "created_by": "app",
        "created_at": store.database.clock.now(),
        "record": NewFeedback(**THUMB).model_dump_json(),
    }
    with store.database.write_transaction() as connection:
        rows = [row | {"feedback_id": n} for n in range(1, 1_001)]
        store.database.insert(connection, feedback, rows)
    done = review(store, list(range(1, 1_001)), status="approved", add_tags=("bulk",))
    assert store.audit.count() == 1_000
    assert store.feedback_reviews.undo(done.review_id, actor="cora").n_changed == 1_000
    assert store.feedback_reviews.count_by_status() == {"pending": 1_000}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"feedback_ids": [1]}, "say what to change"),
        ({"status": "approved"}, "either by feedback_ids or by filter"),
        ({"feedback_ids": [1], "filter": {}, "n_expected": 1, "notes": "x"}, "either"),
        ({"filter": {}, "status": "approved"}, "needs n_expected"),
        *(({"feedback_ids": [1], "add_tags": [tag]}, "one line") for tag in ("a,b", " ", "a\nb")),
    ],
)
def test_an_incomplete_review_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        FeedbackReview(**values)
