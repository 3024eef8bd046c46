"""Votes by the stream: cast as a list is, whole transactions whatever happens, and read back as
they were.
"""

from datetime import timedelta

import pytest
from sqlalchemy import select

from rlhf_pipeline.core.errors import AlreadyVoted, UnknownComparison
from rlhf_pipeline.core.records import AnnotationRules, VoteDetails
from rlhf_pipeline.feedback.votes.counting import counting_votes, repeat_passes
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import votes
from tests.unit.store.conftest import NOON

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


@pytest.fixture
def published(store, make_comparisons) -> Store:
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    return store


def test_stream_is_cast_like_a_list(
    published, fresh_store, make_vote, make_comparisons, monkeypatch
):
    monkeypatch.setattr("rlhf_pipeline.store.votes.VOTES_PER_TRANSACTION", 5)
    batch = [
        make_vote(
            f"c{i % 4}",
            f"ann{i % 3}",
            choice="ab"[i % 2],
            voted_at=NOON + timedelta(minutes=i),
            idempotency_key=f"k{i}",
        )
        for i in range(24)
    ]
    counted = published.votes.cast_all(vote for vote in [*batch, *batch[:7]])
    assert (counted.n_new, counted.n_known) == (24, 7)
    with fresh_store() as other:
        other.comparisons.publish(make_comparisons(4), published_at=NOON)
        other.votes.cast_many(batch)
        assert _without_receipt(published) == _without_receipt(other)
        assert other.audit.verify() == published.audit.verify() == 25
    assert published.votes.cast_all(batch).n_new == 0


@pytest.mark.parametrize(
    ("seconds", "more", "n_votes"),
    [
        (1, {}, 1),
        (-5, {}, 1),
        (6, {}, 2),
        (1, {"choice": "b"}, 2),
        (1, {"strength": 2}, 2),
        (1, {"reason": "clearer"}, 2),
        (1, {"is_swapped": True}, 2),
        (1, {"annotator_id": "bob"}, 2),
    ],
)
def test_an_equal_vote_within_seconds_is_the_same(published, make_vote, seconds, more, n_votes):
    first = published.votes.cast(make_vote())
    again = {"voted_at": NOON + timedelta(minutes=1, seconds=seconds), "idempotency_key": "k"}
    cast = published.votes.cast(make_vote(**again | more))
    assert published.votes.count() == n_votes
    assert (cast == first) == (n_votes == 1)
    assert published.votes.cast_all([make_vote(**again | more)]).n_new == 0
    passes = published.votes.log()["pass_no"].tolist()
    assert passes == ([1] if n_votes == 1 else [1, 1] if "annotator_id" in more else [1, 2])


def test_a_vote_sent_twice_in_one_transaction_is_one(published, make_vote):
    clicks = [make_vote(idempotency_key=f"k{i}") for i in range(3)]
    assert {vote.vote_id for vote in published.votes.cast_many(clicks)} == {
        published.votes.with_key("k0").vote_id
    }
    assert published.votes.count() == 1


def test_an_undone_vote_is_not_the_same_as_the_next(published, make_vote):
    first = published.votes.cast(make_vote())
    undo = make_vote(
        choice="skip", supersedes=first.vote_id, details=UNDONE, idempotency_key="undo"
    )
    published.votes.cast(undo)
    again = published.votes.cast(make_vote(idempotency_key="again"))
    assert (again.vote_id != first.vote_id, published.votes.count()) == (True, 3)


def _without_receipt(store: Store) -> list[dict]:
    with store.database.read_transaction() as connection:
        rows = connection.execute(select(votes).order_by(votes.c.seq)).mappings().all()
    return [{name: row[name] for name in row if name != "received_at"} for row in rows]


def test_interrupted_stream_keeps_whole_transactions(published, make_vote, monkeypatch):
    monkeypatch.setattr("rlhf_pipeline.store.votes.VOTES_PER_TRANSACTION", 5)
    batch = [
        make_vote(f"c{i % 4}", voted_at=NOON + timedelta(minutes=i), idempotency_key=f"k{i}")
        for i in range(7)
    ]
    with pytest.raises(UnknownComparison):
        published.votes.cast_all([*batch, make_vote("c99")])
    assert published.votes.count() == 5
    assert published.votes.cast_all(batch).n_known == 5
    assert published.audit.verify() == 8


UNDONE = VoteDetails(flags=("undone",))


def _turns(store: Store, comparison_id: str) -> list[tuple]:
    """(superseded vote, pass, revision) of the votes on a comparison, in order."""
    turns = select(votes.c.supersedes, votes.c.pass_no, votes.c.revision_no).where(
        votes.c.comparison_id == comparison_id
    )
    with store.database.read_transaction() as connection:
        return [tuple(row) for row in connection.execute(turns.order_by(votes.c.seq))]


def test_vote_after_an_undo_supersedes_it(published, make_vote):
    """As a new pass it would be a second look: no gold figure, and the real repeat a third one."""
    published.cards.offer(["c0"], overlap=1)
    (card,) = published.cards.deal("ann", 1, AnnotationRules(repeat_share=0, gold_share=0))
    on = {
        "comparison_id": "c0",
        "annotator_id": "ann",
        "card_id": card.card_id,
        "is_swapped": card.is_swapped,
    }
    first = published.votes.cast(make_vote(**on, idempotency_key="1"))
    undone = published.votes.cast(
        make_vote(
            **on, choice="skip", supersedes=first.vote_id, details=UNDONE, idempotency_key="2"
        )
    )
    vote = make_vote(**on, choice="b", idempotency_key="3")
    again = published.votes.cast(vote)
    assert again.supersedes == undone.vote_id
    assert _turns(published, "c0") == [(None, 1, 0), (first.vote_id, 1, 1), (undone.vote_id, 1, 2)]
    assert published.votes.cast(vote) == again, "sent again it is the same"
    with pytest.raises(AlreadyVoted):
        published.votes.cast(make_vote(**on, idempotency_key="4"))
    log = published.votes.log()
    assert counting_votes(log)["vote_id"].tolist() == [again.vote_id]
    assert repeat_passes(log).empty
    assert published.audit.verify() > 3


def test_undo_and_vote_in_one_transaction_are_one_pass(published, make_vote):
    first = published.votes.cast(make_vote("c1", idempotency_key="1"))
    details = VoteDetails(dimensions={"undone": "a"})
    undone, *_ = published.votes.cast_many(
        [
            make_vote(
                "c1", choice="skip", supersedes=first.vote_id, details=UNDONE, idempotency_key="2"
            ),
            make_vote("c1", details=details, idempotency_key="3"),
            make_vote("c1", idempotency_key="4"),
        ]
    )
    a_second_look = (None, 2, 0)
    assert _turns(published, "c1") == [
        (None, 1, 0),
        (first.vote_id, 1, 1),
        (undone.vote_id, 1, 2),
        a_second_look,
    ]


def test_imported_votes_fill_offers(published, make_vote):
    published.cards.offer(["c0", "c1", "c2"], overlap=2)
    batch = [
        make_vote(name, who, origin="import", idempotency_key=f"{name}{who}", choice=choice)
        for name, who, choice in (
            ("c0", "ann", "a"),
            ("c0", "bob", "b"),
            ("c0", "cleo", "a"),  # more than were wanted
            ("c1", "ann", "tie"),
            ("c1", "bob", "skip"),
        )
    ]
    published.votes.cast_all(batch)
    assert published.votes.cast_all(batch).n_known == 5
    left = published.cards.remaining_work()
    assert (left.n_wanted, left.n_done, left.n_open) == (6, 3, 3)
    assert published.cards.count_wanted(["c0", "c1", "c2"]) == {
        "c0": (2, 2),
        "c1": (2, 1),
        "c2": (2, 0),
    }


def test_imported_vote_fills_one_offer_despite_skips(published, make_vote):
    published.cards.offer(["c0", "c1"], overlap=1)
    published.cards.ask("ann", ["c0"], actor="test")
    batch = [
        make_vote(name, "ann", origin="import", idempotency_key=f"{name}{choice}", choice=choice)
        for name, choice in (("c0", "a"), ("c1", "skip"), ("c1", "b"), ("c1", "a"))
    ]
    published.votes.cast_all(batch)
    assert published.cards.count_wanted(["c0", "c1"]) == {"c0": (2, 1), "c1": (1, 1)}
    (left,) = published.cards.deal("bob", 2, PLAIN)
    assert (left.comparison_id, left.offered_to) == ("c0", "")


def test_card_taken_by_an_import_is_not_in_progress(published, clock, make_vote):
    published.cards.offer(["c0", "c1"], overlap=1)
    comparison_id = published.cards.deal("ann", 1, PLAIN)[0].comparison_id
    from_file = {"origin": "import", "idempotency_key": "k"}
    published.votes.cast(make_vote(comparison_id, "bob", **from_file))
    left = published.cards.remaining_work()
    assert (left.n_wanted, left.n_done, left.n_leased, left.n_open) == (2, 1, 0, 1)


def test_comparison_judged_without_a_card_is_not_dealt(published, make_vote):
    published.cards.offer(["c0", "c1", "c2"], overlap=2)
    for name, origin in (("c0", "import"), ("c1", "api")):
        published.votes.cast(make_vote(name, "ann", origin=origin))
    assert published.cards.remaining_for("ann", PLAIN).n == 1
    (card,) = published.cards.deal("ann", 3, PLAIN)
    assert card.comparison_id == "c2"
