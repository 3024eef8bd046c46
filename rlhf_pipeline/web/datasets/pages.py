"""Pages of curated data sets: the list, a data set with its quality and pairs, and the editor."""

import json
from typing import Annotated, Any

import pandas as pd
from fastapi import APIRouter, Query, Request, Response

from rlhf_pipeline.core.api_types.filters import DatasetFilter, PairFilter, QueryFilter
from rlhf_pipeline.core.curation import (
    MOST_IDS,
    Dataset,
    DatasetChange,
    DatasetDetails,
    DatasetExport,
    DatasetQuery,
    DatasetStatus,
    ExportOrder,
    FeedbackQuery,
    NewDataset,
    NewPair,
    PairChange,
    QualityPart,
    VoteQuery,
    unpick_comparisons,
)
from rlhf_pipeline.core.errors import DatasetError, NotEnoughData, StoreError
from rlhf_pipeline.core.records import Number
from rlhf_pipeline.feedback.datasets.dataset_rows import compare_rows
from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS
from rlhf_pipeline.feedback.datasets.exporters.files import encode_export, name_export
from rlhf_pipeline.improve import curated_sets
from rlhf_pipeline.web.datasets import routes
from rlhf_pipeline.web.datasets.routes import Curator, Reader
from rlhf_pipeline.web.forms import EMPTY_FORM, Fields, Form, attempt, validate
from rlhf_pipeline.web.lists import (
    AT_ONCE,
    FilterField,
    RowList,
    as_choices,
    list_categories,
    page_filter,
    plain_rows,
    show_list,
)
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import AnySite
from rlhf_pipeline.web.site import Site

pages = APIRouter()
Shown = Annotated[DatasetFilter, page_filter(DatasetFilter)]
EXPECTED = (StoreError, NotEnoughData, DatasetError)
TYPES: dict[str, str] = {
    "preference": "preferences",
    "sft": "texts to imitate",
    "unpaired": "single judgements",
}
STATUSES: tuple[DatasetStatus, ...] = ("draft", "curating", "ready", "exported", "archived")
PARTS = {
    "sides": "Sides filled and unlike",
    "agreement": "Annotators agree",
    "duplicates": "No duplicates",
    "near_duplicates": "No near-duplicates",
    "leakage": "No evaluation prompts",
    "length_gap": "Length is balanced",
    "label_balance": "Labels are balanced",
}
ROWS_SHOWN = 50  # of a part of the quality
FIRST_ROWS = 10


class RowsShown(QueryFilter):
    """Which rows of a data set a page shows: those that lower a part of its quality, those in which
    the newest version differs from the one `against`, or the first.
    """

    part: str | None = None
    against: int | None = None


DATASETS = RowList(
    "Data sets",
    "/datasets",
    "datasets/page.html",
    Dataset,
    key="dataset_id",
    read=routes.list_datasets,
    fields=lambda *_: [
        FilterField("status", "Status", choices=as_choices(STATUSES)),
        FilterField("type", "Type", choices=TYPES),
    ],
    describe=lambda site, principal, _: {
        "types": TYPES,
        "names": names_for(site, principal),
        "categories": list_categories(site),
    },
)


@pages.get("/datasets")
def show_datasets(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return show_list(DATASETS, request, site, principal, filters, draft=EMPTY_FORM)


@pages.post("/datasets")
def create(site: AnySite, request: Request, principal: Curator, form: Form) -> Response:
    """Made and built at once, so that its first page has figures."""

    def make() -> Dataset:
        body = validate(
            NewDataset,
            {
                "name": form.text("name").strip(),
                "type": form.text("type"),
                "query": _parse_query(form),
            },
        )
        return routes.create(site, principal, body)

    dataset, problem = attempt(make, *EXPECTED)
    if dataset is None:
        only = DatasetFilter()
        return show_list(DATASETS, request, site, principal, only, problem=problem, draft=form)
    return _change(site, request, principal, dataset.dataset_id, DatasetChange(status="curating"))


@pages.get("/datasets/{dataset_id}")
def show_dataset(
    site: AnySite,
    request: Request,
    principal: Reader,
    dataset_id: Number,
    filters: Annotated[RowsShown, Query()],
) -> Response:
    return _show(site, request, principal, dataset_id, filters=filters)


@pages.post("/datasets/{dataset_id}")
def submit(
    site: AnySite, request: Request, principal: Curator, dataset_id: Number, form: Form
) -> Response:
    """Build, freeze, archive or change what it holds."""
    values: dict[str, object] = {"status": form.text("status") or None}
    if form.has("edit"):
        old = site.store.datasets.get(dataset_id)
        if form.text("read_at") not in ("", str(old.updated_at)):
            fault = "It was changed since this page was loaded. Look at it, then repeat yours."
            return _show(site, request, principal, dataset_id, problem=Problem(409, fault))
        values = {
            "name": form.text("name").strip(),
            "query": _parse_query(form, old.query),
            "status": "curating",
        }
    change, problem = attempt(lambda: validate(DatasetChange, values))
    if change is None:
        return _show(site, request, principal, dataset_id, problem=problem)
    return _change(site, request, principal, dataset_id, change)


@pages.post("/datasets/{dataset_id}/leave-out")
def leave_out(
    site: AnySite, request: Request, principal: Curator, dataset_id: Number, form: Form
) -> Response:
    """Take the ticked rows out of the next version, or into it again."""
    query = site.store.datasets.get(dataset_id).query
    ticked = form.all("row_id")
    ids = tuple(dict.fromkeys([*query.leave_out, *ticked]))
    if form.has("restore"):
        ids = tuple(row_id for row_id in query.leave_out if row_id not in ticked)
    if len(ids) > MOST_IDS:
        fault = f"At most {MOST_IDS:,} rows are left out by hand. Narrow the filters instead."
        return _show(site, request, principal, dataset_id, problem=Problem(422, fault))
    change = DatasetChange(query=query.model_copy(update={"leave_out": ids}), status="curating")
    return _change(site, request, principal, dataset_id, change)


@pages.post("/datasets/{dataset_id}/unpick")
def unpick(
    site: AnySite, request: Request, principal: Curator, dataset_id: Number, form: Form
) -> Response:
    """Take the ticked comparisons out of those that were picked by hand."""
    query = site.store.datasets.get(dataset_id).query
    change = DatasetChange(query=unpick_comparisons(query, form.all("id")))
    return _change(site, request, principal, dataset_id, change)


@pages.post("/datasets/{dataset_id}/export")
def export(
    site: AnySite, request: Request, principal: Curator, dataset_id: Number, form: Form
) -> Response:
    def write() -> DatasetExport:
        order = validate(ExportOrder, {"format": form.text("format")})
        return routes.export(site, principal, dataset_id, order)

    exported, problem = attempt(write, *EXPECTED)
    if exported is None:
        return _show(site, request, principal, dataset_id, problem=problem)
    return see_other(f"/datasets/{dataset_id}", notice=f"Exported to {exported.url}.")


@pages.get("/datasets/{dataset_id}/{version}/{format_name}")
def download(
    site: AnySite, _: Reader, dataset_id: Number, version: Number, format_name: str
) -> Response:
    """A frozen version as a file of the browser."""
    dataset, exporter = site.store.datasets.get(dataset_id), EXPORTERS[format_name]()
    chosen = site.store.datasets.version(dataset_id, version)
    rows = site.store.datasets.rows(chosen.content_hash)
    name = name_export(dataset.name, version, exporter).encode("ascii", "replace").decode()
    return Response(
        encode_export(exporter, rows, dataset.type),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name.replace("?", "_")}"'},
    )


@pages.post("/datasets/{dataset_id}/pairs")
def add_pair(
    site: AnySite, request: Request, principal: Curator, dataset_id: Number, form: Form
) -> Response:
    def make() -> None:
        body = validate(NewPair, _parse_pair(form) | {"dataset_id": dataset_id})
        routes.add_pair(site, principal, body)

    _, problem = attempt(make, *EXPECTED)
    if problem is not None:
        return _show(site, request, principal, dataset_id, problem=problem, draft=form)
    return see_other(f"/datasets/{dataset_id}", notice="Added the pair. Build to count it.")


@pages.get("/datasets/pairs/{pair_id}")
def show_pair(site: AnySite, request: Request, principal: Reader, pair_id: Number) -> Response:
    return _show_pair(site, request, principal, pair_id)


@pages.post("/datasets/pairs/{pair_id}")
def submit_pair(
    site: AnySite, request: Request, principal: Curator, pair_id: Number, form: Form
) -> Response:
    def revise() -> Any:
        if form.has("reject"):
            return routes.reject_pair(site, principal, pair_id)
        body = validate(PairChange, _parse_pair(form))
        return routes.revise_pair(site, principal, pair_id, body)

    pair, problem = attempt(revise, *EXPECTED)
    if pair is None:
        return _show_pair(site, request, principal, pair_id, problem=problem, draft=form)
    notice = f"Saved revision {pair.revision}: {pair.status}."
    return see_other(f"/datasets/{pair.dataset_id}", notice=notice)


def _change(
    site: Site, request: Request, principal: Principal, dataset_id: int, change: DatasetChange
) -> Response:
    dataset, problem = attempt(
        lambda: routes.change(site, principal, dataset_id, change), *EXPECTED
    )
    if dataset is None:
        return _show(site, request, principal, dataset_id, problem=problem)
    notices = {
        "curating": f"Counted {dataset.n_rows:,} rows.",
        "ready": f"Froze version {dataset.n_versions}.",
        "archived": "Archived.",
    }
    return see_other(f"/datasets/{dataset_id}", notice=notices.get(change.status or "", "Saved."))


def _show(
    site: Site,
    request: Request,
    principal: Principal,
    dataset_id: int,
    *,
    filters: RowsShown = RowsShown(),  # noqa: B008 (frozen)
    problem: Problem | None = None,
    draft: Fields = EMPTY_FORM,
) -> Response:
    dataset = routes.read(site, principal, dataset_id)
    parts = dataset.quality.parts if dataset.quality else ()
    chosen = next((part for part in parts if part.name == filters.part), None)
    difference, fault = attempt(lambda: _compare(site, dataset, filters.against), *EXPECTED)
    rows, refusal = attempt(lambda: _read_rows(site, dataset, chosen), *EXPECTED)
    refusal = fault or refusal
    problem = problem or refusal
    return render(
        "datasets/dataset.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        dataset=dataset,
        rows=rows or [],
        difference=difference,
        against=filters.against,
        part=chosen,
        parts=PARTS,
        types=TYPES,
        pairs=routes.list_pairs(site, principal, PairFilter(dataset_id=dataset_id, limit=AT_ONCE)),
        names=names_for(site, principal),
        categories=list_categories(site),
        formats={
            name: member.title for name, member in EXPORTERS.items() if dataset.type in member.types
        },
        draft=draft,
        problem=problem.detail if problem else None,
    )


def _read_rows(site: Site, dataset: Dataset, part: QualityPart | None) -> list[dict[str, Any]]:
    """The first rows, of a part of the quality where one is chosen: of the newest version where one
    is frozen and not edited since, else as they are now.
    """
    if dataset.status in ("ready", "exported"):
        newest = site.store.datasets.version(dataset.dataset_id)
        limit = None if part else FIRST_ROWS
        frame = site.store.datasets.rows(newest.content_hash, limit=limit)
    elif dataset.quality is None:
        return []
    else:
        frame = curated_sets.read_draft(site.files, site.store, dataset)
    frame = frame.head(FIRST_ROWS) if part is None else frame[frame["row_id"].isin(part.row_ids)]
    return _link_rows(frame)


def _compare(
    site: Site, dataset: DatasetDetails, against: int | None
) -> list[tuple[str, int, list[dict[str, Any]]]] | None:
    """In words, numbers and first rows: what the newest version has more and less than another."""
    if against is None or not dataset.versions:
        return None
    other = site.store.datasets.version(dataset.dataset_id, against)
    frames = [site.store.datasets.rows(v.content_hash) for v in (other, dataset.versions[0])]
    added, removed = compare_rows(*frames)
    return [
        (f"In version {dataset.n_versions}, not in {against}", len(added), _link_rows(added)),
        (f"In version {against}, not in {dataset.n_versions}", len(removed), _link_rows(removed)),
    ]


def _link_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        row | {"links": _link_sources(row["sources"])} for row in plain_rows(frame.head(ROWS_SHOWN))
    ]


def _link_sources(text: str) -> list[tuple[str, str]]:
    """The name and address of each source of a row."""
    links = []
    for source in json.loads(text):
        kind, _, name = source.partition(":")
        addresses = {
            "comparison": f"/comparisons/{name}",
            "pair": f"/datasets/pairs/{name.partition('@')[0]}",
            "feedback": f"/feedback?status=all&feedback_id={name}#feedback-{name}",
        }
        links.append((source.replace(":", " "), addresses[kind]))
    return links


def _show_pair(
    site: Site,
    request: Request,
    principal: Principal,
    pair_id: int,
    *,
    problem: Problem | None = None,
    draft: Fields = EMPTY_FORM,
) -> Response:
    pair = site.store.curated_pairs.get(pair_id)
    return render(
        "datasets/pair.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        pair=pair,
        history=site.store.curated_pairs.history(pair_id),
        names=names_for(site, principal),
        draft=draft,
        problem=problem.detail if problem else None,
    )


def _parse_pair(form: Fields) -> dict[str, object]:
    context = form.text("context").strip()
    return {
        **{name: form.text(name) for name in ("prompt", "chosen", "rejected")},
        "strength": form.text("strength") or 1.0,
        "context": [part.strip() for part in context.split("\n---\n")] if context else [],
        "notes": form.text("notes").strip() or None,
    }


def _parse_query(form: Fields, old: DatasetQuery | None = None) -> dict[str, object]:
    """What a data set holds, as its form says; what the form has no field for stays as in `old`."""
    old = old or DatasetQuery()
    days = {name: form.text(name) or None for name in ("since", "until")}
    votes = {
        "categories": form.all("category"),
        "min_agreement": form.text("min_agreement") or 0.5,
        "cluster": form.text("cluster").strip() or None,
        **days,
    }
    feedback = {"kinds": form.all("kind"), **days}
    return old.model_dump() | {
        "votes": (old.votes or VoteQuery()).model_dump() | votes if form.has("votes") else None,
        "feedback": (old.feedback or FeedbackQuery()).model_dump() | feedback
        if form.all("kind")
        else None,
    }
