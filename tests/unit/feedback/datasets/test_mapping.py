"""Columns of a file under our names: built in, by flag; what does not fit is said with
what there is.
"""

import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.mapping import COMPARISONS, VOTES, ColumnMapping, bind


def test_known_names_need_no_mapping():
    columns = ["pair_id", "prompt", "response_a", "response_b", "domain", "topic"]
    bound = bind(COMPARISONS, ColumnMapping(), columns, what="f", required=[("prompt",)])
    assert bound.columns == {
        "prompt": "prompt",
        "completion_a": "response_a",
        "completion_b": "response_b",
        "source_pair_id": "pair_id",
        "category": "domain",
    }
    assert bound.unused == ["topic"]
    assert bound.select_cells({"prompt": "p", "response_a": "x"})["completion_b"] is None


def test_flags_override_known_names_and_say_what_words_mean():
    mapping = ColumnMapping.read(["prompt=q2", "category=kind"], ["1=a", "left=b"])
    assert mapping.choices == {"1": Choice.A, "left": Choice.B}
    columns = ["prompt", "q2", "kind", "domain"]
    bound = bind(COMPARISONS, mapping, columns, what="f", required=[])
    assert (bound.columns["prompt"], bound.columns["category"]) == ("q2", "kind")
    with pytest.raises(DatasetError, match="--choice: c is not a choice"):
        ColumnMapping.read([], ["left=c"])


@pytest.mark.parametrize("flag", ["prompt", "=q", "prompt="])
def test_mapping_flag_needs_two_sides(flag):
    with pytest.raises(DatasetError, match="such as --map prompt=question"):
        ColumnMapping.read([flag])


def test_a_missing_column_is_named_with_the_existing_ones():
    with pytest.raises(
        DatasetError,
        match=r"f.csv: no column for choice. The file has: x, y. Known names: choice, label, "
        r"preferred. .*--map choice=COLUMN",
    ):
        bind(VOTES, ColumnMapping(), ["x", "y"], what="f.csv", required=[("choice",)])
    with pytest.raises(DatasetError, match=r"missing columns: choice=z. The file has: x"):
        bind(VOTES, ColumnMapping(columns={"choice": "z"}), ["x"], what="f.csv", required=[])
    with pytest.raises(
        DatasetError, match=r"unknown names \['verdict'\]. Known names: comparison_id"
    ):
        bind(
            VOTES,
            ColumnMapping(columns={"verdict": "x"}),
            ["x"],
            what="f.csv",
            required=[],
        )
