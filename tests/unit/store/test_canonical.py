"""What is digested fast is digested the same: hashes of stored votes and links never change."""

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rlhf_pipeline.records import NewVote, VoteDetails, content_hash, content_id
from rlhf_pipeline.store.audit import LATER_COLUMNS, link_hash, vote_digest
from rlhf_pipeline.store.casting import prepare_row
from rlhf_pipeline.store.conversion import flat_json, keys_of
from rlhf_pipeline.store.schema import SCOPE, votes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ODD = 'quote " backslash \\ tab \t ü 漢 \u2028 \x7f \x00'


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a",
        ODD,
        "",
        0,
        -3,
        2**62,
        True,
        0.1,
        1e16,
        1e-7,
        5.0,
        float("nan"),
        float("inf"),
        NOON,
        [1, "é"],
        {"b": 1, "a": None},
    ],
)
def test_fast_json_is_what_content_hash_digests(value):
    row = {"b": value, "a": 1}
    assert (
        content_hash(row)
        == hashlib.sha256(f"[{flat_json(row, keys_of(row))}]".encode()).hexdigest()
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"voted_at": None, "origin": "import"},
        {"voted_at": NOON.replace(microsecond=120_000)},
        {"voted_at": NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))},
        {
            "reason": ODD.replace("\x00", "\x01"),
            "stated_confidence": 0.1,
            "duration_s": 4,
            "strength": 3,
        },
        {"task_id": "t1"},
        {"supersedes": "v1", "choice": "both_bad"},
        {
            "assignment_id": "a1",
            "is_swapped": False,
            "guideline_version": 3,
            "details": VoteDetails(flags=("pii",), dimensions={"ü": "b"}),
        },
        {"is_swapped": True, "details": VoteDetails()},
    ],
)
def test_the_body_of_a_vote_is_hashed_as_its_json(make_vote, more):
    vote: NewVote = make_vote(**more)
    in_utc = vote.model_copy(
        update={"voted_at": vote.voted_at.astimezone(UTC)} if vote.voted_at else {}
    )
    body = in_utc.model_dump(mode="json")
    if vote.details is not None:  # a column of text
        said = vote.details.model_dump(mode="json", exclude_defaults=True)
        body["details"] = (
            json.dumps(said, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            if said
            else None
        )
    body = {
        name: value
        for name, value in body.items()
        if name not in LATER_COLUMNS or value is not None
    }
    row = prepare_row(vote)
    assert row["body_hash"] == content_hash(body)
    assert row["vote_id"] == content_id("vote", vote.idempotency_key, content_hash(body))


def test_hashes_of_stored_votes_stay_what_they_were(make_vote):
    """Written by the first version of this store; a change here breaks every chain that is kept
    somewhere.
    """
    vote = make_vote(strength=2, reason="warmer — ü", stated_confidence=0.8, duration_s=4)
    assert prepare_row(vote)["vote_id"] == "65418bb01fc192803a13"
    row = {
        name: getattr(vote, name, None) for name in (c.name for c in votes.c) if name not in SCOPE
    } | {
        "seq": 1,
        "vote_id": "v",
        "day": "2026-01-01",
        "received_at": NOON,
        "pass_no": 1,
        "revision_no": 0,
        "displaced_day": None,
        "choice": "a",
        "annotator_kind": "simulated",
    }
    assert vote_digest(row) == "9f5704f3b657f6201310d997ff889cc38f40a31d8e0d81c74415db5960d81bab"
    assert vote_digest(row | {"task_id": "t"}) == content_hash(
        {name: row[name] for name in row if name not in LATER_COLUMNS} | {"task_id": "t"}
    )
    link = {
        "organization_id": "o",
        "project_id": "p",
        "seq": 1,
        "at": NOON,
        "actor": "ü",
        "action": "vote.cast",
        "object_id": "v",
        "payload_digest": "d",
        "prev_hash": "0" * 64,
    }
    assert link_hash(link) == "bdcde9e9886a1c4dcc35264851e24d2eb53b6964b84fee2916efe04e57e43557"
