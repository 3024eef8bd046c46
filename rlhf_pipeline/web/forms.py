"""Reads and validates submitted forms.

web/middleware.py checks the origin of a form, and its route checks the permission.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.web.problems import Problem, describe_invalid, problem_of

MOST_FIELDS = 1_000
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Fields:
    """The texts of a form by name; a name may occur several times."""

    def __init__(self, pairs: list[tuple[str, str]]):
        self._pairs = pairs

    def text(self, name: str) -> str:
        """The first value of that name with normalised line breaks; empty if missing."""
        return next((value.replace("\r\n", "\n") for key, value in self._pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self._pairs)

    def number(self, name: str) -> int | None:
        """None for an empty field. Raises Problem 422 unless the value is a whole number."""
        text = self.text(name).strip()
        if not text:
            return None
        try:
            return int(text) if len(text) <= 15 else _refuse(name, "is too long for a number")
        except ValueError:
            return _refuse(name, f"is {text!r}; write a whole number")


EMPTY_FORM = Fields([])


async def _fields_of(request: Request) -> Fields:
    try:
        form = await request.form(max_files=0, max_fields=MOST_FIELDS)
    except UnicodeDecodeError as cause:
        raise Problem(
            422, "The form is not UTF-8. Send it from the page.", kind="invalid"
        ) from cause
    fields = Fields([(name, value) for name, value in form.multi_items() if isinstance(value, str)])
    if any("\x00" in value for _, value in form.multi_items() if isinstance(value, str)):
        raise Problem(
            422,
            "The form holds a NUL character. Remove it and send the form again.",
            kind="invalid",
        )
    return fields


Form = Annotated[Fields, Depends(_fields_of)]


def validate(model: type[M], values: dict[str, object]) -> M:
    """Build the API request of a form. Raises Problem 422 that names the labels of the fields."""
    try:
        return model.model_validate(values)
    except ValidationError as cause:
        wrong = [
            (".".join(str(part) for part in error["loc"]), describe_invalid(error))
            for error in cause.errors()[:20]
        ]
        raise Problem(
            422,
            "; ".join(f"{path}: {message}" if path else message for path, message in wrong),
            kind="invalid",
            errors=wrong,
        ) from cause


def attempt(act: Callable[[], T], *expected: type[Exception]) -> tuple[T | None, Problem | None]:
    """The result of an action, or the problem to show beside its form."""
    try:
        return act(), None
    except Exception as error:
        if isinstance(error, (Problem, *expected)):
            return None, problem_of(error)
        raise


def _refuse(name: str, what: str) -> int:
    raise Problem(422, f"{name} {what}.", kind="invalid", errors=[(name, what)])
