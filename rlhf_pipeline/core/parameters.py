"""The base of all parameter classes; builds them from `NAME=VALUE` texts, as `--set` gives them."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.core.errors import ConfigurationError

P = TypeVar("P", bound=BaseModel)
# Where and in which number format a policy computes; policy/devices.py resolves `auto`.
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")]
Dtype = Literal["auto", "float32", "bfloat16"]


class Parameters(BaseModel):
    """How something is computed. Unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def section_class(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The parameter class of a field that is a section of its own; None for any other field."""
    field = kind.model_fields.get(name)
    annotation = None if field is None else field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def find_switches_as_numbers(kind: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    """Names of numbers that are set to true or false, which pydantic reads as 1 or 0."""
    return [
        name
        for name, value in values.items()
        if isinstance(value, bool)
        and name in kind.model_fields
        and kind.model_fields[name].annotation in (int, float, int | None, float | None)
    ]


def suggest(name: str, candidates: Iterable[str]) -> str:
    """A sentence with the nearest known name, else with all of them."""
    names = list(candidates)
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."


def parse_parameters(kind: type[P], changes: Sequence[str] | None, /, **arguments: Any) -> P:
    """`kind` with `arguments` that are not None and what `--set` changes. Raises
    ConfigurationError naming field and cure.
    """
    given_values = {name: value for name, value in arguments.items() if value is not None}
    for text in changes or ():
        path, equals, value = text.partition("=")
        *sections, name = path.split(".")
        of: type[BaseModel] | None = kind
        values: dict[str, Any] = given_values
        for section in sections:
            of = None if of is None else section_class(of, section)
            values = values.setdefault(section, {}) if of is not None else {}
        if not equals or of is None or name not in of.model_fields:
            raise ConfigurationError(
                f"--set {text!r} changes no parameter. Write NAME=VALUE. "
                f"{suggest(name, (of or kind).model_fields)}"
            )
        try:
            wanted_value = yaml.safe_load(value)
        except yaml.YAMLError as cause:
            raise ConfigurationError(
                f"--set {text!r}: the value cannot be read. Write a number, true, false, a [list] "
                "or null."
            ) from cause
        for switch in find_switches_as_numbers(of, {name: wanted_value}):
            raise ConfigurationError(
                f"--set {text!r}: {switch} must be a number, not {wanted_value}."
            )
        values[name] = wanted_value
    try:
        return kind.model_validate(given_values)
    except ValidationError as cause:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or kind.__name__}: {e['msg']}" for e in cause.errors()
        )
        raise ConfigurationError(f"These parameters cannot be used: {problems}.") from cause
