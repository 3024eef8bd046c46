"""Casting one vote: rules, idempotency, passes, superseding; and what is read back."""

import json
import random
from collections import Counter
from datetime import date, datetime, timedelta, timezone

import pandas as pd
import pytest
from sqlalchemy import select

from rlhf_pipeline.core.errors import IdempotencyConflict, InvalidVote, UnknownComparison
from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.core.records import Vote, VoteDetails
from rlhf_pipeline.feedback.votes.counting import counting_votes, standing_votes
from rlhf_pipeline.feedback.votes.teaching import Quarantines, TeachingRule, teaching_votes
from rlhf_pipeline.store.counting import is_teaching
from rlhf_pipeline.store.schema import comparisons, votes
from tests.unit.feedback.votes.simulated import select_judgements
from tests.unit.store.conftest import NOON

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"


@pytest.fixture(autouse=True)
def published(store, make_comparisons):
    store.comparisons.publish(make_comparisons(4), published_at=NOON)


def test_vote_round_trips(store, make_vote):
    new_vote = make_vote(strength=3, reason="warmer — ü", stated_confidence=0.8, duration_s=4)
    vote = store.votes.cast(new_vote)
    assert vote.model_dump(include=set(type(new_vote).model_fields)) == new_vote.model_dump()
    assert (vote.seq, vote.day) == (1, date(2026, 1, 1))
    assert store.votes.get(vote.vote_id) == vote


def test_a_vote_on_an_unpublished_comparison_is_refused(store, make_vote):
    with pytest.raises(UnknownComparison, match="'c99' was never published"):
        store.votes.cast(make_vote("c99"))
    assert store.votes.count() == 0


@pytest.mark.parametrize("choice", ["tie", "both_bad", "skip"])
def test_strength_without_a_preference_is_refused(store, make_vote, choice):
    with pytest.raises(InvalidVote, match=r"strength 2 with choice .* Rule"):
        store.votes.cast(make_vote(choice=choice, strength=2))


def test_a_time_without_zone_is_refused(store, make_vote):
    with pytest.raises(InvalidVote, match="no time zone"):
        store.votes.cast(make_vote(voted_at=datetime(2026, 1, 1, 12)))  # noqa: DTZ001


def test_the_day_of_a_vote_is_its_utc_day(store, make_vote):
    late_evening_in_new_york = datetime(2026, 1, 1, 22, tzinfo=timezone(timedelta(hours=-5)))
    assert store.votes.cast(make_vote(voted_at=late_evening_in_new_york)).day == date(2026, 1, 2)


def test_the_same_key_and_body_give_back_the_stored_vote(store, make_vote):
    assert store.votes.cast(make_vote()) == store.votes.cast(make_vote())
    assert store.votes.count() == 1
    assert store.audit.verify() == 2  # the publication and one vote


def test_the_same_key_with_another_body_is_a_conflict(store, make_vote):
    store.votes.cast(make_vote())
    with pytest.raises(IdempotencyConflict, match="'c0/ann' already belongs to vote"):
        store.votes.cast(make_vote(choice="b"))


def test_refused_vote_rolls_back_its_batch(store, make_vote):
    with pytest.raises(UnknownComparison):
        store.votes.cast_many([make_vote("c0"), make_vote("c99")])
    with pytest.raises(InvalidVote):
        store.votes.cast_many([make_vote("c0"), make_vote("c1", choice="tie", strength=1)])
    assert store.votes.count() == 0
    assert store.votes.cast(make_vote()).seq == 1


def test_a_superseding_vote_counts_in_place_of_the_first(store, make_vote):
    first = store.votes.cast(make_vote())
    second = store.votes.cast(make_vote(choice="b", supersedes=first.vote_id, idempotency_key="k2"))
    assert counting_votes(store.votes.log([DAY]))["vote_id"].tolist() == [second.vote_id]
    assert counting_votes(store.votes.log([DAY], up_to_seq=first.seq))["vote_id"].tolist() == [
        first.vote_id
    ]
    assert store.votes.count() == 2


def test_a_vote_may_supersede_one_of_its_own_batch(store, make_vote):
    first = store.votes.cast(make_vote())
    second_id = "not yet known"
    second, third = store.votes.cast_many(
        [
            make_vote(choice="b", supersedes=first.vote_id, idempotency_key="k2"),
            make_vote("c1", idempotency_key="k3"),
        ]
    )
    second_id = second.vote_id
    fourth = store.votes.cast(make_vote(choice="tie", supersedes=second_id, idempotency_key="k4"))
    assert set(counting_votes(store.votes.log([DAY]))["vote_id"]) == {third.vote_id, fourth.vote_id}


def test_only_own_live_votes_can_be_superseded(store, make_vote):
    mine = store.votes.cast(make_vote())
    repeat = make_vote(idempotency_key="k1")
    for vote in (
        make_vote(supersedes="nothing", idempotency_key="k2"),
        make_vote(annotator_id="bob", supersedes=mine.vote_id),
        make_vote("c1", supersedes=mine.vote_id),
    ):
        with pytest.raises(InvalidVote, match="no vote of this annotator on this comparison"):
            store.votes.cast_many([repeat, vote])
    store.votes.cast(make_vote(choice="b", supersedes=mine.vote_id, idempotency_key="k3"))
    with pytest.raises(InvalidVote, match="already superseded"):
        store.votes.cast(make_vote(choice="tie", supersedes=mine.vote_id, idempotency_key="k4"))


def test_a_log_up_to_a_seq_never_changes(store, make_vote):
    store.votes.cast_many([make_vote("c0"), make_vote("c1")])
    before, digest = counting_votes(store.votes.log([DAY])), store.votes.day_digest(DAY)
    store.votes.cast_many([make_vote("c1", choice="b", idempotency_key="again"), make_vote("c2")])
    assert counting_votes(store.votes.log([DAY], up_to_seq=2)).equals(before)
    assert store.votes.day_digest(DAY, 2) == digest
    assert store.votes.day_digest(DAY).sha256 != digest.sha256


def expected_counting(rows: list[dict], up_to_seq: int) -> list[int]:
    """The rule, said in Python: of each annotator's turns at a comparison the last one counts."""
    turns = {}
    for row in rows:
        if row["seq"] <= up_to_seq:
            turns.setdefault((row["comparison_id"], row["annotator_id"]), []).append(
                (row["pass_no"], row["revision_no"], row["seq"])
            )
    last = {max(of_one)[2] for of_one in turns.values()}
    return [row["seq"] for row in rows if row["seq"] in last]


def expected_standing(rows, up_to_seq):
    """Seqs of the last revision of each pass, by the rule in words."""
    last = {}
    for row in rows:
        if row["seq"] <= up_to_seq:
            last[row["comparison_id"], row["annotator_id"], row["pass_no"]] = row["seq"]
    return sorted(last.values())


@pytest.mark.parametrize("seed", range(3))
def test_counting_rules_hold_for_random_repeats_and_revisions(store, make_vote, seed):
    rng = random.Random(seed)
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    live: list[Vote] = []
    for n in range(60):
        corrected = rng.choice(live) if live and rng.random() < 0.5 else None
        who = (
            (corrected.comparison_id, corrected.annotator_id)
            if corrected
            else (f"c{rng.randrange(2)}", rng.choice(("ann", "bob")))
        )
        at = datetime.fromisoformat(f"{rng.choice(days)}T12:00:00+00:00") + timedelta(minutes=n)
        supersedes = corrected.vote_id if corrected else None
        cast = store.votes.cast(
            make_vote(
                *who,
                choice=rng.choice("ab"),
                voted_at=at,
                supersedes=supersedes,
                idempotency_key=f"k{n}",
            )
        )
        live = [vote for vote in live if vote is not corrected] + [cast]
    with store.database.read_transaction() as connection:
        rows = [
            dict(row) for row in connection.execute(votes.select().order_by(votes.c.seq)).mappings()
        ]
    assert any(row["revision_no"] > 1 for row in rows)
    assert any(row["pass_no"] > 2 for row in rows)
    for seq in range(0, 61, 6):
        log = store.votes.log(up_to_seq=seq)
        assert log["seq"].tolist() == list(range(1, seq + 1))
        assert standing_votes(log)["seq"].tolist() == expected_standing(rows, seq)
        assert counting_votes(log)["seq"].tolist() == expected_counting(rows, seq)
        if seq:  # the same two rules as SQL
            cast = store.votes.log(up_to_seq=seq, schema=EXPORTED_VOTES)
            assert (
                cast.loc[~cast["is_superseded"], "seq"].tolist()
                == standing_votes(log)["seq"].tolist()
            )
            assert (
                cast.loc[cast["is_counting"], "seq"].tolist() == counting_votes(log)["seq"].tolist()
            )
        for subset in (days[:1], days[1:2], days[:2]):
            of_days = [row["seq"] for row in rows if row["day"] in subset and row["seq"] <= seq]
            assert store.votes.log(subset, up_to_seq=seq)["seq"].tolist() == of_days
            if len(subset) == 1:
                assert store.votes.day_digest(subset[0], seq).n == len(of_days)


@pytest.mark.parametrize("seed", range(2))
def test_judging_and_teaching_votes_are_those_of_the_log(store, make_vote, make_comparisons, seed):
    """Corrected, repeated, skipped, overruled and quarantined votes, those of machines, and votes
    on repeat cards and flagged comparisons.
    """
    rng = random.Random(seed)
    store.comparisons.publish(make_comparisons(2, prefix="r", repeat_of="c0"), published_at=NOON)
    store.comparisons.flag(["c1"], "broken", actor="ada")
    live: list[Vote] = []
    for n in range(160):
        corrected = rng.choice(live) if live and rng.random() < 0.2 else None
        who = (
            (corrected.comparison_id, corrected.annotator_id)
            if corrected
            else (
                rng.choice(("c0", "c1", "c2", "c3", "r0", "r1")),
                rng.choice(("ann", "bob", "eve", "bot")),
            )
        )
        choice = rng.choice(("a", "b", "tie", "both_bad", "skip"))
        cast = make_vote(
            *who,
            choice=choice,
            strength=rng.choice((None, 3)) if choice in "ab" else None,
            annotator_kind="machine" if who[1] == "bot" else "human",
            supersedes=corrected.vote_id if corrected else None,
            voted_at=NOON + timedelta(minutes=n),
            idempotency_key=f"k{n}",
        )
        live = [vote for vote in live if vote is not corrected] + [store.votes.cast(cast)]
        if n == 60:
            store.adjudications.add("c0", "a", reason="r", actor="eve")
            store.adjudications.add("c2", "b", reason="r", actor="eve")
        if n == 110:
            store.adjudications.undo("c2", reason="r", actor="eve")
    ids = ["c0", "c1", "r0", "r1"]
    expected = select_judgements(store.votes.log(comparison_ids=ids))
    assert len(expected) >= 3, "some judgements count"
    judgements = store.votes.judgements(ids).sort_values("seq", ignore_index=True)
    pd.testing.assert_frame_equal(judgements, expected)
    assert store.votes.judgements([]).empty
    for seq in (40, 80, 120, 160):
        log = store.votes.log(up_to_seq=seq)
        frame = store.comparisons.with_ids(sorted(set(log["comparison_id"])))
        decided = store.adjudications.standing(list(frame["comparison_id"]), up_to_seq=seq)
        for since in ({}, {"ann": 70, "bob": 100}):
            rule = TeachingRule(
                Quarantines(since), {c: adjudication.choice for c, adjudication in decided.items()}
            )
            teach = teaching_votes(log, frame, rule).votes
            teaching_seqs = select(votes.c.seq).join(
                comparisons, comparisons.c.comparison_id == votes.c.comparison_id
            )
            seqs = store.database.fetch_scalars(
                teaching_seqs.where(is_teaching(seq, since)).order_by(votes.c.seq)
            )
            assert seqs == teach["seq"].tolist()
            sums = store.lineage.sum_teaching(seq, since)
            assert sums.by_annotator == Counter(teach["annotator_id"])
            assert (sums.first_seq, sums.last_seq) == (seqs[0], seqs[-1])
            for after in (0, 60, 115):
                n = teach.loc[teach["seq"] > after, "comparison_id"].nunique()
                options = {"up_to_seq": seq, "quarantined": since}
                assert store.votes.n_voted_comparisons(after, **options) == n


def test_a_log_carries_prompt_and_repeat(store, make_vote, make_comparisons):
    store.comparisons.publish(make_comparisons(1, prefix="r", repeat_of="c0"), published_at=NOON)
    store.votes.cast_many([make_vote("c0", strength=2), make_vote("r0")])
    snapshot = store.votes.log([DAY])
    assert snapshot["prompt_id"].tolist() == ["p0", "p0"]
    assert snapshot["repeat_of"].isna().tolist() == [True, False]
    assert snapshot["strength"].isna().tolist() == [False, True]


def test_log_includes_vote_details(store, make_vote):
    details = VoteDetails(
        dimensions={"tone": "b"}, highlights=({"side": "a", "start": 0, "end": 4, "sign": "+"},)
    )
    store.votes.cast_many(
        [
            make_vote("c0"),
            make_vote("c1", duration_s=2.5, stated_confidence=0.7, guideline_version=3),
            make_vote("c2", details=details),
        ]
    )
    log = store.votes.log()
    assert log["duration_s"].isna().tolist() == [True, False, True]
    assert log.loc[1, ["duration_s", "stated_confidence", "guideline_version"]].tolist() == [
        2.5,
        0.7,
        3,
    ]
    assert log["dimensions"].isna().tolist() == [True, True, False]
    assert json.loads(log["dimensions"][2]) == {"tone": "b"}
    assert json.loads(log["highlights"][2])[0]["side"] == "a"
    exported = store.votes.log(schema=EXPORTED_VOTES)
    assert exported["dimensions"][2] == log["dimensions"][2]


def test_log_read_in_pieces_is_equal(store, make_vote, monkeypatch):
    store.votes.cast_many([make_vote(f"c{i}") for i in range(3)])
    whole = store.votes.log()
    monkeypatch.setattr("rlhf_pipeline.store.vote_log.ROWS_AT_ONCE", 2)
    pd.testing.assert_frame_equal(store.votes.log(), whole)
    assert store.votes.log(up_to_seq=2)["seq"].tolist() == [1, 2]


def test_touched_days_are_the_days_of_new_votes(store, make_vote):
    tomorrow = NOON + timedelta(days=1)
    first = store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("c1"))
    assert [(t.day.isoformat(), t.n_new, t.max_seq) for t in store.votes.touched_days(0)] == [
        (DAY, 2, 2)
    ]
    assert store.votes.touched_days(2) == []
    store.votes.cast(
        make_vote(
            "c0", choice="b", supersedes=first.vote_id, voted_at=tomorrow, idempotency_key="k3"
        )
    )
    store.votes.cast(make_vote("c1", choice="b", voted_at=tomorrow, idempotency_key="k4"))
    touched = store.votes.touched_days(2)
    assert [(t.day.isoformat(), t.n_new, t.max_seq) for t in touched] == [
        (NEXT_DAY, 2, 4),
    ]
    assert touched[0].last_received_at.tzinfo is not None
    assert [t.max_seq for t in store.votes.touched_days()] == [2, 4]


def test_voted_comparisons_are_counted_once_and_without_repeats(store, make_vote, make_comparisons):
    store.comparisons.publish(make_comparisons(1, prefix="r", repeat_of="c0"), published_at=NOON)
    store.votes.cast_many(
        [make_vote("c0"), make_vote("c0", "bob"), make_vote("r0"), make_vote("c1", choice="skip")]
    )
    assert store.votes.n_voted_comparisons() == 2
    assert store.votes.n_voted_comparisons(after_seq=2) == 1
