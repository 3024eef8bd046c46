"""Everything on one Postgres server: an import killed, its replay killed, both repeated; then one
change of taste, one retraining.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import SecretStr

from rlhf_pipeline.config import DAGSTER_URL, Settings
from rlhf_pipeline.records import DriftEvent, utc_now
from rlhf_pipeline.store import Store
from tests.postgres import PostgresServer
from tests.processes.daemon_home import eventually
from tests.processes.imported_home import ImportFiles, assert_replayed_once, done, started, steps

pytestmark = pytest.mark.timeout(600)

N = 80  # comparisons of a day
N_TICKS = 4  # at once
PREFIX = "kills"
CHANGE = 1_300  # seq of the first vote of another taste
QUICK = {
    "calibration": {"min_pairs": 10},
    "retraining_set": {"min_pairs": 40, "max_pairs": 64},
    "candidate_model": {"epochs": 1, "min_steps": 0, "min_pairs": 40, "checkpoint_every": 2},
    "evaluation": {"max_new_tokens": 8, "min_prompts": 20},  # of the test split
}


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Any], postgres: PostgresServer) -> Iterator[Any]:
    where = {"server_url": SecretStr(postgres.url), "database_prefix": PREFIX}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DAGSTER_URL, Settings(**where).dagster_environ[DAGSTER_URL])
        made = make_project(
            persistent=True,
            completion_backend="template",
            annotators="human",
            min_new_pairs=N,
            refit_after_pairs=1_000_000,
            **where,
        )
        yield made
    made.store.close()
    made.instance.dispose()
    for kind in ("store", "dagster", "mlflow"):
        postgres.drop_database(f"{PREFIX}_{kind}")


@pytest.fixture(scope="module")
def files(project: Any, tmp_path_factory: pytest.TempPathFactory) -> ImportFiles:
    return ImportFiles.write(
        tmp_path_factory.mktemp("files"), [project.day(d) for d in range(3)], n=N, annotators=6
    )


@dataclass
class Cut:
    """What a killed command left."""

    n_votes: int
    n_links: int
    states: list[str]
    pending: list[str]
    taken: list[tuple[str, str, str]]  # day, step and status of every run of the replay
    reported: list[str]
    said: str

    @classmethod
    def of(cls, project: Any, said: str) -> "Cut":
        store, found = project.store, steps(project)
        return cls(
            n_votes=store.votes.count(),
            n_links=store.audit.verify(),
            states=[i.state for i in store.imports.all()],
            pending=store.replays.pending_days(),
            taken=list(zip(found["day"], found["name"], found["status"], strict=True)),
            reported=project.files.days("drift_report"),
            said=said,
        )


@pytest.fixture(scope="module")
def cut_import(project: Any, files: ImportFiles) -> Cut:
    """Killed after the first of its transactions, while it waits to write the next one."""
    folder, store = files.votes.parent, project.store
    assert done(project, folder, "import", "comparisons", str(files.pairs)).startswith(
        f"{3 * N} imported"
    )
    importing = started(project, folder, "import", "votes", str(files.votes))

    def kill_once_begun() -> bool:
        # in the queue of the writers: no transaction of the import is over unseen, and it writes
        # nothing more before it dies
        with store.database.write_transaction():
            has_begun = store.votes.max_seq() > 0
            if has_begun:
                importing.kill()
            return has_begun

    eventually(kill_once_begun, seconds=60, what="the first votes", every=0.005)
    return Cut.of(project, importing.text)


@pytest.fixture(scope="module")
def cut_replay(project: Any, files: ImportFiles, cut_import: Cut) -> Cut:
    """The import again, killed in its replay, between the predictions of the second day and their
    feedback.
    """
    again = started(project, files.votes.parent, "import", "votes", str(files.votes))
    eventually(
        project.store.predictions.count,
        seconds=150,
        what="predictions of the second day",
        every=0.01,
    )
    again.kill()
    return Cut.of(project, again.text)


@pytest.fixture(scope="module")
def replayed(project: Any, files: ImportFiles, cut_replay: Cut) -> Any:
    done(project, files.votes.parent, "replay")
    return project


def test_a_killed_import_leaves_whole_transactions_and_requested_days(
    cut_import: Cut, files: ImportFiles
) -> None:
    assert 0 < cut_import.n_votes < 3 * files.n_votes
    assert cut_import.n_votes % 500 == 0
    assert cut_import.n_links > cut_import.n_votes
    assert cut_import.states == ["finished", "started"]
    assert cut_import.pending == list(files.days)
    assert cut_import.taken == []


def test_a_repeated_import_adds_what_is_missing(
    cut_import: Cut, cut_replay: Cut, files: ImportFiles
) -> None:
    n = 3 * files.n_votes
    assert (
        f"{n - cut_import.n_votes:,} imported, {cut_import.n_votes:,} already known, 0 merged, 0 "
        "rejected" in cut_replay.said
    )
    assert cut_replay.n_votes == n
    assert cut_replay.states == ["finished", "failed", "finished"]


def test_feedback_killed_after_predicting_reports_nothing(
    cut_replay: Cut, files: ImportFiles
) -> None:
    first, second, _ = files.days
    assert cut_replay.taken == [
        (first, "feedback", "SUCCESS"),
        (first, "learning", "SUCCESS"),
        (second, "feedback", "STARTED"),
    ]
    assert cut_replay.pending == list(files.days[1:])
    assert cut_replay.reported == [first]


def test_repeated_replay_has_every_day_once_predicted_before_votes(
    replayed: Any, files: ImportFiles
) -> None:
    killed = steps(replayed).query("day == @files.days[1] and name == 'feedback'")["run_id"].iloc[0]
    assert_replayed_once(replayed, files, killed=[killed])
    assert "postgresql" in replayed.store.database.where
    assert [str(path) for path in Path(replayed.settings.home).rglob("*.db")] == []


@dataclass
class Answered:
    """A change of taste on Postgres: the requests of every tick, before and after the run of the
    first.
    """

    held: list[dg.RunRequest]  # of ticks before the change was seen
    at_once: list[dg.RunRequest]
    before: list[dg.RunRequest]
    after: list[dg.RunRequest]


@pytest.fixture(scope="module")
def answered(replayed: Any) -> Answered:
    held = re_ticks(replayed)
    replayed.store.events.add(
        [
            DriftEvent(
                kind="drift",
                model_version=replayed.judge,
                detector=name,
                params_hash="p",
                stream="errors",
                seq=1_400 + n,
                day=replayed.day(2),
                change_seq=CHANGE,
                evidence={},
            )
            for n, name in enumerate(("ddm", "hddm_a"))
        ]
    )
    at_once = ticks_at_once(replayed)
    before = re_ticks(replayed)
    assert len(at_once) == 1
    replayed.run_request(
        at_once[0],
        "retraining",
        config={"ops": {stage: {"config": config} for stage, config in QUICK.items()}},
    )
    return Answered(held, at_once, before, re_ticks(replayed))


def ticks_at_once(project: Any) -> list[dg.RunRequest]:
    """The sensor evaluated by several daemons in the same moment, each with connections and a
    cursor of its own.
    """
    s = project.settings
    sensor = project.defs.get_repository_def().get_sensor_def("retraining")
    together = threading.Barrier(N_TICKS)

    def tick(_: int) -> list[dg.RunRequest]:
        with Store.open(s.store_url) as store:
            resources = {"store": store, "now": utc_now}
            with dg.build_sensor_context(instance=project.instance, resources=resources) as context:
                store.decisions.all()  # connected
                together.wait(30)
                return list(sensor.evaluate_tick(context).run_requests or [])

    with ThreadPoolExecutor(N_TICKS) as pool:
        return [request for requests in pool.map(tick, range(N_TICKS)) for request in requests]


def re_ticks(project: Any) -> list[dg.RunRequest]:
    """What is asked for by ticks that go on, and by those after everything the daemon remembers was
    forgotten.
    """
    found = [*(project.tick("retraining").run_requests or ())]
    for _ in range(3):
        project.cursors.clear()
        found += project.tick("retraining").run_requests or ()
    return found


def test_four_simultaneous_ticks_make_one_decision_and_one_request(
    replayed: Any, answered: Answered
) -> None:
    fired = [d for d in replayed.store.decisions.all() if d.action == "fire"]
    assert len(fired) == 1
    assert [r.run_key for r in answered.at_once] == [f"retraining:demo:{fired[0].decision_id}:1"]
    assert replayed.store.training_jobs.pending() == []
    assert fired[0].change_seq == CHANGE


def test_re_ticks_and_forgotten_cursors_ask_for_nothing_more(answered: Answered) -> None:
    assert answered.held == []
    assert answered.before == []
    assert answered.after == []


def test_the_one_retraining_ends_with_a_gated_candidate(replayed: Any, answered: Answered) -> None:
    (run,) = replayed.instance.get_runs(dg.RunsFilter(job_name="retraining"))
    (fired,) = [d for d in replayed.store.decisions.all() if d.action == "fire"]
    assert (fired.state, fired.run_id) == ("succeeded", run.run_id)
    assert len(replayed.store.gates.all()) == 1
    assert len(replayed.registry.list_versions("policy")) == 2
    assert replayed.store.audit.verify() > replayed.store.votes.count()
