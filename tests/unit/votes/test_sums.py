"""Sums of votes: what they count, and that they add up."""

import json

import pandas as pd
import pytest

from rlhf_pipeline.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.votes import agreement
from rlhf_pipeline.votes.sums import (
    ALL,
    KEY,
    SEVERAL,
    SUMS,
    select_counted,
    subtract_sums,
    sum_votes,
)

NOON = pd.Timestamp("2026-01-01T12:00Z")


def make_comparisons(*texts: tuple[str, str], **more: object) -> pd.DataFrame:
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": f"c{i}",
            "prompt_id": f"p{i}",
            "prompt": "?",
            "completion_a_id": "x",
            "completion_b_id": "y",
            "completion_a": a,
            "completion_b": b,
            "model_version_a": "policy@1",
            "model_version_b": "policy@1",
            "category": "factual",
            "position": i,
            "seed": 0,
            **more,
        }
        for i, (a, b) in enumerate(texts)
    ]
    return check_frame(pd.DataFrame(rows, columns=list(COMPARISONS.columns)), COMPARISONS)


def make_votes(*cast: tuple[int, str, str], **more: object) -> pd.DataFrame:
    """Rows of (comparison, annotator, choice)."""
    rows = [
        {
            "day": "2026-01-01",
            "seq": seq,
            "vote_id": f"v{seq}",
            "comparison_id": f"c{i}",
            "prompt_id": f"p{i}",
            "annotator_id": who,
            "annotator_kind": "human",
            "choice": choice,
            "voted_at": NOON,
            "received_at": NOON,
            "origin": "page",
            "pass_no": 1,
            "revision_no": 0,
            **more,
        }
        for seq, (i, who, choice) in enumerate(cast, 1)
    ]
    return check_frame(pd.DataFrame(rows, columns=list(VOTES.columns)), VOTES)


GROUPS = {"ann": "page", "bob": "page", "eve": "experts"}


def read(sums: pd.DataFrame, measure: str) -> tuple[float, float, float]:
    """Comparisons, n and total of everybody's votes for a measure."""
    return read_group(sums, measure, ALL)


def read_group(sums: pd.DataFrame, measure: str, group: str) -> tuple[float, float, float]:
    rows = sums[(sums["measure"] == measure) & (sums["annotator_group"] == group)]
    whole = rows[rows["category"] == ALL]
    detailed = rows[rows["category"] != ALL]
    assert whole["n"].sum() == detailed["n"].sum()
    rows = whole
    return rows["n_groups"].sum(), rows["n"].sum(), rows["total"].sum()


def test_choices_and_skips_are_counted() -> None:
    votes = make_votes((0, "ann", "a"), (0, "bob", "tie"), (1, "ann", "skip"))
    sums = sum_votes(select_counted(votes), make_comparisons(("x", "y"), ("x", "y")), GROUPS)
    assert read(sums, "choice.a") == (1, 2, 1)
    assert read(sums, "choice.both_bad") == (1, 2, 0)
    assert read(sums, "choice.skip") == (2, 3, 1)


def test_machine_votes_and_replaced_votes_are_left_out() -> None:
    votes = make_votes((0, "ann", "a"), (0, "ann", "b"), (0, "bob", "a"))
    votes.loc[1, ["revision_no", "supersedes"]] = [1, "v1"]
    votes.loc[2, "annotator_kind"] = "machine"
    sums = sum_votes(select_counted(votes), make_comparisons(("x", "y")), GROUPS)
    assert read(sums, "choice.b") == (1, 1, 1)


def test_longer_and_styled_completions_are_recognised() -> None:
    texts = ("- one\n- two", "plain"), ("same", "size"), ("# Title\n`code`", "1. one and more text")
    votes = make_votes((0, "ann", "a"), (1, "ann", "a"), (2, "ann", "a"), (0, "bob", "tie"))
    sums = sum_votes(select_counted(votes), make_comparisons(*texts), GROUPS)
    assert read(sums, "longer") == (2, 2, 1)
    assert read(sums, "style.lists") == (2, 2, 1)
    assert read(sums, "style.headings") == read(sums, "style.code") == (1, 1, 1)
    _, n, total = read(sums, "length_gap")
    assert (n, total) == (3, pytest.approx(6 / 11 - 6 / 20))


def test_sides_strengths_and_dimensions_are_summed() -> None:
    rated = json.dumps({"helpful": "a", "harmless": "tie"})
    votes = make_votes((0, "ann", "a"), (1, "ann", "b"), is_swapped=True, strength=3)
    votes.loc[0, "dimensions"] = rated
    sums = sum_votes(select_counted(votes), make_comparisons(("x", "y"), ("x", "y")), GROUPS)
    assert read(sums, "left") == (2, 2, 1)
    assert read(sums, "strength") == (2, 2, 6)
    assert read(sums, "dimension.helpful") == (1, 1, 1)
    assert read(sums, "dimension.harmless") == (0, 0, 0)


def test_agreement_equals_that_of_the_frame() -> None:
    votes = make_votes(
        (0, "ann", "a"), (0, "bob", "a"), (0, "eve", "b"), (1, "ann", "tie"), (1, "eve", "tie")
    )
    sums = sum_votes(select_counted(votes), make_comparisons(("x", "y"), ("x", "y")), GROUPS)
    agreed = agreement(votes).raw_agreement
    _, n, total = read(sums, "agreement")
    assert agreed is not None
    assert (n, total / n) == (4, agreed.value)
    assert read_group(sums, "agreement", "page") == (1, 1, 1)


def test_comparison_of_two_models_belongs_to_several() -> None:
    comparisons = make_comparisons(("x", "y"), model_version_b="policy@2", source="arena")
    sums = sum_votes(select_counted(make_votes((0, "ann", "a"))), comparisons, GROUPS)
    cells = {tuple(cell) for cell in sums[KEY[1:]].to_numpy()}
    assert cells == {
        (group, *kind, "2026-01-01")
        for group in ("page", ALL)
        for kind in (("factual", "arena", SEVERAL), (ALL, ALL, ALL))
    }


def test_a_change_of_sums_leads_from_before_to_after() -> None:
    votes = make_votes((0, "ann", "a"), (0, "bob", "b"), (0, "ann", "b"))
    votes.loc[2, "pass_no"] = 2
    comparisons = make_comparisons(("x", "y"))
    before, after = (sum_votes(select_counted(votes[:n]), comparisons, GROUPS) for n in (2, 3))
    change = subtract_sums(after, before).set_index(KEY)[SUMS]
    added = before.set_index(KEY)[SUMS].add(change, fill_value=0)
    pd.testing.assert_frame_equal(added.sort_index(), after.set_index(KEY)[SUMS].sort_index())
