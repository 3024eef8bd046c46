"""Routes of curated data sets and hand-made pairs, at the addresses that their users expect."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Query

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import DatasetFilter, PairFilter
from rlhf_pipeline.core.curation import (
    CreatedPairs,
    CuratedPair,
    Dataset,
    DatasetChange,
    DatasetDetails,
    DatasetExport,
    ExportOrder,
    FeedbackBulk,
    FeedbackQuery,
    NewDataset,
    NewPair,
    PairChange,
    PairTexts,
    TrainedVersion,
)
from rlhf_pipeline.core.object_stores import PUT_IS_WHOLE
from rlhf_pipeline.core.records import Number
from rlhf_pipeline.feedback.datasets.dataset_rows import make_feedback_pairs
from rlhf_pipeline.improve import curated_sets
from rlhf_pipeline.web.forms import validate
from rlhf_pipeline.web.lists import make_cursor, parse_cursor
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

training_datasets = api_router("training-datasets", prefix="/api/training-datasets")
preference_pairs = api_router("preference-pairs", prefix="/api/preference-pairs")
Reader = Annotated[Principal, Depends(needs(Permission.DATASETS_READ))]
Curator = Annotated[Principal, Depends(needs(Permission.DATASETS_WRITE))]
TEXTS = set(PairTexts.model_fields)


def list_datasets(site: Site, _: Principal, filters: DatasetFilter) -> Page[Dataset]:
    """Data sets, newest first."""
    place = parse_cursor(filters.cursor, int)
    items = site.store.datasets.page(filters, before_id=place[0] if place else None)
    is_full = len(items) == filters.limit
    return Page(items=items, next=make_cursor(items[-1].dataset_id) if is_full else None)


def list_pairs(site: Site, _: Principal, filters: PairFilter) -> Page[CuratedPair]:
    """Latest revisions, the newest pair first."""
    place = parse_cursor(filters.cursor, int)
    items = site.store.curated_pairs.page(filters, before_id=place[0] if place else None)
    is_full = len(items) == filters.limit
    return Page(items=items, next=make_cursor(items[-1].pair_id) if is_full else None)


@training_datasets.post("", status_code=201)
def create(site: AnySite, principal: Curator, body: NewDataset) -> Dataset:
    """Create a draft: its name, its type and what it holds."""
    return site.store.datasets.add(
        body.name, body.type, body.query, body.description, actor=principal.user_id
    )


@training_datasets.get("")
def read_all(
    site: AnySite, principal: Reader, filters: Annotated[DatasetFilter, Query()]
) -> Page[Dataset]:
    """Data sets, newest first; archived ones only with `status=archived`."""
    return list_datasets(site, principal, filters)


@training_datasets.get("/{dataset_id}")
def read(site: AnySite, _: Reader, dataset_id: Number) -> DatasetDetails:
    """One data set with its frozen versions, and the models trained on each."""
    dataset = site.store.datasets.get(dataset_id)
    models = curated_sets.list_models(site.store)
    versions = [
        TrainedVersion(
            **dict(version), models=tuple(models.get(f"{dataset.name}@{version.version}", ()))
        )
        for version in site.store.datasets.versions(dataset_id)
    ]
    return DatasetDetails(**dict(dataset), versions=tuple(versions))


@training_datasets.patch("/{dataset_id}", responses=problem_responses(409))
def change(site: AnySite, principal: Curator, dataset_id: Number, body: DatasetChange) -> Dataset:
    """Change a data set. Status `curating` counts its rows and measures their quality, `ready`
    freezes them as its next version, `archived` ends it. A change of a frozen data set opens its
    next version. It is made wholly or not at all.
    """
    actor = principal.user_id
    if body.status == "curating":
        return curated_sets.build(site.files, site.store, dataset_id, actor=actor, change=body)
    if body.status == "ready":
        curated_sets.freeze(site.files, site.store, dataset_id, actor=actor, change=body)
        return site.store.datasets.get(dataset_id)
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    if not fields:
        return site.store.datasets.get(dataset_id)
    return site.store.datasets.change(dataset_id, **fields, actor=actor)


@training_datasets.delete("/{dataset_id}", responses=problem_responses(409))
def archive(site: AnySite, principal: Curator, dataset_id: Number) -> Dataset:
    """Archive a data set. Its versions stay."""
    return site.store.datasets.change(dataset_id, status="archived", actor=principal.user_id)


@training_datasets.post("/{dataset_id}/export", status_code=201)
def export(
    site: AnySite, principal: Curator, dataset_id: Number, body: ExportOrder
) -> DatasetExport:
    """Write a frozen version for a trainer or provider, checked by its rules, with its SHA-256 and
    a manifest.
    """
    if body.url is not None and urlsplit(body.url).scheme not in PUT_IS_WHOLE:
        stores = ", ".join(sorted(PUT_IS_WHOLE))
        fault = f"must be the address of an object store ({stores})"
        raise Problem(422, f"url {fault}.", kind="invalid", errors=[("body.url", fault)])
    return curated_sets.export(
        site.store,
        dataset_id,
        body.format,
        body.url or site.settings.exports,
        actor=principal.user_id,
        now=site.store.database.clock.now(),
        version=body.version,
    )


@preference_pairs.post("", status_code=201)
def add_pair(site: AnySite, principal: Curator, body: NewPair) -> CuratedPair:
    """Add a pair to a data set."""
    texts = PairTexts.model_validate(body.model_dump(include=TEXTS))
    return site.store.curated_pairs.add(body.dataset_id, [(texts, ())], actor=principal.user_id)[0]


@preference_pairs.get("")
def read_pairs(
    site: AnySite, principal: Reader, filters: Annotated[PairFilter, Query()]
) -> Page[CuratedPair]:
    """Hand-made pairs in their latest revision, the newest first."""
    return list_pairs(site, principal, filters)


@preference_pairs.patch("/{pair_id}", responses=problem_responses(409))
def revise_pair(
    site: AnySite, principal: Curator, pair_id: Number, body: PairChange
) -> CuratedPair:
    """Make the next revision of a pair. Frozen versions keep theirs; a rejected pair is accepted
    again.
    """
    change = body.model_dump(exclude_unset=True)
    old = site.store.curated_pairs.get(pair_id).model_dump(include=TEXTS)
    validate(PairTexts, old | change)
    return site.store.curated_pairs.revise(pair_id, change, actor=principal.user_id)


@preference_pairs.delete("/{pair_id}", responses=problem_responses(409))
def reject_pair(site: AnySite, principal: Curator, pair_id: Number) -> CuratedPair:
    """Reject a pair: the next version leaves it out. It is kept."""
    return site.store.curated_pairs.revise(pair_id, {}, actor=principal.user_id, status="rejected")


@preference_pairs.post("/bulk", status_code=201)
def add_pairs(site: AnySite, principal: Curator, body: FeedbackBulk) -> CreatedPairs:
    """Make pairs of approved feedback, all or none: a correction is preferred to what it corrects,
    and of two completions of one prompt the one with the higher mean rating. Each entry that gives
    no pair, or whose pair the data set has, is an error.
    """
    entries = site.store.feedback.select(FeedbackQuery(feedback_ids=body.feedback_ids))
    pairs, faults = make_feedback_pairs([entry for entry in entries if entry.status == "approved"])
    known = site.store.curated_pairs.of_dataset(body.dataset_id)
    numbers = {pair.feedback_ids: pair.pair_id for pair in known}
    faults |= {
        n: f"is pair {numbers[ids]} of this data set already"
        for _, ids in pairs
        if ids in numbers
        for n in ids
    }
    faults |= {
        entry.feedback_id: f"is {entry.status}: approve it first"
        for entry in entries
        if entry.status != "approved"
    }
    existing = {entry.feedback_id for entry in entries}
    faults |= {n: "does not exist" for n in body.feedback_ids if n not in existing}
    if faults:
        errors = [
            (f"body.feedback_ids.{i}", f"feedback {n}: {faults[n]}")
            for i, n in enumerate(body.feedback_ids)
            if n in faults
        ]
        raise Problem(
            422,
            f"{len(errors)} of {len(body.feedback_ids)} entries give no pair, first feedback "
            f"{errors[0][1].removeprefix('feedback ')}. No pair was made. Leave them out.",
            kind="invalid",
            errors=errors,
        )
    created = site.store.curated_pairs.add(body.dataset_id, pairs, actor=principal.user_id)
    return CreatedPairs(pairs=tuple(created))
