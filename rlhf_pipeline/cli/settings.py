"""`rlhf settings`: the loop settings in `rlhf.yaml`, their stored versions, and whether the file is
valid.
"""

from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.config import CONFIG, HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import PARTS, LoopSettings, describe_changes
from rlhf_pipeline.web.effective_settings import list_parameters

app = typer.Typer(
    help="Loop settings: what every run uses, as rlhf.yaml sets it.", no_args_is_help=True
)


@app.command("show")
def show_settings(
    part: Annotated[
        str, typer.Argument(help="Such as gate. Default: what the file sets.", show_default=False)
    ] = "",
    version: Annotated[
        int | None, typer.Option(min=0, help="A stored version instead of the file.")
    ] = None,
) -> None:
    """Show the parameters of one part with their values, defaults and meaning, or all that differ
    from their defaults. Without a home, those that `rlhf init` would use.
    """
    workspace = (
        Workspace.from_environment(initialising=True) if version is None else Workspace.open()
    )
    if version is None:
        loop, origin = LoopSettings.read(workspace.settings), _describe_file(workspace.settings)
    else:
        loop = LoopSettings(workspace.store.loop_settings.get(version).given)
        origin = f"version {version}"
    if not part:
        changes = describe_changes({}, loop.given)
        show(
            [dict(zip(("parameter", "change"), c.split(": ", 1), strict=True)) for c in changes],
            title=f"loop settings, {origin}",
            empty=f"Every parameter is at its default ({origin}).",
        )
        echo(f"Parts: {', '.join(PARTS)}. `rlhf settings show PART` lists all parameters of one.")
        return
    if part not in PARTS:
        raise ConfigurationError(f"No part {part!r}. Parts: {', '.join(PARTS)}.")
    rows = [
        {
            "parameter": each.name,
            "value": each.value,
            "default": "" if each.value == each.default else each.default,
            "meaning": each.meaning,
        }
        for each in list_parameters(loop, part)
    ]
    show(rows, title=f"{part}, {origin}", empty="")


@app.command("check")
def check_settings() -> None:
    """Check the settings and the targets of alerts; exit with 1 and the problem if a run could not
    use them. A file that `rlhf init` has not recorded yet is checked too.
    """
    from rlhf_pipeline.watch.alerts.channels import check_target
    from rlhf_pipeline.watch.alerts.rounds import read_plan

    settings = Workspace.from_environment(initialising=True).settings
    n = len(describe_changes({}, LoopSettings.read(settings).given))
    for target in settings.alert_targets:
        check_target(target)
    plan = read_plan(settings)
    if plan.problem:
        raise ConfigurationError(plan.problem)
    facts = HomeFacts.load(settings.home)
    is_recorded = facts is not None and facts.config == settings.config
    echo(
        f"{_describe_file(settings)} is valid; {n} loop parameters differ from their defaults."
        + ("" if is_recorded else " `rlhf init` records it for the home.")
    )


def _describe_file(settings: Settings) -> str:
    return str(settings.config) if settings.config else f"no {CONFIG}"
