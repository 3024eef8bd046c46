"""What the nightly housekeeping deletes and what it keeps, in process."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from jobs.housekeeping import housekeeping
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store

Purge = Callable[[int], None]


class NoModels:
    """A registry in which nothing was registered."""

    def model_name(self, kind: str) -> str:
        return f"demo.{kind}"

    def list_versions(self, kind: str) -> list[Any]:
        return []

    def aliases(self, kind: str) -> dict[int, Any]:
        return {}

    removal_times = aliases


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def purge(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Purge]:
    """Housekeeping of a home with this many days to keep."""
    with Store.open(
        f"sqlite:///{tmp_path / 'store.db'}", organization="default", project="demo"
    ) as store:
        store.migrate()

        def run(keep_days: int) -> None:
            result = housekeeping.execute_in_process(
                instance=instance,
                resources={
                    "settings": Settings(home=tmp_path, keep_days=keep_days),
                    "store": store,
                    "registry": NoModels(),
                },
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            assert result.success

        yield run


def historical(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, days_ago: float) -> str:
    """A run that was made so many days ago, with an event."""
    run = dg.DagsterRun(
        job_name="feedback", run_id=dg.DagsterRun(job_name="feedback").run_id, status=status
    )
    instance.run_storage.add_historical_run(run, datetime.now(UTC) - timedelta(days=days_ago))
    instance.report_engine_event("it ran", run)
    return run.run_id


@pytest.mark.parametrize(
    "status",
    [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED],
)
def test_runs_older_than_the_setting_are_purged_with_their_events(
    instance: dg.DagsterInstance, purge: Purge, status: dg.DagsterRunStatus
) -> None:
    old, young = historical(instance, status, 31), historical(instance, status, 29)
    purge(30)
    assert instance.get_run_by_id(old) is None
    assert list(instance.all_logs(old)) == []
    assert instance.get_run_by_id(young) is not None
    assert len(instance.all_logs(young)) == 1


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_a_run_that_has_not_ended_is_kept_however_old(
    instance: dg.DagsterInstance, purge: Purge, status: dg.DagsterRunStatus
) -> None:
    alive = historical(instance, status, 400)
    purge(1)
    assert instance.get_run_by_id(alive) is not None


def test_purging_again_finds_nothing_more(instance: dg.DagsterInstance, purge: Purge) -> None:
    historical(instance, dg.DagsterRunStatus.SUCCESS, 31)
    purge(30)
    n_runs = len(instance.get_runs())
    purge(30)
    assert len(instance.get_runs()) == n_runs + 1  # the housekeeping run itself
