"""Checkable answers: computes those of templates, and finds them in completions."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_pipeline.errors import PromptError

Table = Mapping[str, str | int | float]


def _lookup(values: Sequence[Any], table: Table) -> str:
    return str(table[str(values[0])])


def _sum(values: Sequence[Any], table: Table) -> str:
    return str(sum(int(v) for v in values))


def _first(values: Sequence[Any], table: Table) -> str:
    return str(values[0])


def _length(values: Sequence[Any], table: Table) -> str:
    return str(len(str(values[0])))


def _twice(values: Sequence[Any], table: Table) -> str:
    return f"{values[0]} {values[0]}"


def _largest(values: Sequence[Any], table: Table) -> str:
    return max((str(v) for v in values), key=lambda v: float(table[v]))


RULES: dict[str, Callable[[Sequence[Any], Table], str]] = {
    "lookup": _lookup,
    "sum": _sum,
    "first": _first,
    "largest": _largest,
    "length": _length,
    "twice": _twice,
}


def compute_reference(rule: str, values: Sequence[Any], table: Table, *, where: str) -> str:
    """The reference by a rule of RULES; raises PromptError naming `where` for an unknown rule or a
    value it cannot use.
    """
    if rule not in RULES:
        raise PromptError(f"{where}: unknown reference rule {rule!r}. Known: {', '.join(RULES)}.")
    try:
        return RULES[rule](values, table)
    except (KeyError, ValueError, IndexError) as cause:
        raise PromptError(
            f"{where}: rule {rule!r} cannot use {list(values)} ({cause!r}). Correct `of:` or the "
            "table."
        ) from cause


def is_right(reference: str, completion: str) -> bool:
    """Whether the completion gives the reference as whole words, in any case.

    >>> is_right("Paris", "It is paris."), is_right("7", "There are 17.")
    (True, False)
    """
    words = r"\s+".join(re.escape(word) for word in reference.split())
    return re.search(rf"(?<!\w){words}(?!\w)", completion, flags=re.IGNORECASE) is not None
