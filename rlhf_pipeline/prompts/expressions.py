"""Evaluates the expressions of a template's `derived:` variables without running code.

Python's operators and a few text functions are parsed with `ast` and computed exactly; anything
else is refused by name.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from rlhf_pipeline.errors import PromptError

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a) / Fraction(b),
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
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
MAX_POWER = 64


def compute(expression: str, variables: Mapping[str, Any], *, where: str) -> Any:
    """The value of `expression` over `variables`: a whole number or a text; None if a number is
    not whole.

    Raises PromptError naming `where` for anything but an expression of OPERATORS and
    FUNCTIONS, and for values it cannot use.

    >>> compute("(a + b) * len(word)", {"a": 2, "b": 3, "word": "tea"}, where="here")
    15
    >>> print(compute("a / 2", {"a": 3}, where="here"))
    None
    """
    try:
        value = _evaluate(_parse(expression), variables)
    except PromptError as cause:
        raise PromptError(f"{where}: {cause}") from cause
    except (
        SyntaxError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        IndexError,
        OverflowError,
    ) as cause:
        raise PromptError(
            f"{where}: {expression!r} cannot be computed from {dict(variables)} ({cause}). Correct "
            "`derived:`."
        ) from cause
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else None
    return value


def names_in(expression: str, *, where: str) -> set[str]:
    """The variables an expression reads. Raises PromptError for an invalid expression."""
    try:
        tree = _parse(expression)
    except SyntaxError as cause:
        raise PromptError(
            f"{where}: {expression!r} is not an expression ({cause.msg}). Correct `derived:`."
        ) from cause
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - called


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, str))
        and not isinstance(node.value, bool)
    ):
        return node.value
    if isinstance(node, ast.Name) and node.id in variables:
        return variables[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate(node.operand, variables))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _evaluate(node.left, variables), _evaluate(node.right, variables)
        if isinstance(node.op, ast.Pow) and not abs(right) <= MAX_POWER:
            raise ValueError(f"a power above {MAX_POWER}")
        return OPERATORS[type(node.op)](left, right)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        return FUNCTIONS[node.func.id](*(_evaluate(argument, variables) for argument in node.args))
    raise PromptError(
        f"{ast.unparse(node)!r} is not allowed in an expression. Use variables, whole numbers, + "
        f"- * / // % **, and {', '.join(FUNCTIONS)}."
    )
