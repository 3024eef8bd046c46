"""Answers an import as the store would, and remembers what it would store, without storing it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rlhf_pipeline.feedback.datasets.comparisons import ComparisonStore, StoredRows


class DryRun:
    """Takes the places of `store.comparisons` and `store.imports` in an import."""

    def __init__(self, comparisons: ComparisonStore, imports: StoredRows) -> None:
        self._comparisons, self._imports = comparisons, imports
        self.rows: dict[str, dict[str, Any]] = {}  # by comparison id, in the order of the file
        self._by_texts: dict[str, str] = {}
        self._by_source_id: dict[str, str] = {}
        self.splits = comparisons.splits
        self.find_known_keys, self.find_votes = imports.find_known_keys, imports.find_votes

    def publish_rows(self, rows: Sequence[dict[str, Any]], *, published_at: datetime) -> None:
        for row in rows:
            self.rows[row["comparison_id"]] = row
            if row["flag"] is None and row["repeat_of"] is None:
                self._by_texts.setdefault(row["pair_key"], row["comparison_id"])
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
