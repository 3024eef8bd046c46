"""Comparisons and votes as Argilla's records."""

import io
import json

import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS, EXPORTED_VOTES, check_frame
from rlhf_pipeline.feedback.datasets.argilla import RECORD_ROWS, record_rows
from rlhf_pipeline.feedback.datasets.formats.argilla import Argilla
from rlhf_pipeline.feedback.datasets.preference import comparison_rows

MOMENT = pd.Timestamp("2026-01-01T10:00:00.000001Z")


def comparisons(n=1):
    usual = {
        "day": "2026-01-01",
        "prompt_id": "p",
        "prompt": "why?",
        "completion_a_id": "x",
        "completion_b_id": "y",
        "completion_a": "so — 🎉",
        "completion_b": "",
        "model_version_a": "m@1",
        "model_version_b": "m@1",
        "category": "factual",
        "position": 0,
        "seed": 7,
    }
    rows = [
        dict.fromkeys(COMPARISONS.columns) | usual | {"comparison_id": f"c{i}"} for i in range(n)
    ]
    return comparison_rows(check_frame(pd.DataFrame(rows), COMPARISONS), "demo")


def votes(*cast):
    """(comparison, annotator, choice, more)"""
    rows = [
        dict.fromkeys(EXPORTED_VOTES.columns)
        | {
            "day": "2026-01-01",
            "seq": i + 1,
            "vote_id": f"v{i}",
            "comparison_id": c,
            "annotator_id": who,
            "annotator_kind": "human",
            "choice": choice,
            "voted_at": MOMENT,
            "received_at": MOMENT,
            "origin": "page",
            "is_superseded": False,
            "is_counting": True,
        }
        | more
        for i, (c, who, choice, more) in enumerate(cast)
    ]
    return check_frame(pd.DataFrame(rows), EXPORTED_VOTES) if rows else EXPORTED_VOTES.empty_frame()


def records(*frames):
    file = io.BytesIO()
    Argilla().write(iter(frames), RECORD_ROWS, file)
    return json.loads(file.getvalue())


def test_records_match_argillas_client():
    details = {"strength": 3, "reason": "kürzer", "stated_confidence": 0.75}
    machine = {"annotator_kind": "machine", "stated_confidence": 0.9}
    cast = votes(("c0", "u1", "a", details), ("c0", "u2", "tie", {}), ("c0", "m@1", "b", machine))
    (record,) = records(record_rows(comparisons(), cast))
    assert list(record) == ["id", "fields", "suggestions", "responses", "vectors", "metadata"]
    assert (record["id"], record["vectors"]) == ("c0", {})
    assert record["fields"] == {"prompt": "why?", "response_a": "so — 🎉", "response_b": ""}
    assert record["responses"]["preference"] == [
        {"value": "a", "user_id": "u1"},
        {"value": "tie", "user_id": "u2"},
    ]
    assert record["responses"]["strength"] == [{"value": 3, "user_id": "u1"}]
    assert record["suggestions"] == {"preference": {"value": "b", "score": 0.9, "agent": "m@1"}}
    assert record["metadata"]["schema"] == "preference-v1/comparison"


def test_only_counting_judgements_are_exported():
    cast = votes(
        ("c0", "u1", "a", {"is_superseded": True, "is_counting": False}),
        ("c0", "u1", "b", {}),
        ("c0", "u2", "a", {"is_counting": False}),
        ("c0", "u3", "skip", {}),
    )
    (record,) = records(record_rows(comparisons(), cast))
    assert record["responses"]["preference"] == [{"value": "b", "user_id": "u1"}]
