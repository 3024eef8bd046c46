"""The preference format: what leaves as comparison, vote and tuple, and the JSON schema that says
so.
"""

import io
import json
from importlib.resources import files

import jsonschema
import pandas as pd
import pytest

from rlhf_pipeline.core.frames import COMPARISONS, EXPORTED_VOTES, check_frame
from rlhf_pipeline.feedback.datasets.formats import FORMATS
from rlhf_pipeline.feedback.datasets.preference import (
    KINDS,
    comparison_rows,
    tuple_rows,
    vote_rows,
)
from rlhf_pipeline.feedback.votes.splits import split_of

FOLDER = files("rlhf_pipeline.feedback.datasets") / "schemas"
SCHEMA = json.loads((FOLDER / "preference-v1.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def comparisons(**columns):
    """Own c0, its repeat c1, imported c2 with a split, c3 with a group, c4 flagged."""
    n = 5
    values = {
        "day": "2026-01-01",
        "comparison_id": [f"c{i}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": "why — ü?",
        "completion_a_id": "x",
        "completion_b_id": "y",
        "completion_a": "=1+1",
        "completion_b": "",
        "model_version_a": "m@1",
        "model_version_b": "imported",
        "category": "factual",
        "repeat_of": [None, "c0", None, None, None],
        "position": range(n),
        "seed": 0,
        "source": [None, None, "set", "set", "set"],
        "source_pair_id": [None, None, "s2", "s3", "s4"],
        "split_group": [None, None, None, "debate", None],
        "split": [None, None, "test", None, None],
        "gold": [None, None, "a", "tie", None],
        "flag": [None, None, None, None, "repeated"],
    }
    return check_frame(pd.DataFrame({**values, **columns}), COMPARISONS)


def votes(*rows):
    """Rows of comparison, choice and what differs from a vote that counts."""
    usual = {
        "day": "2026-01-02",
        "annotator_id": "ann_0123456789abcdef",
        "annotator_kind": "human",
        "strength": None,
        "voted_at": "2026-01-02T03:04:05Z",
        "received_at": "2026-01-02T03:04:06Z",
        "source_pair_id": None,
        "reason": None,
        "stated_confidence": None,
        "duration_s": None,
        "task_id": None,
        "origin": "page",
        "is_blind": None,
        "is_superseded": False,
        "is_counting": True,
    }
    vote_rows = [
        {
            **usual,
            "seq": seq,
            "vote_id": f"v{seq}",
            "comparison_id": comparison,
            "choice": choice,
            **more,
        }
        for seq, (comparison, choice, more) in enumerate(rows, start=1)
    ]
    return check_frame(
        pd.DataFrame(vote_rows, columns=list(EXPORTED_VOTES.columns), dtype=object), EXPORTED_VOTES
    )


SOME_VOTES = (
    (
        "c0",
        "a",
        {
            "strength": 4,
            "reason": "because\n=1",
            "duration_s": 0.1 + 0.2,
            "stated_confidence": 1.0,
            "task_id": "t",
            "is_blind": False,
        },
    ),
    ("c2", "tie", {"voted_at": None, "source_pair_id": "s2"}),
    ("c3", "b", {"annotator_kind": "simulated", "annotator_id": "sim-1", "source_pair_id": "s3"}),
)
EVERY_KIND = {
    "comparison": comparison_rows(comparisons(), "demo"),
    "vote": vote_rows(
        votes(*SOME_VOTES, ("c0", "skip", {}), ("c1", "both_bad", {"is_superseded": True})),
        superseded=True,
    ),
    "tuple": tuple_rows(votes(*SOME_VOTES), comparisons(), "demo"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_json_schema_matches_the_frame_schema(kind):
    types = {
        "text": "string",
        "json": "string",
        "int": "integer",
        "float": "number",
        "bool": "boolean",
        "time": "string",
    }
    schema = SCHEMA["$defs"][kind]
    assert list(schema["properties"]) == list(KINDS[kind].columns)
    # Files from before these two were exported stay valid.
    later = ("dimensions", "highlights")
    assert schema["required"] == [name for name in KINDS[kind].columns if name not in later]
    assert schema["additionalProperties"] is False
    for name, column in KINDS[kind].columns.items():
        field = schema["properties"][name]
        assert field["description"] == column.description, name
        if name == "schema":
            assert field["const"] == KINDS[kind].name
        elif column.values:
            assert field["enum"] == [*column.values, *([None] if column.nullable else [])], name
        else:
            assert field["type"] == (
                [types[column.kind], "null"] if column.nullable else types[column.kind]
            ), name
            assert (field.get("minimum"), field.get("maximum")) == (column.low, column.high), name


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_an_export_is_valid(kind):
    file = io.BytesIO()
    n = FORMATS["jsonl"]().write([EVERY_KIND[kind]], KINDS[kind], file)
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert len(rows) == n > 2
    for row in rows:
        VALIDATOR.validate(row)
        assert next(iter(row.items())) == ("schema", f"preference-v1/{kind}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        {"schema": "preference-v2/vote"},
        {"extra": 1},
        {"voted_at": "yesterday"},
        {"choice": "left"},
        {"preferred": "both_bad"},
        {"strength": 5},
        {"comparison_id": None},
        {"split": "validation"},
        {"choice": "tie", "strength": 3},
        {"preferred": "tie", "strength": 3},
    ],
    ids=str,
)
def test_row_of_another_format_is_invalid(kind, change):
    file = io.BytesIO()
    FORMATS["jsonl"]().write([EVERY_KIND[kind]], KINDS[kind], file)
    row = json.loads(file.getvalue().splitlines()[0])
    if set(change) <= set(row) or "extra" in change:
        assert not VALIDATOR.is_valid(row | change)


@pytest.mark.parametrize("kind", KINDS)
def test_row_without_a_field_is_invalid(kind):
    file = io.BytesIO()
    FORMATS["jsonl"]().write([EVERY_KIND[kind]], KINDS[kind], file)
    row = json.loads(file.getvalue().splitlines()[0])
    assert not any(
        VALIDATOR.is_valid({name: value for name, value in row.items() if name != left_out})
        for left_out in set(row) - {"dimensions", "highlights"}  # later than the first files
    )


def test_own_comparisons_are_exported_with_the_project_as_source():
    rows = EVERY_KIND["comparison"]
    assert rows["source"].tolist() == ["demo", "demo", "set", "set", "set"]
    assert rows["source_pair_id"].tolist() == ["c0", "c1", "s2", "s3", "s4"]
    same = [name for name in COMPARISONS.columns if not name.startswith("source")]
    pd.testing.assert_frame_equal(rows[same], comparisons()[same])


def test_exported_votes_name_the_source_comparison():
    assert EVERY_KIND["vote"]["source_pair_id"].tolist() == ["c0", "s2", "s3", "c0", "c1"]


def test_withdrawn_votes_are_exported_only_on_request():
    cast = votes(
        ("c0", "a", {"is_superseded": True, "is_counting": False}),
        ("c0", "b", {}),
        ("c2", "skip", {}),
    )
    assert vote_rows(cast)["choice"].tolist() == ["b", "skip"]
    assert vote_rows(cast, superseded=True)["is_superseded"].tolist() == [True, False, False]


def test_preference_tuple_is_one_vote_with_its_texts():
    tuples = EVERY_KIND["tuple"]
    assert list(tuples.columns[:5]) == ["schema", "prompt", "a", "b", "preferred"]
    assert tuples["preferred"].tolist() == ["a", "tie", "b"]
    assert tuples["comparison_id"].tolist() == ["c0", "c2", "c3"]
    assert tuples["split"].tolist() == [split_of("p0"), "test", split_of("debate")]
    assert tuples["source"].tolist() == ["demo", "set", "set"]
    assert tuples["annotator_kind"].tolist() == ["human", "human", "simulated"]


@pytest.mark.parametrize(
    "vote",
    [
        ("c0", "skip", {}),
        ("c0", "both_bad", {}),
        ("c0", "a", {"is_counting": False}),
        ("c1", "a", {}),
        ("c4", "a", {}),
    ],
    ids=["skip", "both_bad", "earlier pass", "repeat", "flagged"],
)
def test_votes_without_a_pair_are_not_tuples(vote):
    assert tuple_rows(votes(vote), comparisons(), "demo").empty
