"""Consensus by the annotator model over HTTP: what was fitted is read, what came since is said, and
nothing is made up before.
"""

import itertools

import httpx
import pandas as pd
import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.core.records import Choice, NewVote, utc_now
from rlhf_pipeline.feedback.votes.model_consensus import LABELS_FRAME
from tests.web.conftest import Web

KEYS = itertools.count()
STAGE, PART = LABELS_FRAME


def judge(
    web: Web, comparison_id: str, choices: str, annotator_id: str | None = None, kind: str = "human"
) -> int:
    """One vote of somebody new per letter; the seq of the last."""
    for choice in choices:
        n = next(KEYS)
        web.store.votes.cast(
            NewVote(
                comparison_id=comparison_id,
                annotator_id=annotator_id or f"u{n}",
                annotator_kind=kind,
                voted_at=utc_now(),
                origin="api",
                choice={"a": Choice.A, "b": Choice.B, "t": Choice.TIE, "s": Choice.SKIP}[choice],
                idempotency_key=f"k{n}",
            )
        )
    return web.store.votes.max_seq()


def fit(web: Web, up_to_seq: int, **p_a: tuple[float, float, float]) -> None:
    """Leave labels where the asset leaves them: chance of a and its ends, by comparison."""
    rows = [
        {
            "comparison_id": c,
            "prompt_id": "p",
            "utility": 0.0,
            "sd": 1.0,
            "p_a": p,
            "p_low": low,
            "p_high": high,
            "n_votes": 2,
        }
        for c, (p, low, high) in p_a.items()
    ]
    frame = (
        check_frame(pd.DataFrame(rows).assign(max_seq=up_to_seq), SOFT_LABELS)
        if rows
        else SOFT_LABELS.empty_frame()
    )
    Artefacts(web.settings.frames).write_frame(STAGE, frame, PART)


def listed(client: httpx.Client, **params: object) -> list[dict]:
    items, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        answer = client.get("/consensus", params={"method": "joint_model", **params, **more})
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next"]
        if cursor is None:
            return items


def ids(items: list[dict]) -> list[str]:
    return [item["comparison_id"] for item in items]


def test_without_a_fit_the_page_says_how_to_get_verdicts(web: Web):
    (c,) = web.publish(1, overlap=2)
    judge(web, c, "ab")
    reader = web.client("engineer")
    refused = reader.get("/consensus", params={"method": "joint_model"})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:rlhf:problem:not_fitted")
    assert "annotator_model" in refused.json()["detail"]
    fit(web, 1)  # to no judgement
    assert (
        reader.get("/consensus", params={"method": "joint_model", "state": "disputed"}).status_code
        == 409
    )
    assert ids(reader.get("/consensus").json()["items"]) == [c]
    assert reader.get("/consensus").json()["items"][0]["p_a"] is None


@pytest.mark.parametrize("limit", [1, 50])
def test_most_uncertain_verdicts_are_listed_first(web: Web, limit: int):
    sure, near, nearer, unknown, alone = web.publish(5, overlap=2)
    for c in (sure, near, nearer, unknown):
        judge(web, c, "ab")
    seq = judge(web, alone, "a")
    fit(
        web,
        seq,
        **{
            sure: (0.1, 0.05, 0.2),
            near: (0.7, 0.4, 0.9),
            nearer: (0.52, 0.3, 0.7),
            alone: (0.9, 0.8, 0.95),
        },
    )
    reader = web.client("engineer")
    assert ids(listed(reader, state="disputed", limit=limit)) == [nearer, near]
    assert ids(listed(reader, state="open", limit=limit)) == [alone]
    assert ids(listed(reader, limit=limit)) == [alone, nearer, near, sure]
    (agreed,) = listed(reader, state="agreed", limit=limit)
    assert {
        name: agreed[name]
        for name in ("comparison_id", "choice", "share", "low", "high", "p_a", "p_low", "p_high")
    } == {
        "comparison_id": sure,
        "choice": "b",
        "share": 0.9,
        "low": 0.8,
        "high": 0.95,
        "p_a": 0.1,
        "p_low": 0.05,
        "p_high": 0.2,
    }
    assert (agreed["up_to_seq"], agreed["n_since"], agreed["n_a"], agreed["n_b"]) == (seq, 0, 1, 1)


def test_votes_since_the_fit_are_shown_until_a_newer_fit(web: Web):
    known, new = web.publish(2, overlap=2)
    seq = judge(web, known, "ab")
    fit(web, seq, **{known: (0.9, 0.8, 0.95)})
    reader = web.client("engineer")
    assert [(item["comparison_id"], item["n_since"]) for item in listed(reader)] == [(known, 0)]
    judge(web, known, "b")
    later = judge(web, new, "ab")
    assert [
        (item["comparison_id"], item["n_votes"], item["n_since"], item["p_a"])
        for item in listed(reader)
    ] == [(known, 3, 1, 0.9)]
    fit(web, later, **{known: (0.6, 0.3, 0.8), new: (0.5, 0.2, 0.8)})
    assert [
        (item["comparison_id"], item["n_since"], item["up_to_seq"]) for item in listed(reader)
    ] == [
        (new, 0, later),
        (known, 0, later),
    ]


def test_unreadable_labels_are_an_error(web: Web):
    (c,) = web.publish(1, overlap=2)
    fit(web, judge(web, c, "ab"), **{c: (0.9, 0.8, 0.95)})
    reader, path = web.client("engineer"), Artefacts(web.settings.frames).path(STAGE, PART)
    assert ids(listed(reader)) == [c]
    path.write_bytes(b"no parquet")
    broken = reader.get("/consensus", params={"method": "joint_model"})
    assert (broken.status_code, broken.json()["type"]) == (
        503,
        "urn:rlhf:problem:annotator_model_unreadable",
    )
    assert str(path) in broken.json()["detail"]
    assert reader.get("/consensus").status_code == 200
    fit(web, 2, **{c: (0.2, 0.1, 0.3)})
    assert listed(reader)[0]["p_a"] == 0.2
