"""What `rlhf storage check` looks at, one finding a line. Changes nothing."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.dagster_side import dagster_state
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.registry import Kind
from rlhf_pipeline.store import integrity, migrations

LEAST_FREE_BYTES = 1 << 30
# Stages whose days are files; other assets, as the inbox of votes, leave none.
FRAMES = ("prompts", "completions", "comparisons", "votes", "preference_pairs", "reflection_log", "drift_report")


@dataclass(frozen=True)
class Finding:
    """One line of `rlhf storage check`."""

    what: str
    found: str
    is_sound: bool = True


def findings(workspace: Workspace) -> Iterator[Finding]:
    settings = workspace.settings
    yield from _store_findings(workspace)
    yield _tried("MLflow", lambda: f"{len(workspace.registry.list_models())} model versions in {_hidden(settings.tracking_uri)}")
    yield from _model_findings(workspace)
    state: dict[str, Any] = {}

    def ask() -> str:
        state.update(dagster_state(settings))
        return f"{state['n_runs']} runs in {_hidden(settings.dagster_storage) if settings.dagster_storage else settings.home / 'dagster'}"

    yield _tried("Dagster", ask)
    yield from _file_findings(workspace, state.get("made", {}))
    free = shutil.disk_usage(settings.home).free
    yield Finding("free disk", f"{free / 1e9:.1f} GB", free >= LEAST_FREE_BYTES)


def _store_findings(workspace: Workspace) -> Iterator[Finding]:
    store = workspace.store
    connected = _tried("store", lambda: f"{store.database.where}, version {migrations.current(store.database) or 'none'}")
    version = migrations.current(store.database) if connected.is_sound else None
    yield Finding(connected.what, connected.found, connected.is_sound and version == migrations.HEAD)
    if version != migrations.HEAD:
        if connected.is_sound:
            yield Finding("version", f"this code needs {migrations.HEAD}: run `rlhf init`", is_sound=False)
        return
    yield _tried("audit chain", lambda: f"{store.audit.verify():,} links, each in its place")
    lost = integrity.orphans(store.database)
    yield Finding("foreign keys", "every reference leads to a row" if not lost else "; ".join(lost), not lost)
    order = integrity.sorts_by_code_point(store.database)
    yield Finding(
        "order of text",
        "by code point" if order else "by a language: seeded draws differ from SQLite's; make the database with LC_COLLATE 'C'",
        order,
    )
    counts = integrity.counts(store.database)
    yield Finding("rows", ", ".join(f"{n:,} {table}" for table, n in counts.items() if n) or "none yet")


def _model_findings(workspace: Workspace) -> Iterator[Finding]:
    """Champion models whose files are gone would be noticed by the next run only."""
    kinds: tuple[Kind, ...] = ("policy", "reward_model")
    for kind in kinds:
        try:
            version = workspace.registry.get(kind, "champion")
            if version is not None:
                workspace.registry.folder(version, workspace.settings.cache)
                yield Finding(f"champion {kind}", f"{version.label}, files as registered")
        except PipelineError as error:
            yield Finding(f"champion {kind}", str(error), is_sound=False)


def _file_findings(workspace: Workspace, made: dict[str, list[str]]) -> Iterator[Finding]:
    lost = {}
    n_days = 0
    for stage, days in made.items():
        present = set(workspace.files.days(stage))
        n_days += len(present & set(days))
        if present or stage in FRAMES:
            lost[stage] = sorted(set(days) - present)
    gone = {stage: days for stage, days in lost.items() if days}
    told = "; ".join(
        f"{stage} has lost {', '.join(days[:3])}{' …' if len(days) > 3 else ''}: materialise again" for stage, days in gone.items()
    )
    yield Finding("files of days", told or f"{n_days:,}, each where Dagster says that it was made", not gone)


def _tried(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what, ask())
    except PipelineError as error:
        return Finding(what, str(error), is_sound=False)


def _hidden(url: str) -> str:
    """Without password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else url
