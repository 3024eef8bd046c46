"""Shows lists as pages: filters, number of rows, opened row and CSV file are the same for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, create_model
from starlette.responses import Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import OTHER_PLACE, Filter
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.site import Site

F = TypeVar("F", bound=Filter)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class RowList(Generic[M]):
    """A list with a page: its title, its address, its template, its rows and the field that names
    a row.

    Templates extend `list.html` and fill the blocks `columns`, `name`, `cells`, `panel` and
    `nothing`.
    """

    title: str
    path: str
    template: str
    row: type[M]
    key: str


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


def page_filter(model: type[F]) -> Any:
    """The filter of the API for a page, which takes `format=csv` too.

    >>> from rlhf_pipeline.api_types.filters import VoteFilter
    >>> Shown = Annotated[VoteFilter, page_filter(VoteFilter)]
    """
    fields: dict[str, Any] = {"format": (Literal["html", "csv"], "html")}
    with_format = create_model(f"{model.__name__}Page", __base__=model, **fields)

    def read(asked: Annotated[with_format, Query()]) -> F:  # type: ignore[valid-type]
        return asked

    return Depends(read)


@dataclass(frozen=True)
class ListPage(Generic[M]):
    """What a list shows. `n_rows`: of all, where that is known and no filter is set; `opened`: the
    key of the row whose details are shown, with the problem in them.
    """

    asked: Filter
    page: Page[M]
    fields: Sequence[FilterField] = ()
    n_rows: int | None = None
    problem: Problem | None = None
    opened: str = ""


def wants_csv(request: Request) -> bool:
    return request.query_params.get("format") == "csv"


def send_csv(rows: RowList[M], asked: F, read: Callable[[F], Page[M]]) -> Response:
    """All rows that match, as a file."""
    read(asked.at(None, 1))  # raises a problem before the file begins
    items = read_all_pages(lambda cursor: read(asked.at(cursor, AT_ONCE)))
    return csv_of(rows.path.strip("/").replace("/", "_"), list(rows.row.model_fields), items)


def render_list(
    rows: RowList[M],
    request: Request,
    site: Site,
    principal: Principal,
    shown: ListPage[M],
    **values: Any,
) -> Response:
    asked, page, problem = shown.asked, shown.page, shown.problem
    query, given = query_of(asked.chosen), set(request.query_params)
    is_whole = page.next is None and asked.cursor is None
    return render(
        rows.template,
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        list=rows,
        fields=shown.fields,
        page=page,
        chosen=asked.chosen,
        query=query,
        query_here=query_of(asked.here),
        is_filtered=any(request.query_params[name] for name in given - OTHER_PLACE),
        is_later=asked.cursor is not None,
        n_rows=len(page.items) if is_whole else None if query else shown.n_rows,
        opened=shown.opened,
        problem=problem.detail if problem else None,
        **values,
    )
