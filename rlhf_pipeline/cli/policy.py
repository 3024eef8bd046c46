"""`rlhf policy`: training jobs ordered, watched and cancelled."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.cli.training_orders import (
    CANDIDATE,
    build_order,
    check_inputs,
    list_set_parameters,
)
from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.records import LARGEST, TrainingOrder, TriggerDecision
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.retraining.jobs import (
    ENDED,
    JobFigures,
    JobRun,
    TrainingJob,
    build_job,
    list_orders,
    read_figures,
)
from rlhf_pipeline.registry.runs import TrackedRun
from rlhf_pipeline.reports.words import format_count

app = typer.Typer(help="Training jobs of the policy.", no_args_is_help=True)
ACTOR = "rlhf policy"
SHOWN_NUMBERS = 5  # of each stage
WAIT_S = 2.0  # between two looks at a job that another process runs
CANCEL_S = 10.0  # a job ends within 5 s; a busy machine gets twice as long
JobId = Annotated[
    int, typer.Argument(min=1, max=LARGEST, metavar="JOB", help="Number in `rlhf policy jobs`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("train")
def train(
    strategy: Annotated[
        str | None, typer.Option(help="Training strategy; default as rlhf.yaml sets it, or dpo.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the training, or STAGE.NAME=VALUE of retraining_set, evaluation "
            "or gate; an unknown name lists the known ones. Repeatable.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="An optional idempotency key: it never starts a second job."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the decision.")] = "",
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Run it in this terminal, or wait for the process that does."),
    ] = False,
) -> None:
    """Order the training of a candidate on the current pairs and reward model: it is judged, and
    the gate promotes or refuses it.

    Its rows are checked first. The same order while its job is open starts no second one.
    """
    workspace = Workspace.open()
    store, settings = workspace.store, workspace.settings
    if waiting := store.replays.pending_days():
        raise ConfigurationError(
            f"{len(waiting)} imported days wait for their replay, and training waits for them. Run "
            "`rlhf replay` first."
        )
    order = build_order(LoopSettings.read(settings), strategy, changes or (), key)
    if key is None or store.training_jobs.find_order(order) is None:
        for line in check_inputs(workspace, order):
            echo(line)
    number, earlier_job = _order(
        workspace, order, reason.strip() or f"training by {order.strategy}"
    )
    if earlier_job is None:
        echo(f"job {number}: training by {order.strategy} is ordered")
    else:
        echo(f"This order is already job {number} ({earlier_job.state}). Nothing was started.")
        echo_cure(earlier_job)
        if earlier_job.state in ENDED or earlier_job.state == "lost":
            raise typer.Exit(int(wait and earlier_job.state != "succeeded"))
    if not wait:
        if earlier_job is None or earlier_job.state == "queued":
            echo(
                "`rlhf loop` or Dagster's daemon (`rlhf dev`) starts it within seconds. Where "
                "neither runs, the same command with --wait runs it in this terminal."
            )
        echo(f"`rlhf policy status {number}` shows how far it is.")
        return
    try:
        _run_or_wait(workspace, number)
    finally:
        ended = find_job(workspace, number)
        _echo_job(workspace, ended)
    if ended.state != "succeeded":
        raise typer.Exit(1)


def _run_or_wait(workspace: Workspace, number: int) -> None:
    """Run the job here, or wait while the process that uses the home does; that one may run
    something else, so the home is tried again while the job is queued.
    """
    driver, is_told = load_driver(workspace.settings), False
    while not driver.train():
        if not is_told:
            echo(
                "Another process uses this home. It runs the job, or this one does afterwards. "
                "Ctrl-C ends the waiting."
            )
        is_told = True
        while (job := find_job(workspace, number)).state in ("running", "cancelling"):
            time.sleep(WAIT_S)
        if job.state != "queued":
            return
        time.sleep(WAIT_S)


@app.command("jobs")
def list_jobs(as_json: AsJson = False) -> None:
    """List the training jobs, newest first: when, by whom, strategy and state."""
    jobs = read_jobs(Workspace.open())[::-1]
    if as_json:
        show_json([job.model_dump(mode="json") for job in jobs])
        return
    show(
        [_build_row(job) for job in jobs],
        title=f"{format_count(len(jobs), 'training job')}, all times in UTC",
        empty="No training was ordered yet. `rlhf policy train` orders one.",
    )


@app.command("status")
def status(job: JobId, as_json: AsJson = False) -> None:
    """Show the state of a job, its loss, learning rate, tokens, time and cost so far, and what each
    stage made.
    """
    workspace = Workspace.open()
    training_job = find_job(workspace, job)
    if not as_json:
        _echo_job(workspace, training_job)
        return
    stages = read_stages(workspace, training_job)
    figures = read_job_figures(training_job, stages)
    show_json(
        training_job.model_dump(mode="json")
        | {
            "figures": None if figures is None else figures.model_dump(mode="json"),
            "stages": [stage.model_dump(mode="json") for stage in stages],
        }
    )


@app.command("cancel")
def cancel(
    job: JobId,
    reason: Annotated[str, typer.Option(help="Why; kept with the decision.")] = "no reason given",
) -> None:
    """Cancel a job: its run ends within 5 seconds. The champion stays; the same order later goes on
    from the last checkpoint.
    """
    workspace = Workspace.open()
    training_job = find_job(workspace, job)
    if training_job.state in ENDED:
        raise ConfigurationError(
            f"Job {job} is {_describe_state(training_job)}: nothing to cancel."
        )
    workspace.store.training_jobs.cancel(
        job, reason=reason.strip(), actor=ACTOR, now=datetime.now(UTC)
    )
    deadline = time.monotonic() + CANCEL_S
    while True:
        training_job = find_job(workspace, job)
        if training_job.state in ENDED or time.monotonic() > deadline:
            break
    echo(f"job {job} {training_job.state}")
    if training_job.state not in ENDED:
        echo(
            f"Its run {training_job.run.run_id[:8] if training_job.run else ''} has not ended "
            "yet: it stops at the end of the operation that it is in."
        )
        raise typer.Exit(1)


def read_jobs(workspace: Workspace, only: int | None = None) -> list[TrainingJob]:
    """All jobs, or one of them, oldest first."""
    settings, store = workspace.settings, workspace.store
    decisions = store.decisions.all()
    orders = [d for d in list_orders(decisions) if only in (None, d.decision_id)]
    answers: dict[int | None, TriggerDecision] = {
        decision.answers: decision for decision in decisions
    }
    runs = _read_runs(workspace, orders)
    jobs = []
    for decision in orders:
        run = runs.get(decision.stored_id)
        beat = store.heartbeats.get(run.run_id) if run else None
        jobs.append(
            build_job(
                decision,
                run,
                cancellation=answers.get(decision.decision_id),
                beat_at=beat.at if beat else None,
                now=datetime.now(UTC),
                dead_after=timedelta(seconds=settings.dead_after_seconds),
            )
        )
    return jobs


def _read_runs(workspace: Workspace, orders: Sequence[TriggerDecision]) -> dict[int, JobRun]:
    if not orders:
        return {}
    ids = [order.stored_id for order in orders]
    runs: dict[int, JobRun] = load_driver(workspace.settings).read_job_runs(ids)
    return runs


def find_job(workspace: Workspace, job_id: int) -> TrainingJob:
    jobs = read_jobs(workspace, job_id)
    if not jobs:
        raise NotFound(f"There is no training job {job_id}. `rlhf policy jobs` lists them.")
    return jobs[0]


def read_stages(workspace: Workspace, job: TrainingJob) -> list[TrackedRun]:
    """The tracked runs of the job's stages, in the order in which they started."""
    if job.run is None:
        return []
    return workspace.registry.latest_runs(20, pipeline_run=job.run.run_id)[::-1]


def read_job_figures(job: TrainingJob, stages: Sequence[TrackedRun]) -> JobFigures | None:
    trained = [stage for stage in stages if stage.tags.get("dagster.asset") == CANDIDATE]
    if not trained:
        return None
    ended = trained[-1].ended_at or (job.run and job.run.ended_at) or datetime.now(UTC)
    return read_figures(
        trained[-1].metrics,
        (ended - trained[-1].started_at).total_seconds(),
        job.order.stages[CANDIDATE].get("usd_per_hour"),
    )


def _order(
    workspace: Workspace, order: TrainingOrder, reason: str
) -> tuple[int, TrainingJob | None]:
    """The number of the job, and the job itself if it was ordered before."""
    training_jobs = workspace.store.training_jobs
    place = partial(training_jobs.order, order, reason=reason, actor=ACTOR, now=datetime.now(UTC))
    decision, is_new = place()
    if is_new:
        return decision.stored_id, None
    job = find_job(workspace, decision.stored_id)
    if order.key is not None or job.state not in ENDED or job.run is None:
        return job.job_id, job
    # it has ended, and no sensor has recorded that yet
    training_jobs.mark_submitted(job.job_id, decision.attempt, job.run.run_id)
    training_jobs.mark_finished(job.job_id, succeeded=job.state == "succeeded", error=job.run.error)
    decision, is_new = place()
    return decision.stored_id, None if is_new else find_job(workspace, decision.stored_id)


def _build_row(job: TrainingJob) -> dict[str, str]:
    started, ended = (job.run.started_at, job.run.ended_at) if job.run else (None, None)
    took = (ended or datetime.now(UTC)) - started if started else None
    return {
        "job": str(job.job_id),
        "ordered": f"{job.ordered_at:%Y-%m-%d %H:%M}",
        "strategy": job.order.strategy,
        "state": job.state,
        "took": "-" if took is None else _format_seconds(took.total_seconds()),
        "run": job.run.run_id[:8] if job.run else "-",
        "key": job.order.key or "-",
        "reason": job.reason,
    }


def _echo_job(workspace: Workspace, job: TrainingJob) -> None:
    stages = read_stages(workspace, job)
    echo(f"job {job.job_id}, ordered {job.ordered_at:%Y-%m-%d %H:%M} UTC: {_describe_state(job)}")
    for stage, own in list_set_parameters(job.order):
        echo(f"  {stage}: {', '.join(f'{name} {value}' for name, value in own.items())}")
    if job.run is not None and job.run.error and job.state == "failed":
        echo(f"  {job.run.error}")
    echo_cure(job)
    if figures := read_job_figures(job, stages):
        for line in _describe_figures(figures, has_ended=job.state in ENDED):
            echo(f"  {line}")
    for verdict in (stage.metrics["promoted"] for stage in stages if "promoted" in stage.metrics):
        echo(f"  the gate {'promoted' if verdict else 'did not promote'} the candidate")
    show(
        [
            {
                "stage": stage.tags.get("dagster.asset", stage.name),
                "started": f"{stage.started_at:%H:%M:%S}",
                "status": stage.status.lower(),
                "numbers": ", ".join(_list_numbers(stage)[:SHOWN_NUMBERS]),
            }
            for stage in stages
        ],
        title=f"stages of run {job.run.run_id[:8]}" if job.run else "",
        empty="Its run has not begun." if job.state == "queued" else "No stage has begun.",
    )


def echo_cure(job: TrainingJob) -> None:
    """Print how to go on after a job that ended early; nothing for others."""
    if job.state == "lost":
        echo(
            f"Its process is gone. `rlhf policy cancel {job.job_id}`, then {_describe_order(job)}."
        )
    if job.state == "failed":
        echo(
            "It is not repeated by itself. To go on from its last checkpoint, "
            f"{_describe_order(job)}."
        )


def _describe_order(job: TrainingJob) -> str:
    """How to order the same training once this job has ended: its key names this one for good."""
    key = job.order.key
    return "order it again" if key is None else f"order it again with another --key than {key}"


def _list_numbers(run: TrackedRun) -> list[str]:
    figures = ((name, n) for name, n in run.metrics.items() if not name.startswith("training_"))
    return [f"{name} {value:.4g}" for name, value in figures]


def _describe_state(job: TrainingJob) -> str:
    is_cancelled = job.state in ("cancelling", "cancelled")
    return f"{job.state} by {job.cancelled_by}" if is_cancelled and job.cancelled_by else job.state


def _describe_figures(figures: JobFigures, *, has_ended: bool) -> Iterator[str]:
    rest = "" if has_ended else f", about {_format_seconds(figures.seconds_left)} left"
    yield f"step {figures.step} of {figures.n_steps} in {_format_seconds(figures.seconds)}{rest}"
    values: dict[str, Any] = {
        "loss": f"{figures.loss:.3f}",
        "learning rate": None if figures.learning_rate is None else f"{figures.learning_rate:.3g}",
        "tokens": None if figures.n_tokens is None else f"{figures.n_tokens:,}",
        "cost": None if figures.cost_usd is None else f"{figures.cost_usd:.2f} USD",
    }
    yield ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
