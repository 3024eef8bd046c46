"""Checks the store, opened read-only: pages, version, audit chain, references, order of text."""

from collections.abc import Iterator

from rlhf_pipeline.cli.storage_check.finding import Finding, attempt, summarise
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store, integrity, migrations
from rlhf_pipeline.store.anchors import FILE, read_anchors, verify_with_anchors

RESTORE = (
    "Restore the last backup with `rlhf restore FOLDER --replace`; `rlhf init` "
    "would begin without any vote."
)

PAGES = "pages of the store"  # if they are damaged, nothing else is checked


def open_store(settings: Settings) -> Store:
    """Raises StoreError for a store that is missing, holds no tables, or is of another version."""
    store = Store.open_read_only(
        settings.store_url, organization=settings.organization, project=settings.project
    )
    version = migrations.current_revision(store.database)
    if version is None:
        raise StoreError(
            f"The store {store.database.where} holds no tables, although this home was set up. "
            f"{RESTORE}"
        )
    if version != migrations.HEAD:
        raise migrations.refusal(store.database.where, version)
    return store


def check_store(settings: Settings, store: Store) -> Iterator[Finding]:
    yield Finding("store", f"{store.database.where}, version {migrations.HEAD}")
    damaged = attempt(PAGES, lambda: "; ".join(integrity.find_damage(store.database)))
    if damaged.found:
        yield Finding(damaged.what, f"{damaged.found} {RESTORE}", is_sound=False)
        return
    yield Finding(damaged.what, "as written")
    yield attempt("audit chain", lambda: _check_audit_chain(settings, store))
    lost = integrity.find_orphans(store.database)
    yield summarise("foreign keys", "every reference leads to a row", [f"{one}." for one in lost])
    yield summarise(
        "calibrators",
        "each as the audit chain has it",
        [f"{one} {RESTORE}" for one in integrity.find_changed_calibrators(store.database)],
    )
    yield summarise(
        "taste changes",
        "each as the audit chain has it",
        [f"{one} {RESTORE}" for one in integrity.changed_taste_changes(store.database)],
    )
    is_by_code_point = integrity.sorts_by_code_point(store.database)
    yield Finding(
        "order of text",
        "by code point"
        if is_by_code_point
        else "by a language: seeded draws differ from SQLite's; make the database with LC_COLLATE "
        "'C'",
        is_by_code_point,
    )
    counts = integrity.count_rows(store.database)
    yield Finding(
        "rows", ", ".join(f"{n:,} {table}" for table, n in counts.items() if n) or "none yet"
    )


def _check_audit_chain(settings: Settings, store: Store) -> str:
    anchors = read_anchors(settings.home / FILE, settings.organization, settings.project)
    n_links = verify_with_anchors(store.audit, anchors)
    return f"{n_links:,} links, chain intact" + (
        f"; {len(anchors)} anchors lead into it" if anchors else ""
    )
