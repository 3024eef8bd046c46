"""`rlhf experiments`: compares two served versions on a share of the chats."""

from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import list_faults, require_text
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.experiments import (
    RAMP,
    Experiment,
    ExperimentChange,
    ExperimentMetric,
    NewExperiment,
)
from rlhf_pipeline.improve.experiments import Experiments
from rlhf_pipeline.improve.releases import Releases

app = typer.Typer(help="Experiments on served versions.", no_args_is_help=True)
ACTOR = "rlhf experiments"
M = TypeVar("M", bound=BaseModel)
Number = Annotated[
    int, typer.Argument(min=1, metavar="NUMBER", help="Number in `rlhf experiments list`.")
]
Reason = Annotated[str, typer.Option(help="Why; kept in the history.", callback=require_text)]


def _open() -> Experiments:
    workspace = Workspace.open()
    experiments = Experiments(Releases(workspace.champions, workspace.settings))
    experiments.refresh()
    return experiments


def _make(kind: type[M], **fields: object) -> M:
    """Raises typer.BadParameter for texts that it does not take."""
    try:
        return kind.model_validate(fields)
    except ValidationError as cause:
        raise typer.BadParameter(list_faults(cause)) from None


@app.command("list")
def list_experiments() -> None:
    """List experiments with their versions, share of the treatment and winner."""
    rows = [
        {
            "number": str(experiment.experiment_id),
            "name": experiment.name,
            "status": experiment.status,
            "control": experiment.control_model_id,
            "treatment": experiment.treatment_model_id,
            "share": f"{experiment.traffic_split:.0%}",
            "metric": experiment.success_metric,
            "winner": experiment.winner or "-",
        }
        for experiment in _open().releases.champions.store.experiments.all()
    ]
    show(rows, title="experiments", empty="No experiment yet: `rlhf experiments start`.")


@app.command("start")
def start(
    treatment: Annotated[
        str, typer.Argument(metavar="NAME@VERSION", help="The version beside the deployed one.")
    ],
    name: Annotated[str, typer.Option(help="What it is about.", callback=require_text)],
    metric: Annotated[
        ExperimentMetric, typer.Option(help="Names the winner; fixed from now on.")
    ] = "satisfaction",
    share: Annotated[
        float, typer.Option(min=0.001, max=1, help="Of sessions, for the treatment.")
    ] = RAMP[0],
) -> None:
    """Let a second version answer a share of the chats."""
    new = _make(
        NewExperiment,
        name=name,
        treatment_model_id=treatment,
        success_metric=metric,
        traffic_split=share,
    )
    experiment = _open().create(new, actor=ACTOR)
    echo(
        f"experiment {experiment.experiment_id}: {experiment.treatment_model_id} answers "
        f"{share:.0%} of the sessions"
    )


@app.command("show")
def show_experiment(number: Number) -> None:
    """Print an experiment with its results as JSON, and how to deploy its treatment."""
    experiments = _open()
    stored = experiments.releases.champions.store.experiments.get(number)
    show_json(experiments.report(stored).model_dump(mode="json"))
    echo(f"To deploy its treatment: {_deployment(stored)}", err=True)


@app.command("extend")
def extend(
    number: Number,
    share: Annotated[float, typer.Argument(min=0.001, max=1, help="Larger than now.")],
) -> None:
    """Raise the treatment's share; its sessions keep it."""
    _open().change(number, ExperimentChange(traffic_split=share), actor=ACTOR)
    echo(f"the treatment of experiment {number} answers {share:.0%} of the sessions")


@app.command("pause")
def pause(number: Number) -> None:
    """Let the deployed version answer all sessions for a while."""
    _open().change(number, ExperimentChange(status="paused"), actor=ACTOR)
    echo(f"experiment {number} is paused: `rlhf experiments resume {number}` goes on")


@app.command("resume")
def resume(number: Number) -> None:
    """Go on after a pause, or start a draft; sessions get their version again."""
    experiment = _open().change(number, ExperimentChange(status="running"), actor=ACTOR)
    echo(f"the treatment answers {experiment.traffic_split:.0%} of the sessions")


@app.command("end")
def end(number: Number, reason: Reason) -> None:
    """End an experiment: its metric names the winner, and the deployed version answers all."""
    change = _make(ExperimentChange, status="completed", reason=reason)
    experiment = _open().change(number, change, actor=ACTOR)
    echo(
        f"experiment {number} has ended, winner: {experiment.winner}. To deploy its treatment: "
        + _deployment(experiment)
    )


@app.command("cancel")
def cancel(number: Number, reason: Reason) -> None:
    """Drop a draft, or end an experiment without a winner; the deployed version answers all."""
    change = _make(ExperimentChange, status="cancelled", reason=reason)
    _open().change(number, change, actor=ACTOR)
    echo(f"experiment {number} is cancelled")


def _deployment(experiment: Experiment) -> str:
    return f'rlhf models promote {experiment.treatment_model_id} --reason "…"'
