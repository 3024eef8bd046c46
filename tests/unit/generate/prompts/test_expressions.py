import pytest

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.generate.prompts.expressions import compute, names_in


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + 2 * b", 11),
        ("(a - b) ** 2", 4),
        ("a / b * b", 3),
        ("a / b", None),
        ("a * (1 / 49) * 49", 3),
        ("100 * 0.07", 7),
        ("0.1 + 0.2 - 0.3", 0),
        ("(1 / a) ** -2", 9),
        ("word * 2", "teatea"),
        ("(a < b) * 2", 2),
        ("-a // b", -1),
        ("b % a", 1),
        ("upper(word) ", "TEA"),
        ("join(initial(word), len(word))", "t3"),
        ("in_order(word, 'apple')", "apple, tea"),
        ("max(a, b) - min(a, b)", 1),
    ],
)
def test_integers_and_texts_are_computed_exactly(expression, value):
    assert (
        compute(
            expression,
            {"a": 3, "b": 4, "word": "tea"} | ({"b": 5} if "**" in expression else {}),
            where="here",
        )
        == value
    )


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "[a]",
        "lambda: a",
        "open('x')",
        "f'{a}'",
        "missing",
        "a / 0",
        "9 ** 999 ** 9",
        "a ** 99999999",
        "a ** (1 / 2)",
    ],
)
def test_other_expressions_are_refused(expression):
    with pytest.raises(PromptError, match=r"^template x: "):
        compute(expression, {"a": 3, "b": 4}, where="template x")


def test_variables_are_listed_before_evaluation():
    assert names_in("len(word) + a * a", where="here") == {"word", "a"}
    with pytest.raises(PromptError, match=r"here: 'a \+' is not an expression"):
        names_in("a +", where="here")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("price['tea']", "2.5"),
        ("price['tea'] * 3", "7.5"),
        ("price['nut'] * 2", "-0.1"),
        ("price['tea'] * 2", 5),
        ("price['tea'] / 3", None),
    ],
)
def test_fractional_reference_is_an_exact_decimal(expression, value):
    prices = {"price": {"tea": 2.5, "nut": -0.05}}
    assert compute(expression, prices, where="here", decimals=True) == value
