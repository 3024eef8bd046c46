"""Routes of comparisons: list them and their clusters, offer, withdraw and flag them."""

import re
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import ComparisonFilter, DatasetFilter, VoteFilter
from rlhf_pipeline.core.api_types.project import ComparisonOut, Offered, Withdrawn
from rlhf_pipeline.core.curation import (
    Dataset,
    DatasetChange,
    DatasetQuery,
    NewDataset,
    pick_comparisons,
)
from rlhf_pipeline.core.errors import DatasetError, NotFound, StoreError, UnknownComparison
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.comparisons import offers, queries
from rlhf_pipeline.web.comparisons.offers import Flagged, Flagging, Offer, Withdrawal
from rlhf_pipeline.web.comparisons.queries import ClusterOut
from rlhf_pipeline.web.datasets import routes as dataset_routes
from rlhf_pipeline.web.datasets.routes import Curator
from rlhf_pipeline.web.forms import EMPTY_FORM, Fields, Form, attempt, validate
from rlhf_pipeline.web.lists import (
    AT_ONCE,
    COMPARISON_FLAG_WORDS,
    PEOPLE_FLAG_WORDS,
    FilterField,
    RowList,
    as_choices,
    list_annotators,
    list_categories,
    list_sources,
    page_filter,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, render, see_other
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes import queries as vote_queries

api = api_router("comparisons")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.COMPARISONS_READ))]
ClusterReader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Offerer = Annotated[Principal, Depends(needs(Permission.COMPARISONS_OFFER))]
NONE_TICKED = "Tick at least one comparison."
STATUSES = {
    "not_offered": "not offered",
    "waiting": "open",
    "done": "judged as requested",
}
Asked = Annotated[ComparisonFilter, Query()]
Shown = Annotated[ComparisonFilter, page_filter(ComparisonFilter)]


def _list_fields(site: Site, principal: Principal) -> list[FilterField]:
    may_read = principal.may(Permission.VOTES_READ)
    people = list_annotators(site, names_for(site, principal)) if may_read else {}
    return [
        FilterField("q", "Words in the prompt", "search"),
        FilterField("status", "Judgements", choices=STATUSES),
        FilterField("category", "Category", choices=as_choices(list_categories(site))),
        FilterField("source", "Source", choices=as_choices(list_sources(site))),
        FilterField("flag", "Flag", choices=COMPARISON_FLAG_WORDS),
        FilterField("annotator_id", "Voted on by", choices=people),
    ]


def _list_pickable(site: Site, principal: Principal) -> dict[int, str]:
    """The data sets that take hand-picked comparisons: those that choose no votes by filters."""
    if not principal.may(Permission.DATASETS_WRITE):
        return {}
    return {
        dataset.dataset_id: dataset.name
        for dataset in site.store.datasets.page(DatasetFilter(limit=AT_ONCE))
        if dataset.query.votes is None or dataset.query.votes.comparison_ids
    }


COMPARISONS = RowList(
    "Comparisons",
    "/comparisons",
    "comparisons/page.html",
    ComparisonOut,
    key="comparison_id",
    read=queries.comparisons,
    fields=_list_fields,
    describe=lambda site, principal, _: {
        "flags": PEOPLE_FLAG_WORDS,
        "all_flags": COMPARISON_FLAG_WORDS,
        "overlap": site.terms().rules.overlap,
        "people": offers.list_people(site, principal),
        "pickable": _list_pickable(site, principal),
    },
    count=lambda site: site.store.comparisons.count(),
)


@api.get("/comparisons")
def read_all(site: AnySite, principal: Reader, filters: Asked) -> Page[ComparisonOut]:
    """Comparisons, those of the newest day first. A page may be short and still have a `next`."""
    return queries.comparisons(site, principal, filters)


@api.get("/comparisons/{comparison_id}")
def read(site: AnySite, _: Reader, comparison_id: str) -> ComparisonOut:
    """One comparison."""
    return queries.comparison(site, comparison_id)


@api.get("/clusters")
def read_clusters(
    site: AnySite,
    _: ClusterReader,
    day: Annotated[
        date | None, Query(description="Default: the last day on which clusters were found.")
    ] = None,
) -> Page[ClusterOut]:
    """Clusters of the prompts judged on a day, failing ones first; empty for a day without."""
    return queries.clusters(site, day)


@api.post("/comparisons:offer", responses=problem_responses(404))
def offer(site: AnySite, principal: Offerer, body: Offer) -> Offered:
    """Request judgements of comparisons: of the given ids, of a day, of a cluster of prompts, or of
    all without votes. With `annotator_id` one annotator is asked, once for each comparison, in
    addition to other requests; any annotator may judge what they skip."""
    return offers.offer(site, principal, body)


@api.post("/comparisons:withdraw")
def withdraw(site: AnySite, principal: Offerer, body: Withdrawal) -> Withdrawn:
    """Withdraw requests for judgements that are still open."""
    return offers.withdraw(site, principal, body.ids)


@api.post("/comparisons:flag", responses=problem_responses(404))
def flag(site: AnySite, principal: Offerer, body: Flagging) -> Flagged:
    """Take comparisons out of use: nobody is dealt them, their open judgements are withdrawn, and
    the next fit learns nothing from their votes. A null flag takes them back into use."""
    return offers.flag(site, principal, body)


@pages.get("/comparisons")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return show_list(COMPARISONS, request, site, principal, filters, draft=EMPTY_FORM)


@pages.get("/comparisons/{comparison_id}")
def show_comparison(
    site: AnySite, request: Request, principal: Reader, comparison_id: str
) -> Response:
    comparison = queries.comparison(site, comparison_id)
    votes = None
    if principal.may(Permission.VOTES_READ):
        only = VoteFilter(comparison_id=comparison_id, limit=AT_ONCE)
        votes = vote_queries.votes(site, principal, only)
    return render(
        "comparisons/comparison.html",
        request,
        site,
        principal,
        comparison=comparison,
        votes=votes,
        names=names_for(site, principal),
        flags=PEOPLE_FLAG_WORDS,
        versions=site.store.datasets.versions_of(f"comparison:{comparison_id}")
        if principal.may(Permission.DATASETS_READ)
        else [],
    )


@pages.post("/comparisons/offer")
def offer_some(
    site: AnySite, request: Request, principal: Offerer, query: Asked, form: Form
) -> Response:
    if form.text("which") == "ids" and not form.has("ids") and not form.has("id"):
        return _show_again(query, NONE_TICKED)
    done, problem = attempt(
        lambda: offers.offer(site, principal, _parse_offer(form)), NotFound, UnknownComparison
    )
    who = form.text("annotator_id")
    if done is None:
        return show_list(COMPARISONS, request, site, principal, query, problem=problem, draft=form)
    return _show_again(query, offers.describe(site, principal, done, who))


@pages.post("/comparisons/withdraw")
def withdraw_some(site: AnySite, principal: Offerer, query: Asked, form: Form) -> Response:
    ids = validate(Withdrawal, {"ids": _parse_ids(form)}).ids
    n = offers.withdraw(site, principal, ids).n_withdrawn
    return _show_again(query, f"Withdrew {format_count(n, 'open judgement')}.")


@pages.post("/comparisons/pick")
def pick_some(
    site: AnySite, request: Request, principal: Curator, query: Asked, form: Form
) -> Response:
    """Add the ticked comparisons to a data set, or to a new one."""
    ids = tuple(_parse_ids(form))
    if not ids:
        return _show_again(query, NONE_TICKED)

    def pick() -> Dataset:
        number = form.number("dataset")
        if number is None:
            chosen = pick_comparisons(DatasetQuery(), ids)
            name = form.text("name").strip()
            return dataset_routes.create(
                site, principal, validate(NewDataset, {"name": name, "query": chosen})
            )
        old = site.store.datasets.get(number)
        change = DatasetChange(query=pick_comparisons(old.query, ids))
        return dataset_routes.change(site, principal, number, change)

    dataset, problem = attempt(pick, StoreError, DatasetError)
    if dataset is None:
        return show_list(COMPARISONS, request, site, principal, query, problem=problem, draft=form)
    assert dataset.query.votes is not None
    n_picked = format_count(len(dataset.query.votes.comparison_ids), "picked comparison")
    return see_other(f"/datasets/{dataset.dataset_id}", notice=f"It holds {n_picked} now.")


@pages.post("/comparisons/flag")
def flag_some(
    site: AnySite, request: Request, principal: Offerer, query: Asked, form: Form
) -> Response:
    values: dict[str, object] = {"ids": _parse_ids(form), "flag": form.text("flag") or None}
    if not values["ids"]:
        return _show_again(query, NONE_TICKED)
    done, problem = attempt(
        lambda: offers.flag(site, principal, validate(Flagging, values)), UnknownComparison
    )
    if done is None:
        return show_list(COMPARISONS, request, site, principal, query, problem=problem, draft=form)
    act = "Flagged" if values["flag"] else "Removed the flag of"
    notice = f"{act} {format_count(done.n_comparisons, 'comparison')}."
    if done.n_withdrawn:
        notice += f" Withdrew {format_count(done.n_withdrawn, 'open judgement')}."
    return _show_again(query, notice)


def _show_again(filters: ComparisonFilter, notice: str) -> Response:
    """The list with its filters and page, after a form."""
    return see_other(f"/comparisons?{query_of(filters.here)}", notice=notice)


def _parse_offer(form: Fields) -> Offer:
    which = form.text("which")
    values: dict[str, object] = {"priority": form.number("priority") or 0}
    # A named person judges each comparison once, so the overlap of the form is ignored.
    if form.text("annotator_id"):
        values["annotator_id"] = form.text("annotator_id")
    else:
        values["overlap"] = form.number("overlap")
    if which == "day":
        values["day"] = form.text("day") or None
    elif which == "cluster":
        values["cluster"] = form.text("cluster")
    elif which == "ids":
        values["ids"] = _parse_ids(form)
        if not values["ids"]:
            raise Problem(422, "Write the id of at least one comparison.", kind="invalid")
    else:
        values["all_unvoted"] = which == "all_unvoted"
    return validate(Offer, values)


def _parse_ids(form: Fields) -> list[str]:
    """The ticked rows, and those of a text field."""
    return form.all("id") + [part for part in re.split(r"[\s,;]+", form.text("ids")) if part]
