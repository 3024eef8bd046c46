"""Quality of data sets: each part sees its fault, and names its rows."""

import numpy as np
import pytest

from rlhf_pipeline.feedback.datasets.quality import measure_quality
from tests.dataset_rows import build_dataset_rows

N = 10
LONG = "The river town of {} has an old stone bridge and a market that opens on each Monday at nine"


def parts_of(rows, kind="preference", evaluation_prompts=()):
    return {p.name: p for p in measure_quality(rows, kind, evaluation_prompts).parts}


def replace(rows, i, **values):
    for name, value in values.items():
        rows.loc[i, name] = value
    return rows


def with_equal_gap(rows):
    """Every second preferred side is the shorter one."""
    rows["completion"] = [f"{i}{'x' * (1 + i % 2 * 2)}" for i in range(len(rows))]
    rows["rejected"] = [f"{i}yy" for i in range(len(rows))]
    return rows


def test_a_set_without_faults_scores_one():
    quality = measure_quality(with_equal_gap(build_dataset_rows(N)), "preference", ["Other words"])
    assert (quality.score, quality.problems, quality.n_rows) == (1, (), N)
    assert {p.name for p in quality.parts} == {
        *("sides", "duplicates", "near_duplicates", "agreement", "leakage", "length_gap")
    }


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("sides", {"completion": " "}),
        ("sides", {"rejected": "Town 3 lies by river 3. "}),
        ("sides", {"rejected": None}),
        ("agreement", {"agreement": 0.5}),
        (
            "duplicates",
            {
                "prompt": "Question 1: where is town 1?",
                "completion": "Town 1 lies by river 1.",
                "rejected": "I do not know 1.",
            },
        ),
        ("leakage", {"prompt": "where is the EVALUATED town?"}),
    ],
)
def test_a_fault_lowers_its_part_and_is_named(part, values):
    rows = replace(build_dataset_rows(N), 3, **values)
    measured = parts_of(rows, evaluation_prompts=["Where is the evaluated town?"])[part]
    assert measured.value == pytest.approx(0.9)
    assert (measured.n_rows, measured.row_ids) == (1, ("comparison:c3",))


def test_a_near_duplicate_is_found_and_a_like_sentence_is_not():
    rows = build_dataset_rows(3)
    rows["completion"] = [LONG.format("Bern"), LONG.format("Oslo"), LONG.format("Bern") + " now"]
    rows["prompt"] = ["Where is it?", "Who built the first of them and when?", "Where is it?"]
    rows["rejected"] = "I do not know."
    assert parts_of(rows)["near_duplicates"].row_ids == ("comparison:c2",)


def test_near_duplicates_are_found_among_many_rows():
    """Against the similarity computed for each pair of rows."""
    draw = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(500)])
    rows = build_dataset_rows(1_500)
    rows["completion"] = [" ".join(draw.choice(words, 60)) for _ in range(len(rows))]
    for copy in range(1_400, 1_500):  # one word of about seventy is another: similarity 0.92
        original = rows.loc[copy - 1_400, "completion"].split()
        original[30] = "other"
        rows.loc[copy, "completion"] = " ".join(original)
        for name in ("prompt", "rejected"):
            rows.loc[copy, name] = rows.loc[copy - 1_400, name]
    part = parts_of(rows)["near_duplicates"]
    copies = {f"comparison:c{i}" for i in range(1_400, 1_500)}
    assert set(part.row_ids) <= copies
    assert part.n_rows >= 97  # two candidates of a hundred may be missed


@pytest.mark.parametrize(
    ("n", "n_longer", "value"),
    [(1_000, 1_000, 0), (1_000, 0, 0), (1_000, 500, 1), (1_000, 800, 0.4), (4, 4, 1), (10, 7, 1)],
)
def test_length_gap_counts_longer_preferred_sides_beyond_chance(n, n_longer, value):
    rows = build_dataset_rows(n)
    rows["completion"] = ["long" if i < n_longer else "s" for i in range(n)]
    rows["rejected"] = "two"
    part = parts_of(rows)["length_gap"]
    assert part.value == pytest.approx(value, abs=0.06)
    assert part.n_rows == max(n_longer, n - n_longer)


def test_labels_of_an_unpaired_set_are_balanced():
    rows = build_dataset_rows(N, rejected=None, label=[True] * 8 + [False] * 2)
    part = parts_of(rows, "unpaired")["label_balance"]
    assert (part.value, part.n_rows) == (pytest.approx(0.4), 8)
    assert "length_gap" not in parts_of(rows, "unpaired")


def test_the_score_is_the_geometric_mean_of_the_parts():
    rows = with_equal_gap(build_dataset_rows(N, agreement=[0.5] * 5 + [1.0] * 5))
    quality = measure_quality(rows, "preference")
    assert quality.score == pytest.approx(0.5 ** (1 / len(quality.parts)))


def test_without_votes_or_evaluation_set_their_parts_are_missing():
    names = parts_of(build_dataset_rows(N, agreement=None))
    assert not {"agreement", "leakage"} & set(names)


def test_leaks_and_equal_sides_keep_a_set_from_becoming_ready():
    rows = replace(build_dataset_rows(N), 2, rejected="Town 2 lies by river 2.")
    problems = measure_quality(rows, "preference", ["Question 5: where is town 5?"]).problems
    assert [("c2" in p, "c5" in p) for p in problems] == [(True, False), (False, True)]


def test_a_prompt_like_an_evaluation_prompt_lowers_the_score_alone():
    text = LONG.format("Bern") + ", the valley has vines, walnuts, cheese and very slow trains. "
    rows = replace(build_dataset_rows(N), 4, prompt=text + "Which towns are they?")
    evaluated = [text + "Which towns are they, then?"]
    quality = measure_quality(rows, "preference", evaluated)
    assert next(part for part in quality.parts if part.name == "leakage").n_rows == 1
    assert quality.problems == ()


def test_an_empty_set_is_not_ready_and_scores_zero():
    quality = measure_quality(build_dataset_rows(0), "sft")
    assert quality.score == 0
    assert "no rows" in quality.problems[0]


def test_blank_texts_are_measured():
    rows = build_dataset_rows(3, prompt="", completion="", rejected="")
    quality = measure_quality(rows, "preference", [""])
    assert quality.score == 0
    assert {p.name: p.n_rows for p in quality.parts} == {
        "sides": 3,
        "duplicates": 2,
        "near_duplicates": 0,
        "agreement": 0,
        "leakage": 3,
    }
