"""Pages of votes and comparisons: newest first, each row on exactly one page, whatever is written
meanwhile.
"""

from datetime import timedelta

import pandas as pd
import pytest

from rlhf_pipeline.core.api_types.filters import AuditFilter, ComparisonFilter, VoteFilter
from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS
from rlhf_pipeline.core.records import VoteDetails
from rlhf_pipeline.store import comparison_lists, vote_lists
from tests.unit.store.conftest import NOON


def test_pages_of_votes_hold_each_once(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(7), published_at=NOON)
    cast = store.votes.cast_many([make_vote(f"c{i}") for i in range(7)])
    seqs: list[int] = []
    page = store.votes.page(limit=3)
    while page:
        seqs += [vote.seq for vote in page]
        store.votes.cast(make_vote("c0", f"late{len(seqs)}"))  # pages do not shift
        page = store.votes.page(limit=3, before_seq=seqs[-1])
    assert seqs == [vote.seq for vote in reversed(cast)]


def test_page_of_votes_shows_the_state_of_each(store, make_comparisons, make_vote):
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
    ids: list[str] = []
    two = ComparisonFilter(limit=2)
    page, following = store.comparisons.page(two)
    while not page.empty:
        ids += page["comparison_id"].tolist()
        last = page.iloc[-1]
        assert following in (None, last["comparison_id"])
        page, following = store.comparisons.page(
            two, before=(last["day"], int(last["position"]), last["comparison_id"])
        )
    ordered = store.comparisons.for_days(["2026-01-01", "2026-01-02"])["comparison_id"].tolist()
    assert ids == ordered[::-1]
    assert len(ids) == 9
    assert page.dtypes.equals(COMPARISONS.empty_frame().dtypes)


def list_ids(store, **only) -> list[str]:
    """Over all pages."""
    ids: list[str] = []
    before = None
    while True:
        page, following = store.comparisons.page(ComparisonFilter(**only, limit=2), before=before)
        ids += page["comparison_id"].tolist()
        if following is None:
            return sorted(ids)
        row = store.comparisons.with_ids([following]).iloc[0]
        before = row["day"], int(row["position"]), row["comparison_id"]


def publish_kinds(store, make_comparisons) -> None:
    """c0 to c3 are this project's, of two categories; i0 and i1 are imported."""
    own = make_comparisons(4).assign(category=["poetry", "factual", "factual", "poetry"])
    imported = make_comparisons(2, prefix="i").assign(
        source=pd.Series(["arena", "forum"], dtype="str"),
        source_pair_id=pd.Series(["1", "2"], dtype="str"),
        category="factual",
    )
    store.comparisons.publish(own, published_at=NOON)
    store.comparisons.publish(imported, published_at=NOON)


@pytest.mark.parametrize("looks_at", [1, 3, 100])
def test_filters_of_comparisons_combine(store, make_comparisons, make_vote, monkeypatch, looks_at):
    monkeypatch.setattr(comparison_lists, "LOOKS_AT", looks_at)
    publish_kinds(store, make_comparisons)
    store.cards.offer(["c0", "c1"], overlap=1)
    store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("i1", "other"))
    store.comparisons.flag(["c1", "i0"], "broken", actor="me")
    assert list_ids(store) == ["c0", "c1", "c2", "c3", "i0", "i1"]
    for only, expected in [
        ({"category": "poetry"}, ["c0", "c3"]),
        ({"source": "this project", "category": "factual"}, ["c1", "c2"]),
        ({"source": "arena"}, ["i0"]),
        ({"flag": "broken"}, ["c1", "i0"]),
        ({"flag": "broken", "source": "arena", "category": "factual"}, ["i0"]),
        ({"flag": "broken", "source": "forum"}, []),
        ({"status": "waiting"}, ["c0", "c1"]),
        ({"status": "not_offered", "category": "poetry"}, ["c3"]),
        ({"status": "done"}, []),
        ({"annotator_id": "other"}, ["i1"]),
        ({"annotator_id": "ann", "category": "factual"}, []),
        ({"q": "PROMPT 2"}, ["c2"]),
        ({"q": "100%_"}, []),
    ]:
        assert list_ids(store, **only) == expected, only


def test_a_flag_is_set_removed_and_audited_but_an_imported_one_stays(store, make_comparisons):
    store.comparisons.publish(make_comparisons(2), published_at=NOON)
    twin = make_comparisons(1, prefix="t").assign(flag=pd.Series(["identical"], dtype="str"))
    store.comparisons.publish(twin, published_at=NOON)
    ids = ["c0", "c1", "t0"]
    assert store.comparisons.flag(ids, "pii", actor="me") == 2
    assert store.comparisons.flag(ids, "pii", actor="me") == 0
    assert list_ids(store, flag="pii") == ["c0", "c1"]
    assert store.comparisons.flag(ids, None, actor="me") == 2
    assert list_ids(store, flag="identical") == ["t0"]
    links, _ = store.audit.page(AuditFilter(limit=9))
    acts = [link.object_id for link in links if link.action == "comparisons.flag"]
    assert sorted(acts) == ["2 comparisons: no flag", "2 comparisons: pii"]
    with pytest.raises(UnknownComparison, match="'c9'"):
        store.comparisons.flag(["c0", "c9"], "pii", actor="me")


@pytest.mark.parametrize("looks_at", [1, 2, 100])
def test_filters_of_votes_combine(store, make_comparisons, make_vote, monkeypatch, looks_at):
    monkeypatch.setattr(vote_lists, "SEARCH_LOOKS_AT", looks_at)
    publish_kinds(store, make_comparisons)
    late = NOON + timedelta(days=2)
    first = store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("c0", choice="b", supersedes=first.vote_id, idempotency_key="k2"))
    flagged = VoteDetails(flags=("pii",))
    store.votes.cast(make_vote("i0", voted_at=late, details=flagged, reason="too LONG"))
    store.votes.cast(make_vote("c1", voted_at=late + timedelta(days=1), is_blind=False))

    def seqs(**only) -> list[int]:
        seqs: list[int] = []
        before = None
        while True:
            page, before = store.votes.search(VoteFilter(**only, limit=2), before_seq=before)
            seqs += [vote.seq for vote in page]
            if before is None:
                return seqs

    day = late.date().isoformat()
    for only, expected in [
        ({}, [4, 3, 2, 1]),
        ({"status": "replaced"}, [1]),
        ({"status": "counting", "category": "poetry"}, [2]),
        ({"status": "not_counting"}, []),
        ({"source": "this project"}, [4, 2, 1]),
        ({"source": "arena", "annotator_id": "ann"}, [3]),
        ({"flag": "pii"}, [3]),
        ({"flag": "broken"}, []),
        ({"is_blind": "false"}, [4]),
        ({"is_blind": "true"}, []),
        ({"since": day}, [4, 3]),
        ({"until": day}, [3, 2, 1]),
        ({"day": day}, [3]),
        ({"q": "long"}, [3]),
        ({"q": "PROMPT 1"}, [4]),
    ]:
        assert seqs(**only) == expected, only
