"""Answers an import as the store would, and remembers what it would store, without storing it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import pandas as pd

from rlhf_pipeline.feedback.datasets.split_conflicts import StoredSplit
from rlhf_pipeline.feedback.datasets.votes import VoteIdentity


class StoredComparisons(Protocol):
    """The part of `store.comparisons` that a dry run reads."""

    def with_source_ids(self, ids: Sequence[str]) -> dict[str, str]: ...
    def with_pair_keys(self, keys: Sequence[str]) -> dict[str, str]: ...
    def splits(self, only_given: bool) -> Iterable[StoredSplit]: ...


class StoredRows(Protocol):
    """The part of `store.imports` that a dry run reads."""

    def find_fields(
        self, comparison_ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any]]: ...
    def find_known_keys(self, idempotency_keys: Sequence[str]) -> set[str]: ...
    def find_votes(self, comparison_ids: Sequence[str]) -> set[VoteIdentity]: ...


class DryRun:
    """Takes the places of `store.comparisons` and `store.imports` in an import."""

    def __init__(
        self,
        comparisons: StoredComparisons,
        imports: StoredRows,
        pair_key: Callable[[str, str, str], str],
    ) -> None:
        self._comparisons, self._imports, self._pair_key = comparisons, imports, pair_key
        self.rows: dict[str, dict[str, Any]] = {}  # by comparison id, in the order of the file
        self._by_texts: dict[str, str] = {}
        self._by_source_id: dict[str, str] = {}
        self.splits = comparisons.splits
        self.find_known_keys, self.find_votes = imports.find_known_keys, imports.find_votes

    def publish(self, frame: pd.DataFrame, *, published_at: datetime) -> None:
        # a column of texts with gaps has NaN in them
        for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
            key = self._pair_key(row["prompt"], row["completion_a"], row["completion_b"])
            self.rows[row["comparison_id"]] = {str(k): v for k, v in row.items()} | {
                "pair_key": key
            }
            if row["flag"] is None and row["repeat_of"] is None:
                self._by_texts.setdefault(key, row["comparison_id"])
            self.add_source_ids({row["comparison_id"]: row["source_pair_id"]})

    def add_source_ids(self, source_ids: Mapping[str, str]) -> None:
        for comparison_id, source_id in source_ids.items():
            if source_id is not None:
                self._by_source_id[source_id] = comparison_id

    def with_source_ids(self, ids: Sequence[str]) -> dict[str, str]:
        stored = self._comparisons.with_source_ids(ids)
        return stored | {i: self._by_source_id[i] for i in ids if i in self._by_source_id}

    def with_pair_keys(self, keys: Sequence[str]) -> dict[str, str]:
        would = {key: self._by_texts[key] for key in keys if key in self._by_texts}
        return would | self._comparisons.with_pair_keys(keys)

    def find_fields(
        self, comparison_ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        stored = self._imports.find_fields(comparison_ids, fields)
        return stored | {
            i: {name: self.rows[i][name] for name in fields}
            for i in comparison_ids
            if i in self.rows
        }
