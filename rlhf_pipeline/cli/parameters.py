"""`--set NAME=VALUE`: sets any field of a parameter class from the command line."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import typer
import yaml
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.errors import ConfigurationError

P = TypeVar("P", bound=BaseModel)

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter; an unknown name lists the known ones. Repeatable.",
    ),
]


def parse_parameters(kind: type[P], changes: Sequence[str] | None, **given: Any) -> P:
    """`kind` with what was `given` (None is not) and what `--set` changes. Raises
    ConfigurationError naming field and cure.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    for text in changes or ():
        name, equals, value = text.partition("=")
        if not equals or name not in kind.model_fields:
            raise ConfigurationError(
                f"--set {text!r} changes no parameter. Write NAME=VALUE; there are "
                f"{', '.join(kind.model_fields)}."
            )
        try:
            wanted[name] = yaml.safe_load(value)
        except yaml.YAMLError as cause:
            raise ConfigurationError(
                f"--set {text!r}: the value cannot be read. Write a number, true, false, a [list] "
                "or null."
            ) from cause
    try:
        return kind.model_validate(wanted)
    except ValidationError as cause:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or kind.__name__}: {e['msg']}" for e in cause.errors()
        )
        raise ConfigurationError(f"These parameters cannot be used: {problems}.") from cause
