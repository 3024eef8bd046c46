"""Evaluates the expressions of a template, `derived:` and `reference:`, in Jinja's sandbox."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from numbers import Real
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from rlhf_pipeline.core.errors import PromptError

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "abs": abs,
    "upper": lambda word: str(word).upper(),
    "reverse": lambda word: str(word)[::-1],
    "initial": lambda word: str(word)[0],
    "count": lambda word, part: str(word).count(str(part)),
    "words": lambda *words: " ".join(map(str, words)),
    "join": lambda *parts: "".join(map(str, parts)),
    "in_order": lambda *words: ", ".join(sorted(map(str, words))),
}
FAULTS = (TemplateError, TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError)
MAX_PLACES = 20  # of a decimal
MAX_POWER_BITS = 10_000  # about 3,000 digits


class ExactSandbox(SandboxedEnvironment):
    """Computes with fractions, and limits powers."""

    intercepted_binops = frozenset(SandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, Real) and isinstance(right, Real):
            left, right = _make_exact(left), _make_exact(right)
            if operator == "**":
                _check_power(left, right)
        return super().call_binop(context, operator, left, right)


def _make_exact(number: Any) -> Fraction:
    """A number as a fraction: 0.1 as one tenth."""
    return Fraction(str(number) if isinstance(number, float) else number)


def _check_power(base: Fraction, exponent: Fraction) -> None:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * size > MAX_POWER_BITS:
        raise ValueError(
            f"a power needs a whole exponent and a result below 2 ** {MAX_POWER_BITS:,}"
        )


SANDBOX = ExactSandbox(undefined=StrictUndefined)
SANDBOX.globals = dict(FUNCTIONS)


def compute(
    expression: str, variables: Mapping[str, Any], *, where: str, decimals: bool = False
) -> Any:
    """The value of `expression` over `variables`: a whole number or a text; None if a number is
    not whole. Fractions are exact. With `decimals`, a number that is not whole is a text, such as
    2.5; None only if it has more than MAX_PLACES places, as a third has.

    Raises PromptError naming `where` for an expression that cannot be computed.

    >>> compute("(a + b) * len(word)", {"a": 2, "b": 3, "word": "tea"}, where="here")
    15
    >>> print(compute("a / 2", {"a": 3}, where="here"))
    None
    """
    try:
        value = _compile(expression)(**variables)
        if isinstance(value, str):
            return value
        if value == int(value):
            return int(value)
        return _write_decimal(_make_exact(value)) if decimals else None
    except FAULTS as cause:
        values = {name: v for name, v in variables.items() if not isinstance(v, Mapping)}
        raise PromptError(
            f"{where}: {expression!r} cannot be computed from {values} ({cause}). Correct "
            "`derived:` or `reference:`; they have variables, numbers, + - * / // % ** and "
            f"{', '.join(FUNCTIONS)}."
        ) from cause


def _write_decimal(number: Fraction) -> str | None:
    places = range(1, MAX_PLACES + 1)
    n = next((n for n in places if 10**n % number.denominator == 0), None)
    if n is None:
        return None
    digits = str(int(abs(number) * 10**n)).zfill(n + 1)
    return f"{'-' if number < 0 else ''}{digits[:-n]}.{digits[-n:]}"


def names_in(expression: str, *, where: str) -> set[str]:
    """The variables an expression reads. Raises PromptError for an invalid expression."""
    try:
        tree = SANDBOX.parse(f"{{{{ {expression} }}}}")
    except TemplateError as cause:
        raise PromptError(
            f"{where}: {expression!r} is not an expression ({cause}). Correct `derived:` or "
            "`reference:`."
        ) from cause
    return meta.find_undeclared_variables(tree) - FUNCTIONS.keys()


@cache
def _compile(expression: str) -> Callable[..., Any]:
    return SANDBOX.compile_expression(expression, undefined_to_none=False)
