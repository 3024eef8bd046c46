"""`--set NAME=VALUE`: sets any field of a parameter class from the command line."""

from typing import Annotated

import typer

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter; an unknown name lists the known ones. Repeatable.",
    ),
]
