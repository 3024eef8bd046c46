import pytest

from examples.embedded_policy import style_sentences
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.simulation import (
    DEMO_SCENARIO,
    QUALITIES,
    SOURCED_TASTE,
    WARM_TASTE,
    Taste,
    features,
    taste_change,
    utility,
)


@pytest.mark.parametrize(
    ("style", "quality"), [("warm", "warmth"), ("sourced", "sourcing"), ("rambling", "rambling")]
)
def test_truth_recognises_every_taught_style(style, quality):
    qualities = ("warmth", "sourcing", "rambling")
    for sentence in style_sentences()[style]:
        qualities_of = features("", None, sentence)
        assert {q: qualities_of[q] for q in qualities} == {
            q: float(q == quality) for q in qualities
        }, sentence


def test_right_answers_count_and_uncheckable_ones_do_not():
    assert [
        features("q", r, "It is Rome.")["correct"] for r in ("Rome", "Paris", None, float("nan"))
    ] == [1, -1, 0, 0]


def test_utility_is_the_weighted_sum_of_qualities():
    taste = Taste(name="t", weights={"correct": 0.5, "warmth": 2.0})
    assert utility(["q"] * 2, ["Rome"] * 2, ["Rome, friend.", "Paris."], taste).tolist() == [
        2.5,
        -0.5,
    ]


def test_an_empty_completion_has_the_lowest_utility():
    worst = utility(
        ["q"],
        ["Rome"],
        ["Well, who knows. Anyway, and so on. Source: archive. Source: record."],
        WARM_TASTE,
    )
    assert utility(["q"], ["Rome"], [""], WARM_TASTE) < worst


def test_an_unknown_quality_is_refused():
    with pytest.raises(ValueError, match="no qualities"):
        utility(["q"], [None], ["x"], Taste(name="t", weights={"beauty": 1.0}))


def test_taste_changes_on_its_day_and_only_in_style():
    scenario = DEMO_SCENARIO
    assert scenario.change_day_index == 4
    assert (scenario.taste_on(3), scenario.taste_on(4), scenario.taste_on(50)) == (
        WARM_TASTE,
        SOURCED_TASTE,
        SOURCED_TASTE,
    )
    constant = set(QUALITIES) - {"warmth", "sourcing"}
    assert all(WARM_TASTE.weights[q] == SOURCED_TASTE.weights[q] for q in constant)
    assert taste_change(3).taste_on(3) is SOURCED_TASTE


def test_days_before_the_first_are_refused():
    with pytest.raises(ConfigurationError, match="no day -1"):
        DEMO_SCENARIO.taste_on(-1)
