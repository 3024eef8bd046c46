"""A home filled by `rlhf import` in a process of its own, and what must be true of it once its days
were replayed, whoever was killed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.sensors.runs import STEP_TAG
from rlhf_pipeline.feedback.votes.counting import counting_votes
from tests.pipeline import imported
from tests.processes.daemon_home import BINARIES, Server, eventually

FEEDBACK = ("votes", "reflection_log", "drift_report")
PAIR_COLUMNS = ["source_pair_id", "prompt", "completion_a", "completion_b", "category", "split"]
STEPS = ("day", "name")


@dataclass(frozen=True)
class ImportFiles:
    """Comparisons of several days, first judged on their day, and every vote on them; the file's
    order is not that of time.
    """

    pairs: Path
    votes: Path
    days: tuple[str, ...]
    n_pairs: int  # of a day
    n_votes: int  # of a day

    @classmethod
    def write(
        cls, folder: Path, days: Sequence[str], *, n: int, annotators: int = 3
    ) -> "ImportFiles":
        pairs, votes = [], []
        for d, day in enumerate(days):
            frame = imported.comparisons(n, name=f"d{d}")
            pairs.append(frame[PAIR_COLUMNS])
            of_pair = frame.set_index("comparison_id")["source_pair_id"]
            votes += [
                {
                    "source_pair_id": of_pair[vote.comparison_id],
                    "annotator_id": vote.annotator_id,
                    "choice": vote.choice.value,
                    "voted_at": vote.voted_at.isoformat() if vote.voted_at else None,
                }
                for vote in imported.votes(frame, day, annotators=annotators, seed=d)
            ]
        files = cls(folder / "pairs.jsonl", folder / "votes.jsonl", tuple(days), n, n * annotators)
        pd.concat(pairs).to_json(files.pairs, orient="records", lines=True)
        files.votes.write_text("".join(f"{json.dumps(vote)}\n" for vote in reversed(votes)))
        return files


def started(project: Any, folder: Path, *arguments: str) -> Server:
    """`rlhf …` on the project, under way."""
    return Server.start(
        [str(BINARIES / "rlhf"), *arguments],
        project.environ,
        folder / f"{'-'.join(arguments[:2])}.log",
    )


def done(project: Any, folder: Path, *arguments: str, seconds: float = 240) -> str:
    """What `rlhf …` printed; fails the test unless it ends well."""
    command = started(project, folder, *arguments)
    try:
        eventually(
            lambda: command.process.poll() is not None,
            seconds=seconds,
            what=f"the end of rlhf {' '.join(arguments)}",
            every=0.05,
        )
        assert command.process.returncode == 0, command.text
        return command.text
    finally:
        command.kill()


def steps(project: Any) -> pd.DataFrame:
    """Every run of the replay in the order in which they were made: `run_id, day, name, status,
    start, end`.
    """
    records = [r for r in project.instance.get_run_records() if STEP_TAG in r.dagster_run.tags]
    rows = [
        {
            "run_id": record.dagster_run.run_id,
            **dict(zip(STEPS, record.dagster_run.tags[STEP_TAG].split(":")[2:5:2], strict=True)),
            "status": record.dagster_run.status.value,
            "start": record.start_time,
            "end": record.end_time,
        }
        for record in sorted(records, key=lambda r: r.create_timestamp)
    ]
    return pd.DataFrame(rows, columns=["run_id", *STEPS, "status", "start", "end"])


def assert_replayed_once(project: Any, files: ImportFiles, *, killed: Sequence[str]) -> None:
    """Every day in order and each step once, but for the `killed` runs; nothing doubled, lost, left
    to do or predicted after the fact.
    """
    store, days = project.store, list(files.days)
    assert (store.replays.pending_days(), store.replays.unrequested_days()) == ([], [])
    assert [*store.training_jobs.pending(), *store.training_jobs.submitted()] == []
    assert store.votes.count() == store.votes.max_seq() == len(days) * files.n_votes
    assert store.audit.verify() > store.votes.count()
    for stage in FEEDBACK:
        assert project.files.days(stage) == days
    assert [len(project.files.read_frame("votes", day)) for day in days] == [files.n_votes] * len(
        days
    )
    _assert_in_order(project, killed)
    _assert_prequential(project, files)


def _assert_in_order(project: Any, killed: Sequence[str]) -> None:
    run_steps = steps(project)
    assert sorted(run_steps.loc[run_steps["status"] != "SUCCESS", "run_id"]) == sorted(killed)
    whole = run_steps[run_steps["status"] == "SUCCESS"].reset_index(drop=True)
    assert set(Counter(zip(whole["day"], whole["name"], strict=True)).values()) == {1}
    assert whole["day"].is_monotonic_increasing
    assert (whole["start"].iloc[1:].to_numpy() >= whole["end"].iloc[:-1].to_numpy()).all(), (
        "two steps at once"
    )
    others = project.instance.get_runs(dg.RunsFilter(job_name="feedback"))
    assert {run.run_id for run in others} == set(
        run_steps.loc[run_steps["name"] == "feedback", "run_id"]
    ), "a day was reported outside its replay"


def _assert_prequential(project: Any, files: ImportFiles) -> None:
    """From the second day on, which has a model: one prediction of each comparison, by the model of
    that morning.
    """
    learnt = {
        version.label: version.data_seq
        for version in project.registry.list_versions("reward_model")
    }
    assert project.store.predictions.for_days(files.days[:1]).empty
    for day in files.days[1:]:
        predictions = project.store.predictions.for_days([day])
        assert len(predictions) == predictions["comparison_id"].nunique() == files.n_pairs
        votes = counting_votes(
            project.store.votes.log(comparison_ids=predictions["comparison_id"].tolist())
        )
        first_vote = votes.groupby("comparison_id")["seq"].min()
        assert (
            predictions["reward_model"].map(learnt) < predictions["comparison_id"].map(first_vote)
        ).all()
        log_rows = project.files.read_frame("reflection_log", day)
        assert sorted(log_rows["vote_id"]) == sorted(votes["vote_id"])
        report = project.files.read_frame("drift_report", day)
        assert report.loc[report["space"] == "overall", "n_current"].iloc[0] == files.n_votes
