"""`rlhf run` and `rlhf loop`: jobs of the project in this process, once or as they fall due."""

from typing import Annotated, Literal

import typer

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings

StageChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STAGE.FIELD=VALUE",
        help="A parameter of a stage, such as prompts.n=50; an unknown one lists the known ones. "
        "Repeatable.",
    ),
]


def run(
    job: Annotated[
        Literal["collection", "feedback", "learning", "retraining"],
        typer.Argument(
            metavar="JOB",
            help="collection: prompts, completions and comparisons of a day. feedback: votes, "
            "reflection log and drift report of a day. learning: a reward model and its "
            "calibration. retraining: from a reward model to a gated candidate.",
        ),
    ],
    day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="The day; today by default.")
    ] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="YYYY-MM-DD", help="First of several days."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="Last of several days.")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why you retrain; required for retraining, kept with its decision.")
    ] = "",
    changes: StageChanges = None,
) -> None:
    """Run one job now, in this terminal, with one line per stage."""
    if day and (first or last):
        raise typer.BadParameter("give --day, or --from and --to", param_hint="--day")
    if job == "retraining" and not reason.strip():
        raise typer.BadParameter(
            "say why you retrain; the reason is kept with the decision", param_hint="--reason"
        )
    if job != "retraining" and reason:
        raise typer.BadParameter(f"{job} takes no reason", param_hint="--reason")
    load_driver(_prepare()).run(job, day or first, day or last, reason.strip(), changes or ())


def loop(
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing more is due, for cron.")
    ] = False,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts a day; the same as --set prompts.n=N.")
    ] = None,
    human_feedback_ratio: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of a day's comparisons that people judge."),
    ] = None,
    confidence_threshold: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            max=1,
            help="Confidence from which the reward model judges the rest of a day.",
        ),
    ] = None,
    monitor_drift: Annotated[
        bool, typer.Option(help="Retrain when drift is confirmed; the same as the sensor.")
    ] = True,
    changes: StageChanges = None,
) -> None:
    """Keep the project going in this terminal: collect, report, learn and retrain as it falls due.

    Does what Dagster's daemon does, without one, until Ctrl-C.
    """
    flags = {
        "prompts.n": num_prompts,
        "comparisons.human_feedback_ratio": human_feedback_ratio,
        "comparisons.confidence_threshold": confidence_threshold,
    }
    flag_changes = [f"{name}={value}" for name, value in flags.items() if value is not None]
    load_driver(_prepare()).loop(
        once=once, monitors_drift=monitor_drift, changes=[*flag_changes, *(changes or ())]
    )


def _prepare() -> Settings:
    workspace = Workspace.open()
    prepare(workspace)
    workspace.store.close()
    return workspace.settings
