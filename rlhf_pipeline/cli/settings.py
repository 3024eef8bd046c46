"""`rlhf settings`: the loop settings in `rlhf.yaml`, their stored versions, and whether the file is
valid.
"""

from typing import cast

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.config import CONFIG, HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import CandidateParams, LoopSettings
from rlhf_pipeline.improve.retraining.strategies import check_batch

app = typer.Typer(help="Loop settings: whether rlhf.yaml is valid.", no_args_is_help=True)


@app.command("check")
def check_settings() -> None:
    """Check the settings and the targets of alerts; exit with 1 and the problem if a run could not
    use them. A file that `rlhf init` has not recorded yet is checked too.
    """
    from rlhf_pipeline.watch.alerts.channels import check_target
    from rlhf_pipeline.watch.alerts.rounds import read_plan

    settings = Workspace.from_environment(initialising=True).settings
    loop = LoopSettings.read(settings)
    n = sum(map(len, loop.given.values()))
    candidate = cast(CandidateParams, loop.params("candidate_model"))
    if candidate.params_file:
        check_batch(candidate.strategy, candidate.training_params())
    for target in settings.alert_targets:
        check_target(target)
    plan = read_plan(settings)
    if plan.problem:
        raise ConfigurationError(plan.problem)
    facts = HomeFacts.load(settings.home)
    is_recorded = facts is not None and facts.config == settings.config
    echo(
        f"{_describe_file(settings)} is valid; {n} loop parameters are set."
        + ("" if is_recorded else " `rlhf init` records it for the home.")
    )


def _describe_file(settings: Settings) -> str:
    return str(settings.config) if settings.config else f"no {CONFIG}"
