"""Options that several commands share: `--set NAME=VALUE`, changes of taste, days."""

from datetime import datetime
from typing import Annotated

import typer
from pydantic import ValidationError

from rlhf_pipeline.core.records import LARGEST

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter; an unknown name lists the known ones. Repeatable.",
    ),
]
ChangeSeq = Annotated[
    int | None,
    typer.Option(
        "--change-seq",
        min=1,
        max=LARGEST,
        help="First vote of one more change of taste, beside those that `rlhf changes list` shows.",
    ),
]
FirstDay = Annotated[
    datetime | None,
    typer.Option(
        "--from",
        formats=["%Y-%m-%d"],
        metavar="YYYY-MM-DD",
        help="First UTC day; default: the first there is.",
    ),
]
LastDay = Annotated[
    datetime | None,
    typer.Option(
        "--to",
        formats=["%Y-%m-%d"],
        metavar="YYYY-MM-DD",
        help="Last UTC day; default: the last there is.",
    ),
]


def require_text(value: str) -> str:
    """Checks an option that may not be blank, such as a reason."""
    if not value.strip():
        raise typer.BadParameter("write a few words")
    return value


def list_faults(cause: ValidationError) -> str:
    """What is wrong with the values of a record, in one line."""
    faults = [
        (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))
        for fault in cause.errors()
    ]
    return "; ".join(f"{name}: {message}" if name else message for name, message in faults)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LATEST_DAY = "9999-12-31"


class DayRange:
    """UTC days from `--from` to `--to`, both included."""

    def __init__(self, first: datetime | None, last: datetime | None) -> None:
        """Raises typer.BadParameter for a last day before the first."""
        self.first = "" if first is None else first.date().isoformat()
        self.last = LATEST_DAY if last is None else last.date().isoformat()
        if self.last < self.first:
            raise typer.BadParameter(f"{self.last} is before {self.first}", param_hint="--to")

    @classmethod
    def from_options(
        cls, day: datetime | None, first: datetime | None, last: datetime | None
    ) -> "DayRange":
        """The range of `--day`, or of `--from` and `--to`. Raises typer.BadParameter for both."""
        if day and (first or last):
            raise typer.BadParameter("give --day, or --from and --to", param_hint="--day")
        return cls(day or first, day or last)

    @property
    def is_open(self) -> bool:
        """Whether it contains every day."""
        return self.first == "" and self.last == LATEST_DAY

    def __contains__(self, day: str) -> bool:
        return self.first <= day <= self.last
