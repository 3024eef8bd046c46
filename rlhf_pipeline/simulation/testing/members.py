"""Checks the name of a mapping's member, and whether a launchpad can show its parameters."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError


def check_member(kind: Any) -> None:
    """Raise AssertionError if a class lacks a `name`, or `Params` that a launchpad can show and
    set.
    """
    who = kind.__name__
    name, params = getattr(kind, "name", None), getattr(kind, "Params", None)
    if not isinstance(name, str) or not name:
        raise AssertionError(
            f"{who}.name is {name!r}; it must be the name under which the class is registered."
        )
    if not isinstance(params, type) or not issubclass(params, BaseModel):
        raise AssertionError(
            f"{who}.Params is {params!r}; it must be a pydantic model class. Without parameters, "
            "set `Params = rlhf_pipeline.core.plugins.NoParams`."
        )
    _check_params(who, params)


def expect_error(error: type[Exception], call: Callable[[], object], promise: str) -> str:
    """Return the message of the `error` that `call` raises. Raises AssertionError with `promise` if
    `call` returns.
    """
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(promise)


def _check_params(who: str, params: type[BaseModel]) -> None:
    try:
        params()
    except ValidationError as cause:
        raise AssertionError(
            f"{who}.Params() fails: every parameter needs a valid default. {cause}"
        ) from cause
    expect_error(
        ValidationError,
        lambda: params.model_validate({"no_such_parameter": 1}),
        f"{who}.Params accepts unknown names, so a misspelt one would pass unnoticed. "
        "Derive it from rlhf_pipeline.core.parameters.Parameters.",
    )
    for field_name, field in params.model_fields.items():
        assert field.description, (
            f"{who}.Params.{field_name} has no description; the launchpad shows nothing else."
        )
        for value in (math.nan, math.inf) if field.annotation is float else ():
            expect_error(
                ValidationError,
                partial(params.model_validate, {field_name: value}),
                f"{who}.Params.{field_name} accepts {value}. "
                "Derive it from rlhf_pipeline.core.parameters.Parameters.",
            )
