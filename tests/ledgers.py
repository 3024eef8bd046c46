"""Work ledgers for tests: each in a store of its own in a temporary folder."""

import atexit
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from rlhf_pipeline.core.protocols import WorkLedger
from rlhf_pipeline.generate.completions import (
    CallParams,
    CompletionParams,
    CompletionRequest,
    CompletionResult,
    HostedBackend,
    generate,
)
from rlhf_pipeline.generate.completions.results import complete_requests
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger

L = TypeVar("L", bound=GenerationLedger)


@cache
def _migrated_store() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with _open(Path(folder)) as store:
        store.migrate()
    return Path(folder)


def _open(folder: Path) -> Store:
    return Store.open(f"sqlite:///{folder / 'store.db'}")


def temporary_ledger(kind: type[L] = GenerationLedger, **more: Any) -> L:  # type: ignore[assignment]
    """An empty ledger; its store is closed and removed with it."""
    folder = Path(tempfile.mkdtemp())
    shutil.copy(_migrated_store() / "store.db", folder)
    store = _open(folder)
    ledger = kind(store.database, store.completions_cache, **more)
    weakref.finalize(ledger, _remove, store, folder)
    return ledger


def _remove(store: Store, folder: Path) -> None:
    store.close()
    shutil.rmtree(folder, ignore_errors=True)


def complete_frame(
    prompts: pd.DataFrame,
    backend: Any,
    params: CompletionParams,
    ledger: WorkLedger | None = None,
    **more: Any,
) -> pd.DataFrame:
    """The completions of one backend, by default in a ledger of their own."""
    return generate(prompts, backend, params, ledger=ledger or temporary_ledger(), **more).frame


def complete(
    backend: Any, requests: Sequence[CompletionRequest], **calls: Any
) -> list[CompletionResult]:
    """What a backend makes of these requests; a hosted one is called through a ledger."""
    if not isinstance(backend, HostedBackend):
        return list(backend.complete(requests))
    ledger = temporary_ledger()
    results = complete_requests(backend, requests, ledger=ledger, calls=CallParams(**calls))
    return [result for _, result in results]
