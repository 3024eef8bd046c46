"""Lists: cursors, filters, pages of rows, and CSV files that are safe in a spreadsheet."""

import base64
import binascii
import csv
import heapq
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

import pandas as pd
from fastapi import Depends, Query, Request
from pydantic import BaseModel, create_model
from starlette.responses import Response, StreamingResponse

from rlhf_pipeline.core.api_types.base import MOST_LISTED, Page
from rlhf_pipeline.core.api_types.filters import OTHER_PLACE, Filter, QueryFilter
from rlhf_pipeline.core.records import (
    LARGEST,
    OWN_SOURCE,
    Category,
)
from rlhf_pipeline.feedback.datasets.formats.csv import protect_cell
from rlhf_pipeline.web.forms import attempt
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.site import Site

Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
Paged = Annotated[Filter, Query()]  # of a list without filters
F = TypeVar("F", bound=Filter)
Q = TypeVar("Q", bound=QueryFilter)
M = TypeVar("M", bound=BaseModel)
AT_ONCE = 200
MAX_ANNOTATORS = 500
PEOPLE_FLAG_WORDS = {
    "pii": "personal data",
    "identity": "mentions its model",
    "broken": "unreadable",
}
VOTE_FLAG_WORDS = PEOPLE_FLAG_WORDS | {"undone": "undone"}
COMPARISON_FLAG_WORDS = PEOPLE_FLAG_WORDS | {
    "identical": "identical completions",
    "repeated": "repeated pair",
    "rejected": "rejected correction",
}


def make_cursor(*place: str | int) -> str:
    """
    >>> parse_cursor(make_cursor("2026-01-01", 7), str, int)
    ('2026-01-01', 7)
    """
    return (
        base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode())
        .decode()
        .rstrip("=")
    )


def parse_cursor(cursor: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Raises Problem 422 for an invalid cursor."""
    if cursor is None:
        return None
    try:
        place = json.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
        if (
            isinstance(place, list)
            and [type(part) for part in place] == list(kinds)
            and all(_is_sane(part) for part in place)
        ):
            return tuple(place)
    except (binascii.Error, ValueError, RecursionError):
        pass
    raise cursor_problem()


def cursor_problem() -> Problem:
    return Problem(
        422,
        "Invalid cursor. Send `next` of an earlier page of this list, or leave it out.",
        kind="invalid",
        errors=[("query.cursor", "is not a cursor of this list")],
    )


def _is_sane(part: Any) -> bool:
    return (
        "\x00" not in part and part.isprintable() if isinstance(part, str) else abs(part) <= LARGEST
    )


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries, with None for missing values."""
    columns = {name: _plain_values(frame[name]) for name in frame.columns}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _plain_values(column: "pd.Series[Any]") -> list[Any]:
    values: list[Any] = column.tolist()
    is_missing = column.isna()
    if not is_missing.any():
        return values
    return [None if is_null else value for value, is_null in zip(values, is_missing, strict=True)]


@dataclass(frozen=True)
class FilterField:
    """A filter above a list: words to search, one of `choices`, a day, first and last day (`since`
    and `until`), or a value that only links set and that a person removes. `default` is the first
    choice where a list is never of all.
    """

    name: str
    label: str
    kind: Literal["search", "pick", "day", "days", "given"] = "pick"
    choices: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


def _list_nothing(*_: Any) -> tuple[FilterField, ...]:
    return ()


@dataclass(frozen=True)
class RowList(Generic[M]):
    """A list with a page: its title, its address, its template, its rows and the field that names
    a row. `show_list` reads a page of rows with `read`, the filters with `fields`, what the
    template takes beside the rows with `describe`, and with `count` the number of all rows.

    Templates extend `list.html` and fill the blocks `columns`, `name`, `cells`, `panel` and
    `nothing`; `headline` replaces the title by a sentence.
    """

    title: str
    path: str
    template: str
    row: type[M]
    key: str
    read: Callable[[Site, Principal, Any], Page[M]] | None = None
    fields: Callable[[Site, Principal], Sequence[FilterField]] = _list_nothing
    describe: Callable[[Site, Principal, Page[M]], Mapping[str, Any]] = lambda *_: {}
    count: Callable[[Site], int | None] = lambda _: None


def page_filter(model: type[Q]) -> Any:
    """The filter of the API for a page, which takes `format=csv` too.

    >>> from rlhf_pipeline.core.api_types.filters import VoteFilter
    >>> Shown = Annotated[VoteFilter, page_filter(VoteFilter)]
    """
    fields: dict[str, Any] = {"format": (Literal["html", "csv"], "html")}
    with_format = create_model(f"{model.__name__}Page", __base__=model, **fields)

    def read(filters: Annotated[with_format, Query()]) -> Q:  # type: ignore[valid-type]
        return filters

    return Depends(read)


@dataclass(frozen=True)
class ListPage(Generic[M]):
    """What a list shows. `n_rows`: of all, where that is known and no filter is set; `opened`: the
    key of the row whose details are shown, with the problem in them.
    """

    filters: Filter
    page: Page[M]
    fields: Sequence[FilterField] = ()
    n_rows: int | None = None
    problem: Problem | None = None
    opened: str = ""


def wants_csv(request: Request) -> bool:
    return request.query_params.get("format") == "csv"


def send_csv(rows: RowList[M], filters: F, read: Callable[[F], Page[M]]) -> Response:
    """All rows that match, as a file."""
    read(filters.at(None, 1))  # raises a problem before the file begins
    items = read_all_pages(lambda cursor: read(filters.at(cursor, AT_ONCE)))
    return csv_of(rows.path.strip("/").replace("/", "_"), list(rows.row.model_fields), items)


def show_list(
    rows: RowList[M],
    request: Request,
    site: Site,
    principal: Principal,
    filters: F,
    *,
    problem: Problem | None = None,
    **more: Any,
) -> Response:
    """The page of a list, or with `format=csv` its file. `problem`: of a form that is shown again;
    `more`: what the template takes of it, and `opened`, the key of its row.
    """
    assert rows.read is not None
    read = partial(rows.read, site, principal)
    if wants_csv(request):
        return send_csv(rows, filters, read)
    page, refusal = attempt(lambda: read(filters))
    page = page or Page(items=(), next=None)
    opened = more.pop("opened", "")
    is_listed = any(str(getattr(row, rows.key)) == opened for row in page.items)
    list_page = ListPage(
        filters,
        page,
        rows.fields(site, principal),
        rows.count(site),
        problem or refusal,
        opened=opened if is_listed else "",
    )
    described = rows.describe(site, principal, page)
    return render_list(rows, request, site, principal, list_page, **described, **more)


def render_list(
    rows: RowList[M],
    request: Request,
    site: Site,
    principal: Principal,
    list_page: ListPage[M],
    **values: Any,
) -> Response:
    filters, page, problem = list_page.filters, list_page.page, list_page.problem
    query, parameters = query_of(filters.chosen), set(request.query_params)
    is_whole = page.next is None and filters.cursor is None
    return render(
        rows.template,
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        list=rows,
        fields=list_page.fields,
        page=page,
        chosen=filters.chosen,
        query=query,
        query_here=query_of(filters.here),
        is_filtered=any(request.query_params[name] for name in parameters - OTHER_PLACE),
        is_later=filters.cursor is not None,
        n_rows=len(page.items) if is_whole else None if query else list_page.n_rows,
        opened=list_page.opened,
        problem=problem.detail if problem else None,
        **values,
    )


def csv_of(name: str, columns: Sequence[str], rows: Iterable[BaseModel]) -> StreamingResponse:
    """A CSV file of that name, written as the rows are read."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(
        csv_lines(columns, rows), media_type="text/csv; charset=utf-8", headers=headers
    )


def read_all_pages(page: Callable[[str | None], Page[M]]) -> Iterator[M]:
    """The items of all pages of a list."""
    cursor = None
    while True:
        part = page(cursor)
        yield from part.items
        if part.next is None:
            return
        cursor = part.next


def csv_lines(columns: Sequence[str], rows: Iterable[BaseModel]) -> Iterator[str]:
    """The text of a CSV file in parts, with a header."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_format_cell(getattr(row, name)) for name in columns])
        if buffer.tell() > 65_536:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return protect_cell(str(value.value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return protect_cell(value)
    return protect_cell(_encode_json(value))


def _encode_json(value: Any) -> str:
    import json

    return json.dumps(
        value, default=lambda record: record.model_dump(mode="json"), ensure_ascii=False
    )


def list_categories(site: Site) -> list[str]:
    """The project's own, then those of generators."""
    own = site.store.comparisons.values_of("category")
    return list(dict.fromkeys([*own, *Category]))


def list_sources(site: Site) -> list[str]:
    """Data sets, and OWN_SOURCE where the project has comparisons of its own."""
    own = [OWN_SOURCE] if site.store.comparisons.has_own() else []
    return own + site.store.comparisons.values_of("source")


def list_annotators(site: Site, names: Mapping[str, str]) -> dict[str, str]:
    """Names by id of those with the most of the newest votes, by name, at most MAX_ANNOTATORS;
    people without a name have only an id.
    """
    quality = site.quality()
    most = heapq.nsmallest(MAX_ANNOTATORS, quality, key=lambda who: (-quality[who].n_votes, who))
    return dict(
        sorted(
            ((who, names.get(who, who)) for who in most), key=lambda person: person[1].casefold()
        )
    )


def as_choices(values: Iterable[str]) -> dict[str, str]:
    """Values that are their own words."""
    return {value: value for value in values}
