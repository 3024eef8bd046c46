"""Sums of votes in the store: complete up to a seq, however they were counted."""

from datetime import timedelta

import pandas as pd
import pytest
from sqlalchemy import select

from rlhf_pipeline.metrics.vote_sums import count_new_votes, sum_change
from rlhf_pipeline.records import AnnotatorCell
from rlhf_pipeline.store.schema import annotator_sums
from rlhf_pipeline.store.vote_sums import SumsHead, VoteCell
from rlhf_pipeline.votes.sums import (
    ALL,
    KEY,
    SUMS,
    count_by_annotator,
    select_counted,
    sum_votes,
)
from tests.unit.store.conftest import NOON

ALL_COLUMNS = KEY[1:]
MEASURES = ("choice.a", "choice.b", "choice.skip", "agreement", "strength", "length_gap", "longer")


@pytest.fixture
def cast(store, make_comparisons, make_vote):
    """Ten judged comparisons with revisions, passes, a late vote and a machine's."""
    store.comparisons.publish(make_comparisons(10), published_at=NOON)
    votes = [
        make_vote(f"c{i}", who, "b" if i % 3 else "a", strength=1 + i % 4)
        for i in range(10)
        for who in ("ann", "bob", "eve")
    ]
    store.votes.cast_many(votes)
    first = store.votes.with_key("c0/ann")
    store.votes.cast(make_vote("c0", "ann", "tie", idempotency_key="r", supersedes=first.vote_id))
    later = NOON + timedelta(hours=9)
    store.votes.cast(make_vote("c1", "bob", "a", idempotency_key="p", voted_at=later))
    store.votes.cast(make_vote("c2", "robot", "a", annotator_kind="machine"))
    store.votes.cast(make_vote("c3", "zoe", "skip", origin="api"))
    return store


def read(store):
    """All rows: of each group and of everybody, of each kind and of all."""
    frames = []
    for by in (
        ALL_COLUMNS,
        ["annotator_group", "day"],
        ["day"],
        ["category", "source", "model_version", "day"],
    ):
        head, rows = store.vote_sums.read(MEASURES, by)
        frames.append(pd.DataFrame([tuple(row) for row in rows], columns=["measure", *by, *SUMS]))
    return head.seq, pd.concat(frames)[[*KEY, *SUMS]].fillna(ALL)


def recount(store):
    """The sums, and the numbers of votes by annotator, of all votes."""
    votes = store.votes.log()
    comparisons = store.comparisons.with_ids(votes["comparison_id"].unique())
    groups = store.vote_sums.groups(votes["annotator_id"].unique())
    counted = select_counted(votes)
    found = sum_votes(counted, comparisons, groups)
    return found[found["measure"].isin(MEASURES)], count_by_annotator(counted, comparisons)


def assert_complete(store):
    seq, sums = read(store)
    assert seq == store.votes.max_seq()
    expected, by_annotator = recount(store)
    expected = {key: pytest.approx(row) for key, row in rows_of(expected).items()}
    assert rows_of(sums) == expected
    columns = [annotator_sums.c[name] for name in (*AnnotatorCell._fields, "n")]
    rows = store.database.fetch_all(select(*columns))
    assert {AnnotatorCell(*cell): n for *cell, n in rows if n} == by_annotator


def rows_of(sums):
    rows = sums[[*KEY, *SUMS]].to_numpy().tolist()
    return {tuple(row[: len(KEY)]): row[len(KEY) :] for row in rows}


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_sums_do_not_depend_on_how_votes_are_counted(cast, at_once):
    assert count_new_votes(cast, at_once=at_once) == 0
    assert_complete(cast)


def test_a_process_that_was_slower_adds_nothing(cast):
    head = cast.vote_sums.head()
    change = sum_change(cast, 0, 20)
    assert cast.vote_sums.add(*change, after=head, up_to_seq=20)
    assert not cast.vote_sums.add(*change, after=head, up_to_seq=20)
    assert count_new_votes(cast) == 0
    assert_complete(cast)


def test_at_most_some_votes_are_counted(cast):
    assert count_new_votes(cast, most=10, at_once=10) == cast.votes.max_seq() - 10


def test_an_annotator_belongs_to_the_origin_of_the_first_vote(cast):
    count_new_votes(cast)
    assert cast.vote_sums.group_sizes() == {"simulation": 3, "api": 1}


def test_a_tag_moves_earlier_votes_too(cast):
    count_new_votes(cast)
    assert cast.vote_sums.tag({"ann": "experts", "new": "experts"}, actor="me") == 2
    assert cast.vote_sums.head() == SumsHead(0, 1)
    assert count_new_votes(cast) == 0
    assert_complete(cast)
    assert cast.vote_sums.group_sizes() == {"simulation": 2, "api": 1, "experts": 1}
    assert cast.vote_sums.tags() == {"ann": "experts", "new": "experts"}
    assert cast.vote_sums.tag({"ann": None, "bob": None}, actor="me") == 1
    count_new_votes(cast)
    assert_complete(cast)
    assert cast.vote_sums.group_sizes() == {"simulation": 3, "api": 1}


def test_a_tag_of_somebody_new_counts_nothing_again(cast, make_vote):
    count_new_votes(cast)
    cast.vote_sums.tag({"new": "experts"}, actor="me")
    assert cast.vote_sums.head().seq == cast.votes.max_seq()
    cast.votes.cast(make_vote("c5", "new"))
    count_new_votes(cast)
    assert_complete(cast)
    assert cast.vote_sums.group_sizes()["experts"] == 1


@pytest.mark.parametrize("at_once", [1, 1000])
def test_votes_are_summed_by_annotator(cast, make_vote, at_once):
    """Only the latest revision counts; a skip removes the vote it replaces."""
    late = NOON + timedelta(days=1)
    first = cast.votes.cast(make_vote("c5", "leo", "b"))
    cast.votes.cast(make_vote("c6", "leo", "b", idempotency_key="late", voted_at=late))
    skip = make_vote("c5", "leo", "skip", idempotency_key="s", supersedes=first.vote_id)
    cast.votes.cast(skip)
    count_new_votes(cast, at_once=at_once)
    assert_complete(cast)

    def read(by, **cell):
        return cast.vote_sums.count_voters(VoteCell(**cell), by)

    some_day, next_day = (one.date().isoformat() for one in (NOON, late))
    assert read("day") == {some_day: 3, next_day: 1}
    assert read("day", since=next_day) == {next_day: 1}
    assert read("category") == read("category", category="factual") == {"factual": 4}
    assert sum(read("annotator_group").values()) == 4
    assert read("day", category="poetry") == read("day", source="arena") == {}


def test_sums_are_selected_by_cell(cast):
    count_new_votes(cast)
    chosen = VoteCell(category="factual", annotator_group="api", since=NOON.date())
    _, rows = cast.vote_sums.read(["choice.skip"], ["annotator_group"], chosen)
    assert [(row.annotator_group, row.n, row.total) for row in rows] == [("api", 1, 1)]
