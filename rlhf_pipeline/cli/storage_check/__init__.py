"""Checks databases, models, frames and files for `rlhf check`; changes nothing."""

import shutil
from collections.abc import Iterator
from typing import Any

from rlhf_pipeline.cli.driver import read_copied_dagster_state
from rlhf_pipeline.cli.storage_check.databases import PAGES, check_store, open_store
from rlhf_pipeline.cli.storage_check.files import check_files
from rlhf_pipeline.cli.storage_check.finding import Finding, attempt
from rlhf_pipeline.cli.storage_check.models import check_models
from rlhf_pipeline.config import HOME_FACTS, HomeFacts, Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.store import Store

__all__ = ["Finding", "find_faults"]

LEAST_FREE_BYTES = 1 << 30


def find_faults(settings: Settings, progress: Progress = ignore_progress) -> Iterator[Finding]:
    if HomeFacts.load(settings.home) is None:
        yield Finding(
            HOME_FACTS,
            f"{settings.home / HOME_FACTS} is missing. Restore it from a backup, or run "
            "`rlhf init`.",
            is_sound=False,
        )
    state: dict[str, Any] = {}
    yield attempt("Dagster", lambda: _check_dagster(settings, state))
    try:
        store = open_store(settings)
    except PipelineError as error:
        yield Finding("store", str(error), is_sound=False)
    else:
        with store:
            yield from _check_against_store(settings, store, state, progress)
    free = shutil.disk_usage(settings.home).free
    yield Finding("free disk", f"{free / 1e9:.1f} GB", free >= LEAST_FREE_BYTES)


def _check_against_store(
    settings: Settings, store: Store, state: dict[str, Any], progress: Progress
) -> Iterator[Finding]:
    try:
        for finding in check_store(settings, store):
            yield finding
            if finding.what == PAGES and not finding.is_sound:
                return
        yield from check_models(settings, store, progress)
        yield from check_files(settings, store, state.get("made", {}), progress)
    except PipelineError as error:
        yield Finding("store", str(error), is_sound=False)


def _check_dagster(settings: Settings, state: dict[str, Any]) -> str:
    state.update(read_copied_dagster_state(settings))
    where = (
        _hide_password(settings.dagster_storage)
        if settings.dagster_storage
        else settings.home / "dagster"
    )
    return f"{state.get('n_runs', 0)} runs in {where}"


def _hide_password(url: str) -> str:
    """The URL without user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else url
