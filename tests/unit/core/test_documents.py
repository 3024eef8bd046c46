"""JSON and YAML that their parsers would change silently are refused by name."""

import pytest
import yaml

from rlhf_pipeline.core.documents import DocumentError, parse_json, parse_json_at, parse_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' occurs twice in one object. Keep one of them"),
        ('{"score": 1e400}', "1e400 is not a finite number"),
        ('{"score": -Infinity}', "-Infinity is not a finite number"),
        ('{"scores": [1, [NaN]]}', "NaN is not a finite number"),
        ("[1e400]", "1e400 is not a finite number"),
        ("NaN", "NaN is not a finite number"),
    ],
)
def test_json_that_would_not_round_trip_is_refused(text, message):
    with pytest.raises(DocumentError) as refusal:
        parse_json(text)
    assert message in str(refusal.value)
    with pytest.raises(DocumentError):
        parse_json_at(text, 0)


def test_json_is_read_unchanged():
    text = '{"a": [1, 2.5, {"a": null}], "b": "NaN", "c": 1e308}'
    assert parse_json(text) == {"a": [1, 2.5, {"a": None}], "b": "NaN", "c": 1e308}
    assert parse_json_at(f" {text},", 1) == (parse_json(text), 1 + len(text))
    assert parse_json('{"a": Infinity}', is_finite=False) == {"a": float("inf")}


def test_duplicate_yaml_key_is_refused_with_its_line():
    with pytest.raises(yaml.MarkedYAMLError, match=r"duplicate key 'a'[\s\S]*line 3"):
        parse_yaml("a: 1\nb: {a: 1}\na: 2\n")


@pytest.mark.parametrize("value", ["010", "-017", "0x1f", "1:30", "1:30.5", "2026-02-30"])
def test_yaml_values_that_would_not_round_trip_are_refused(value):
    with pytest.raises(yaml.MarkedYAMLError, match="line 2, column 4"):
        parse_yaml(f"a: '{value}'\nb: {value}\n")


def test_yaml_merges_and_repeated_values_are_not_duplicates():
    assert parse_yaml("x: &x {a: 1}\ny: {<<: *x, a: 2, b: 1}\n1: a\n'1': b\n") == {
        "x": {"a": 1},
        "y": {"a": 2, "b": 1},
        1: "a",
        "1": "b",
    }
