"""Columns of a file under our names: built in, by YAML, by flag; what does not fit is said with
what there is.
"""

import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.mapping import KNOWN, ColumnMapping, bind


def test_known_names_need_no_mapping():
    columns = ["pair_id", "prompt", "response_a", "response_b", "domain", "topic"]
    bound = bind(KNOWN["comparisons"], ColumnMapping(), columns, what="f", required=[("prompt",)])
    assert bound.columns == {
        "prompt": "prompt",
        "completion_a": "response_a",
        "completion_b": "response_b",
        "source_pair_id": "pair_id",
        "category": "domain",
    }
    assert bound.unused == ["topic"]
    assert bound.select_cells({"prompt": "p", "response_a": "x"})["completion_b"] is None


def test_flag_overrides_file_and_file_overrides_known_names(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("columns:\n  prompt: q1\n  category: kind\nchoices:\n  1: a\n  left: b\n")
    mapping = ColumnMapping.read(path, ["prompt=q2"])
    assert mapping.columns == {"prompt": "q2", "category": "kind"}
    assert mapping.choices == {"1": Choice.A, "left": Choice.B}
    bound = bind(
        KNOWN["comparisons"],
        mapping,
        ["prompt", "q1", "q2", "kind", "domain"],
        what="f",
        required=[],
    )
    assert (bound.columns["prompt"], bound.columns["category"]) == ("q2", "kind")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- prompt", "It holds `columns:` and `choices:`"),
        ("columms:\n  prompt: q", "columms: Extra inputs"),
        ("choices:\n  left: c", "choices.left: Input should be 'a', 'b'"),
        ("columns: [", "is not valid YAML"),
    ],
)
def test_invalid_mapping_is_refused(tmp_path, text, why):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(DatasetError, match=why):
        ColumnMapping.read(path)
    with pytest.raises(DatasetError, match="is not valid YAML"):
        ColumnMapping.read(tmp_path / "none.yaml")


@pytest.mark.parametrize("flag", ["prompt", "=q", "prompt="])
def test_mapping_flag_needs_two_sides(flag):
    with pytest.raises(DatasetError, match="such as --map prompt=question"):
        ColumnMapping.read(None, [flag])


def test_a_missing_column_is_named_with_the_existing_ones():
    with pytest.raises(
        DatasetError,
        match=r"f.csv: no column for choice. The file has: x, y. Known names: choice, label, "
        r"preferred. .*--map choice=COLUMN",
    ):
        bind(KNOWN["votes"], ColumnMapping(), ["x", "y"], what="f.csv", required=[("choice",)])
    with pytest.raises(DatasetError, match=r"missing columns: choice=z. The file has: x"):
        bind(
            KNOWN["votes"], ColumnMapping(columns={"choice": "z"}), ["x"], what="f.csv", required=[]
        )
    with pytest.raises(
        DatasetError, match=r"unknown names \['verdict'\]. Known names: comparison_id"
    ):
        bind(
            KNOWN["votes"],
            ColumnMapping(columns={"verdict": "x"}),
            ["x"],
            what="f.csv",
            required=[],
        )
