"""Sums of what people prefer: the votes that count, by cell, with intervals over comparisons."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.records import AGREEMENT, Highlight, VoteDetails
from rlhf_pipeline.feedback.votes import agreement
from rlhf_pipeline.store.preferences import EVERYBODY, SEVERAL, PreferenceCell
from tests.unit.store.conftest import NOON

DAY = NOON.date().isoformat()
MEASURES = (
    "choice.skip", "choice.a", "undecided", "left", "strength", "length_gap", "longer",
    "dimension.helpful", AGREEMENT,
)  # fmt: skip


@pytest.fixture
def cast(store, make_comparisons, make_vote):
    """Four judged comparisons with a revision, another day's vote, a machine's and a skip."""
    frame = make_comparisons(4)
    frame["completion_a"] = ["# Title\nlong text", "- one\n- two", "`x` and `y`", "same"]
    frame["completion_b"] = ["short", "two", "longer than the other one", "same"]
    frame.loc[0, "model_version_b"] = "other"
    store.comparisons.publish(frame, published_at=NOON)
    helpful = VoteDetails(dimensions={"helpful": "a"})
    store.votes.cast_many(
        [
            make_vote("c0", "ann", "b", strength=1, is_swapped=True),
            make_vote("c0", "bob", "a", strength=4, is_swapped=True, details=helpful),
            make_vote("c1", "ann", "a", strength=2, is_swapped=False),
            make_vote("c1", "bob", "b", strength=2, details=helpful),
            make_vote("c2", "ann", "tie"),
            make_vote("c3", "ann", "a"),
            make_vote("c3", "zoe", "skip", origin="api"),
            make_vote("c2", "robot", "a", annotator_kind="machine"),
        ]
    )
    first = store.votes.with_key("c0/ann")
    store.votes.cast(
        make_vote("c0", "ann", "a", strength=3, idempotency_key="r", supersedes=first.vote_id)
    )
    late = NOON + timedelta(days=1)
    store.votes.cast(make_vote("c2", "eve", "a", voted_at=late))
    return store


def whole(store, measure, days=(DAY,)):
    """n_groups, n and total over all cells."""
    cells = store.preferences.sums(MEASURES, days, by_group=False)
    rows = [cell_sums[measure] for cell_sums in cells.values() if measure in cell_sums]
    return tuple(sum(row[i] for row in rows) for i in range(3))


def test_only_votes_that_count_are_summed(cast):
    assert whole(cast, "choice.skip") == (4, 7, 1)
    assert whole(cast, "choice.a") == (4, 6, 4)
    assert whole(cast, "undecided") == (4, 6, 1)
    assert whole(cast, "strength") == (2, 4, 3 + 4 + 2 + 2)


def test_sides_lengths_and_dimensions_are_summed(cast):
    assert whole(cast, "left") == (2, 2, 1), "c0 by bob: a was on the right"
    assert whole(cast, "longer") == (2, 4, 3)
    assert whole(cast, "length_gap")[1:] == (5, pytest.approx(2 * 12 / 17 + 0))
    assert whole(cast, "dimension.helpful") == (2, 2, 1)


def test_dimensions_are_not_read_from_highlights(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    span = Highlight(side="a", start=0, end=1, sign="+")
    odd = 'to "be}" \\ (or not)'
    for n, dimensions in enumerate(({}, {"tone": "a"}, {"side": "a", "tone": "b", odd: "b"})):
        details = VoteDetails(dimensions=dimensions, highlights=(span,))
        store.votes.cast(make_vote(f"c{n}", "ann", "a", details=details))
    measures = ["dimension.side", "dimension.tone", f"dimension.{odd}"]
    (cells,) = store.preferences.sums(measures, [DAY], by_group=False).values()
    n_and_total = {name: (sums.n, sums.total) for name, sums in cells.items()}
    assert n_and_total == dict(zip(measures, ((1, 1), (2, 1), (1, 0)), strict=True))


def test_squares_are_over_comparisons(cast):
    cells = cast.preferences.sums(["choice.a"], [DAY], by_group=False)
    (choice_sums,) = (
        sums["choice.a"] for cell, sums in cells.items() if cell.model_version == SEVERAL
    )
    assert choice_sums == (1, 2, 2, 4, 4, 4), "two votes for a on one comparison"


def test_agreement_equals_that_of_the_frame(cast):
    _, n, total = whole(cast, AGREEMENT)
    agreed = agreement(cast.votes.log([DAY])).raw_agreement
    assert (n, total / n) == (agreed.n, pytest.approx(agreed.value))


def test_groups_are_the_given_ones_or_the_origin(cast):
    assert cast.annotator_groups.assign({"ann": "experts", "nobody": "experts"}, actor="me") == 2
    assert cast.annotator_groups.assign({"ann": "experts"}, actor="me") == 0
    cells = cast.preferences.sums(["choice.skip"], [DAY], by_group=True)
    n = {}
    for cell, sums in cells.items():
        n[cell.annotator_group] = n.get(cell.annotator_group, 0) + sums["choice.skip"].n
    assert n == {"experts": 4, "simulation": 2, "api": 1}
    voters = {(cell.annotator_group, who) for cell, who in cast.preferences.voters([DAY])}
    assert voters == {("experts", "ann"), ("simulation", "bob")}
    assert cast.annotator_groups.assign({"ann": None}, actor="me") == 1
    assert cast.annotator_groups.all() == {"nobody": "experts"}


def test_cells_name_day_kind_and_models(cast):
    cells = cast.preferences.sums(["choice.skip"], [DAY, "2026-01-09"], by_group=False)
    assert PreferenceCell(DAY, EVERYBODY, "factual", "this project", SEVERAL) in cells
    assert {cell.day for cell in cells} == {DAY}


def test_changed_days_include_days_of_superseded_votes(cast, make_vote):
    known = cast.votes.max_seq()
    later = NOON + timedelta(days=3)
    cast.votes.cast(make_vote("c1", "ann", "b", idempotency_key="again", voted_at=later))
    assert cast.votes.changed_days(known) == {
        later.date().isoformat(): known + 1,
        DAY: known + 1,
    }
