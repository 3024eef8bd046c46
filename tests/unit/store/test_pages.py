"""Pages of votes and comparisons: newest first, each row on exactly one page, whatever is written
meanwhile.
"""

from datetime import UTC, datetime, timedelta

from rlhf_pipeline.frames import COMPARISONS

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_pages_of_votes_hold_each_once(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(7), published_at=NOON)
    cast = store.votes.cast_many([make_vote(f"c{i}") for i in range(7)])
    seen: list[int] = []
    page = store.votes.page(limit=3)
    while page:
        seen += [vote.seq for vote in page]
        store.votes.cast(make_vote("c0", f"late{len(seen)}"))  # pages do not shift
        page = store.votes.page(limit=3, before_seq=seen[-1])
    assert seen == [vote.seq for vote in reversed(cast)]


def test_a_page_of_votes_says_what_became_of_each(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(2), published_at=NOON)
    first = store.votes.cast(make_vote())
    store.votes.cast(make_vote(choice="b", supersedes=first.vote_id, idempotency_key="k2"))
    store.votes.cast(make_vote("c1", voted_at=NOON + timedelta(days=1)))
    page = store.votes.page()
    assert [(vote.seq, vote.is_superseded, vote.is_counting) for vote in page] == [
        (3, False, True),
        (2, False, True),
        (1, True, False),
    ]
    assert [vote.seq for vote in store.votes.page(day="2026-01-02")] == [3]
    assert store.votes.with_seqs([1, 3, 9]) == [page[0], page[2]]


def test_pages_of_comparisons_hold_each_once(store, make_comparisons):
    for day in ("2026-01-01", "2026-01-02"):
        store.comparisons.publish(make_comparisons(4, day=day, prefix=day), published_at=NOON)
    twin = make_comparisons(1, prefix="twin")  # same day and position as another
    store.comparisons.publish(twin, published_at=NOON)
    seen: list[str] = []
    page = store.comparisons.page(limit=2)
    while not page.empty:
        seen += page["comparison_id"].tolist()
        last = page.iloc[-1]
        page = store.comparisons.page(
            limit=2, before=(last["day"], int(last["position"]), last["comparison_id"])
        )
    ordered = store.comparisons.for_days(["2026-01-01", "2026-01-02"])["comparison_id"].tolist()
    assert seen == ordered[::-1]
    assert len(seen) == 9
    assert page.dtypes.equals(COMPARISONS.empty_frame().dtypes)


def test_the_newest_seq_of_a_day_is_of_the_votes_cast_on_it(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(2), published_at=NOON)
    first = store.votes.cast(make_vote())
    store.votes.cast(
        make_vote(
            choice="b",
            supersedes=first.vote_id,
            voted_at=NOON + timedelta(days=1),
            idempotency_key="k2",
        )
    )
    store.votes.cast(make_vote("c1", voted_at=NOON + timedelta(days=2)))
    assert [touched.max_seq for touched in store.votes.touched_days()] == [1, 2, 3]
    assert store.votes.max_seq() == store.votes.count() == 3


def test_voted_comparisons_are_counted_alike_whether_few_or_most_votes_are_asked_for(
    store, make_comparisons, make_vote
):
    store.comparisons.publish(make_comparisons(6), published_at=NOON)
    store.votes.cast_many(
        [make_vote(f"c{i % 6}", f"ann{i}", choice="skip" if i == 5 else "a") for i in range(24)]
    )
    assert [store.votes.n_voted_comparisons(after) for after in (0, 17, 18, 20, 23, 24)] == [
        6,
        6,
        6,
        4,
        1,
        0,
    ]
    assert [store.votes.n_voted_comparisons(up_to_seq=seq) for seq in (0, 1, 6, 7, 100)] == [
        0,
        1,
        6,
        6,
        6,
    ]
