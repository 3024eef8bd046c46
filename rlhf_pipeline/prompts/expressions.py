"""Evaluates the expressions of a template's `derived:` variables in Jinja's sandbox."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from rlhf_pipeline.errors import PromptError

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
SANDBOX = SandboxedEnvironment(undefined=StrictUndefined)
SANDBOX.globals = dict(FUNCTIONS)


def compute(expression: str, variables: Mapping[str, Any], *, where: str) -> Any:
    """The value of `expression` over `variables`: a whole number or a text; None if a number is
    not whole. Fractions are exact.

    Raises PromptError naming `where` for an expression that cannot be computed.

    >>> compute("(a + b) * len(word)", {"a": 2, "b": 3, "word": "tea"}, where="here")
    15
    >>> print(compute("a / 2", {"a": 3}, where="here"))
    None
    """
    exact = {
        name: Fraction(value) if isinstance(value, int) else value
        for name, value in variables.items()
    }
    try:
        value = _compile(expression)(**exact)
        if isinstance(value, str):
            return value
        return int(value) if value == int(value) else None
    except FAULTS as cause:
        raise PromptError(
            f"{where}: {expression!r} cannot be computed from {dict(variables)} ({cause}). Correct "
            f"`derived:`; it has variables, numbers, + - * / // % ** and {', '.join(FUNCTIONS)}."
        ) from cause


def names_in(expression: str, *, where: str) -> set[str]:
    """The variables an expression reads. Raises PromptError for an invalid expression."""
    try:
        tree = SANDBOX.parse(f"{{{{ {expression} }}}}")
    except TemplateError as cause:
        raise PromptError(
            f"{where}: {expression!r} is not an expression ({cause}). Correct `derived:`."
        ) from cause
    return meta.find_undeclared_variables(tree) - FUNCTIONS.keys()


@cache
def _compile(expression: str) -> Callable[..., Any]:
    return SANDBOX.compile_expression(expression, undefined_to_none=False)
