"""Run requests that are made once, whoever asks: a run key that an existing run carries is not requested again.

The daemon remembers run keys per sensor and location. Runs started by hand, by the demo or by another daemon carry the
same key as a tag; asking for the tag covers them all.
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.storage.tags import RUN_KEY_TAG  # the public API has no name for this tag


def run_of(instance: dg.DagsterInstance, run_key: str) -> dg.DagsterRun | None:
    """The run that was started under `run_key`, if any."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1)
    return runs[0] if runs else None


def keys_of(instance: dg.DagsterInstance, run_keys: Sequence[str]) -> set[str]:
    """Those of `run_keys` under which a run was started."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: list(run_keys)})) if run_keys else []
    return {run.tags[RUN_KEY_TAG] for run in runs}


def unseen(instance: dg.DagsterInstance, requests: Sequence[dg.RunRequest]) -> list[dg.RunRequest]:
    """`requests` without those whose run exists."""
    known = keys_of(instance, [request.run_key for request in requests if request.run_key])
    return [request for request in requests if request.run_key not in known]
