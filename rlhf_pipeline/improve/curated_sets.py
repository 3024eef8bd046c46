"""Builds, freezes and exports curated data sets of a project, and hands one to a retraining."""

from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import (
    Dataset,
    DatasetChange,
    DatasetExport,
    DatasetQuality,
    DatasetVersion,
    NewDataset,
    check_move,
)
from rlhf_pipeline.core.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.feedback.datasets.dataset_rows import build_rows, select_vote_pairs
from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS, write_export
from rlhf_pipeline.feedback.datasets.quality import measure_quality
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.store.datasets import NO_CHANGE
from rlhf_pipeline.watch.drift.cluster_history import find_cluster

NO_PAIRS = PREFERENCE_PAIRS.empty_frame


def read_draft(files: Artefacts, store: Store, dataset: Dataset | NewDataset) -> pd.DataFrame:
    """The DATASET_ROWS that a data set would be frozen with now; a new one has no pairs of its own.

    Its votes are the preference pairs of the last `learning` run, as models are trained on them,
    without those of corrections that nobody approved; its feedback is approved feedback.
    Raises NotEnoughData where it holds votes and there are none, NotFound for an unknown cluster.
    """
    query, pairs = dataset.query, NO_PAIRS()
    if query.votes is not None:
        if not files.path("preference_pairs").exists():
            raise NotEnoughData(
                "No preference pairs have been made of the votes yet. Run the jobs `feedback` and "
                "`learning` (`rlhf run feedback`, `rlhf run learning`), or leave votes out of the "
                "data set."
            )
        ids = query.votes.comparison_ids or None
        if query.votes.cluster:
            cluster = find_cluster(files, query.votes.cluster)[1].comparison_ids
            ids = cluster if ids is None else tuple(set(ids) & set(cluster))
        pairs = select_vote_pairs(files.read_frame("preference_pairs"), query.votes, ids)
        unapproved = store.feedback.find_unapproved_comparisons()
        pairs = pairs[~pairs["comparison_id"].isin(unapproved)]
    rows = build_rows(
        dataset.type,
        pairs,
        store.curated_pairs.of_dataset(dataset.dataset_id) if isinstance(dataset, Dataset) else (),
        [] if query.feedback is None else store.feedback.select(query.feedback, "approved"),
    )
    return rows[~rows["row_id"].isin(query.leave_out)].reset_index(drop=True)


def create(files: Artefacts, store: Store, new: NewDataset, *, actor: str) -> Dataset:
    """Make and build a data set, or nothing. Raises as `read_draft`, and DatasetConflict for a name
    that is taken.
    """
    _, quality = _measure(files, store, new)
    with joint_transaction(store.database):
        dataset = store.datasets.add(new.name, new.type, new.query, new.description, actor=actor)
        return store.datasets.record_build(dataset.dataset_id, quality, actor=actor)


def build(
    files: Artefacts,
    store: Store,
    dataset_id: int,
    *,
    actor: str,
    change: DatasetChange = NO_CHANGE,
) -> Dataset:
    """Edit a data set, count its rows and measure their quality now, or nothing. Raises as
    `read_draft`, and DatasetConflict for an archived one and if another change was faster.
    """
    old = store.datasets.get(dataset_id)
    _, quality = _measure(files, store, change.edit(old))
    return store.datasets.record_build(
        dataset_id, quality, actor=actor, change=change, read_at=old.updated_at
    )


def freeze(
    files: Artefacts,
    store: Store,
    dataset_id: int,
    *,
    actor: str,
    change: DatasetChange = NO_CHANGE,
) -> DatasetVersion:
    """Edit a data set and freeze its rows as its next version, or nothing. Raises as `read_draft`,
    and DatasetConflict where its status or a problem of its quality forbids it, and if another
    change was faster.
    """
    old = store.datasets.get(dataset_id)
    rows, quality = _measure(files, store, change.edit(old))
    return store.datasets.freeze(
        dataset_id, rows, quality, actor=actor, change=change, read_at=old.updated_at
    )


def export(
    store: Store,
    dataset_id: int,
    format_name: str,
    folder: str | Path,
    *,
    actor: str,
    now: datetime,
    version: int | None = None,
) -> DatasetExport:
    """Write a version, the newest by default, into a folder or an fsspec URL, and record it.

    Raises NotFound without a version, DatasetConflict where none is named and the data set was
    edited after its newest, UnknownMember for an unknown format, and as `write_export`.
    """
    dataset, exporter = store.datasets.get(dataset_id), EXPORTERS[format_name]()
    chosen = store.datasets.version(dataset_id, version)
    if version is None:
        check_move(dataset.name, dataset.status, "exported")
    rows = store.datasets.rows(chosen.content_hash)
    exported = write_export(folder, dataset.name, chosen, dataset.type, rows, exporter, now)
    store.datasets.record_export(dataset_id, exported, actor=actor)
    return exported


def take_training_pairs(store: Store, name: str) -> tuple[pd.DataFrame, str]:
    """A version of a preference data set as PREFERENCE_PAIRS of the train split, and its label,
    `NAME@VERSION`. `name` is a label, or a name alone for the newest version.

    Raises NotFound for an unknown data set and one without a version, ConfigurationError for one of
    another type.
    """
    plain, _, number = name.rpartition("@") if "@" in name else (name, "", "")
    if number and not number.isdecimal():
        raise ConfigurationError(
            f"Invalid version {number!r} of data set {plain!r}; give a number."
        )
    dataset = store.datasets.find(plain)
    if dataset.type != "preference":
        raise ConfigurationError(
            f"Data set {plain!r} is of type {dataset.type}; a retraining takes preference."
        )
    version = store.datasets.version(dataset.dataset_id, int(number) if number else None)
    rows = store.datasets.rows(version.content_hash)
    pairs = pd.DataFrame(
        {
            **{column: rows[column] for column in ("day", "prompt_id", "prompt", "rejected")},
            "comparison_id": rows["row_id"],
            "chosen": rows["completion"],
            "margin": rows["strength"].fillna(1.0),
            "agreement": rows["agreement"].fillna(1.0),
            "n_votes": 1,
            "chosen_side": "a",
            "annotator_kind": "human",
            "category": rows["category"].fillna("instruction"),
            "split": "train",  # the others are in no data set
            "max_seq": 1,
        }
    )
    return check_frame(pairs, PREFERENCE_PAIRS), f"{plain}@{version.version}"


def _measure(
    files: Artefacts, store: Store, dataset: Dataset | NewDataset
) -> tuple[pd.DataFrame, DatasetQuality]:
    rows = read_draft(files, store, dataset)
    return rows, measure_quality(rows, dataset.type, _read_evaluation_prompts(store))


def list_models(store: Store) -> dict[str, list[str]]:
    """By label of a data set's version, the policies trained on it that the gate decided on, as
    name@version, oldest first.
    """
    models: dict[str, list[str]] = defaultdict(list)
    for decision in store.gates.all():
        label = decision.registered and decision.registered.params.get("dataset")
        if label and decision.candidate not in models[label]:
            models[label].append(decision.candidate)
    return models


def _read_evaluation_prompts(store: Store) -> list[str]:
    latest = store.evaluation_sets.latest()
    return [] if latest is None else store.evaluation_sets.prompts(latest.version)["text"].tolist()
