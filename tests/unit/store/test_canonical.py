"""What is digested fast is digested the same."""

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rlhf_pipeline.records import NewVote, VoteDetails, content_hash, content_id
from rlhf_pipeline.store.audit import LINK_COLUMNS, link_hash, row_digest
from rlhf_pipeline.store.casting import prepare_row
from rlhf_pipeline.store.conversion import flat_json, keys_of
from rlhf_pipeline.store.schema import votes

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
    row = prepare_row(vote)
    assert row["body_hash"] == content_hash(body)
    assert row["vote_id"] == content_id("vote", vote.idempotency_key, content_hash(body))


def test_rows_and_links_are_hashed_as_their_json():
    row = dict.fromkeys(c.name for c in votes.c)
    row |= {"seq": 1, "vote_id": "v", "received_at": NOON, "choice": "a", "reason": ODD}
    assert row_digest(votes, row | {"body_hash": "not a column"}) == content_hash(row)
    link = {name: "ü" for name in LINK_COLUMNS} | {"seq": 1, "at": NOON}
    text = json.dumps(
        link | {"at": NOON.isoformat()}, sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    assert link_hash(link | {"hash": "h"}) == hashlib.sha256(text.encode()).hexdigest()
