"""Decides which model versions need no files, and removes them; keeps records and metrics."""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rlhf_pipeline.core.errors import ModelNotFound
from rlhf_pipeline.core.records import ModelVersion, Promotion, Record
from rlhf_pipeline.registry.versions import REMOVED_TAG, ListedModel, Registry, path_in_run


def removable_versions(
    versions: Sequence[ListedModel], *, needed: Collection[str], n_latest: int
) -> list[ListedModel]:
    """Versions of one model whose files may be deleted: never promoted, without alias, not needed,
    and older than the `n_latest` such versions.

    Files that a kept version shares stay. `needed` are labels, `name@version`.
    """
    spare = [v for v in versions if v.label not in needed and not v.aliases]
    beyond = sorted(spare, key=lambda v: v.version)[:-n_latest]
    labels = {v.label for v in beyond}
    shared = {v.uri for v in versions if v.label not in labels}
    return [v for v in beyond if v.removed_at is None and v.uri not in shared]


def needed_versions(
    versions: Iterable[ModelVersion], promotions: Iterable[Promotion], unfinished: Iterable[Record]
) -> set[str]:
    """Labels of past and present champions, of the versions they were trained from, and of those
    that `unfinished` decisions name.
    """
    promoted = {
        f"{promotion.model_name}@{number}"
        for promotion in promotions
        for number in (promotion.version, promotion.previous_version)
        if number is not None
    }
    parents = {v.parent for v in versions if v.label in promoted and v.parent is not None}
    decision_labels = {
        label
        for decision in unfinished
        for label in re.findall(r"[\w.-]+@\d+", decision.model_dump_json())
    }
    return promoted | parents | decision_labels


def remove_files(
    registry: Registry,
    version: ModelVersion,
    cache: Path,
    at: datetime,
    *,
    is_needed: Callable[[], bool] = lambda: False,
) -> bool:
    """Tag a version as one without files, then delete them.

    Returns False and deletes nothing if the version has an alias or `is_needed()`: it may have been
    promoted since it was listed.
    """

    def tag() -> bool:
        """Runs under the write lock; promotions look for the tag under the same lock."""
        if version.version in registry.aliases(version.kind) or is_needed():
            return False
        registry.tracking.client.set_model_version_tag(
            version.name, str(version.version), REMOVED_TAG, at.isoformat()
        )
        return True

    if not registry.tracking.write(tag):
        return False
    with suppress(ModelNotFound):  # its run was deleted, with the files
        registry.storage(version).delete_artifacts(path_in_run(version))
    shutil.rmtree(cache / version.content_hash, ignore_errors=True)
    return True
