"""`rlhf models`: lists, promotes, exports and registers versions of models."""

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import AsJson, require_text
from rlhf_pipeline.cli.tables import echo, progress_bar, show, show_json
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import LARGEST, Interval, ModelVersion, Promotion
from rlhf_pipeline.core.releases import ReleaseAct, ReleaseEvent, find_deployed
from rlhf_pipeline.improve.model_card import write_markdown
from rlhf_pipeline.improve.policy_comparison import compare_versions
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.champions.champions import record_notices
from rlhf_pipeline.registry import Kind, ceiling_metric, is_accuracy
from rlhf_pipeline.reports.model_card import render_model_card
from rlhf_pipeline.web.lists import csv_lines
from rlhf_pipeline.web.permissions import Permission, permissions_of

app = typer.Typer(help="Models in the registry.", no_args_is_help=True)
Version = Annotated[
    str,
    typer.Argument(
        metavar="NAME@VERSION",
        help="A version or an alias, such as demo.policy@1 or demo.policy@candidate.",
    ),
]
Reason = Annotated[str, typer.Option(help="Why; kept in the history.", callback=require_text)]
Request = Annotated[
    int,
    typer.Argument(min=1, max=LARGEST, metavar="REQUEST", help="Number in `rlhf models requests`."),
]
By = Annotated[
    str | None,
    typer.Option(help="E-mail of the person who does it; default: only this command is named."),
]
Person = Annotated[str, typer.Option(help="E-mail of the person who answers.")]

# The metrics worth a column, most informative first; those a version does not have are left out.
SHOWN: dict[Kind, tuple[str, ...]] = {
    "policy": (
        "reward_accuracy",
        "noise_ceiling",
        "reward_margin",
        "token_accuracy",
        "final_loss",
        "n_pairs",
        "seconds",
    ),
    "reward_model": (
        "test_accuracy_since_change",
        "test_vote_accuracy_since_change",
        "noise_ceiling_since_change",
        "test_accuracy",
        "test_vote_accuracy",
        "noise_ceiling",
        "longer_wins",
        "test_log_loss",
        "n_train",
    ),
}
# If a version has both metrics, only the first is shown.
STANDS_FOR = (
    ("test_accuracy_since_change", "test_accuracy"),
    ("test_vote_accuracy_since_change", "test_vote_accuracy"),
)


@app.command("list")
def list_models() -> None:
    """List every version with its state, its aliases, its parent and its metrics at
    registration.
    """
    workspace = Workspace.open()
    rows = [
        {
            "model": model.label,
            "semver": model.semver,
            "state": model.state,
            "aliases": ", ".join(model.aliases),
            "parent": model.parent or "-",
            "registered": f"{model.created_at:%Y-%m-%d %H:%M}",
            "files": "kept" if model.removed_at is None else f"removed {model.removed_at:%Y-%m-%d}",
            "metrics": format_metrics(model.kind, model.metrics),
        }
        for model in _open_releases(workspace).list_models()
    ]
    empty = f"No models yet in {workspace.settings.home}. `rlhf init` registers the first policy."
    show(rows, title=f"models of {workspace.settings.project}", empty=empty)


@app.command("promote")
def promote(
    model: Version,
    reason: Reason,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Promote even a version that was refused, by the gate or as a reward model; the "
            "refusal is kept with the reason.",
        ),
    ] = False,
    by: By = None,
) -> None:
    """Make a version the champion, in the registry and in the history of promotions; where
    `loop.release` asks for approval, request it.
    """
    workspace = Workspace.open()
    releases = _open_releases(workspace)
    is_approved = releases.params.approval == "required"
    actor = _find_actor(workspace, by, "rlhf models promote", is_required=is_approved)
    version = workspace.champions.find(model)[1]
    before = workspace.store.promotions.champion(version.name)
    result = releases.deploy(version.label, reason=reason, actor=actor, is_forced=force)
    if isinstance(result, ReleaseAct):
        echo(f"{version.label} waits for an approver: `rlhf models approve {result.act_id}`")
    elif before is not None and before.label == version.label:
        echo(f"{version.label} is champion already")
    else:
        _print_champion(result)


@app.command("rollback")
def roll_back(
    reason: Reason,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Default: the policy of the project.", show_default=False
        ),
    ] = None,
    by: By = None,
) -> None:
    """Deploy the version that was deployed before the present one, at once. Repeated, it goes
    further back and passes over what was rolled back or archived.
    """
    workspace = Workspace.open()
    promotion = _open_releases(workspace).roll_back(
        name or f"{workspace.settings.project}.policy",
        reason=reason,
        actor=_find_actor(workspace, by, "rlhf models rollback"),
    )
    _print_champion(promotion)


@app.command("history")
def show_history(
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"],
            help="Only what was deployed at this time, in UTC.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with every column.")] = False,
) -> None:
    """Show deployments, roll backs, requests, their answers and archived versions, oldest first."""
    workspace = Workspace.open()
    events = _open_releases(workspace).list_events()
    if at is not None:
        events = find_deployed(events, at.replace(tzinfo=UTC))
    if as_json:
        show_json([event.model_dump(mode="json") for event in events])
        return
    if as_csv:
        for lines in csv_lines(list(ReleaseEvent.model_fields), events):
            echo(lines, nl=False)
        return
    rows = [
        {
            "at": f"{event.at:%Y-%m-%d %H:%M}",
            "act": event.act,
            "model": event.model,
            "instead of": event.replaces or "-",
            "by": event.actor,
            "reason": event.reason,
        }
        for event in events
    ]
    show(rows, title="releases, all times in UTC", empty="Nothing was deployed.")


@app.command("card")
def card(
    model: Version,
    html: Annotated[
        bool, typer.Option("--html", help="As a page to print, instead of Markdown.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there, not to the terminal.")
    ] = None,
) -> None:
    """Print the model card of a policy: what it was made of, its figures, checks, releases and
    limits.
    """
    described = _open_releases(Workspace.open()).describe(model)
    text = render_model_card(described) if html else write_markdown(described)
    if out is None:
        echo(text, nl=False)
        return
    write_atomically(out, text.encode())
    echo(f"model card of {described.label} in {out}")


@app.command("compare")
def compare(first: Version, second: Version) -> None:
    """Compare any two policies on the evaluation set by the champion reward model: the second
    against the first, overall, by category and by dimension. The page Compare shows the texts.
    """
    workspace = Workspace.open()
    champions = workspace.champions
    versions = (champions.find(label)[1] for label in (first, second))
    with progress_bar("compare") as progress:
        result = compare_versions(champions, workspace.settings, *versions, progress=progress)
    difference = result.mean_reward_candidate.value - result.mean_reward_champion.value
    parts: list[tuple[str, Interval | None, Interval | str | None]] = [
        ("all prompts", result.win_rate, f"{difference:.3f}")
    ]
    for category in result.by_category:
        parts.append((category.category, category.win_rate, category.reward_difference))
    for dimension in result.by_dimension:
        parts.append((dimension.head.dimension, dimension.win_rate, dimension.score_difference))
    rows = [
        {
            "part": part,
            "win rate": str(rate or "no head"),
            "score difference": str(difference or "-"),
        }
        for part, rate, difference in parts
    ]
    title = f"{result.candidate} against {result.champion} by {result.reward_model}"
    show(rows, title=title, empty="")


@app.command("requests")
def list_requests() -> None:
    """List the releases that wait for an approver, with their checklists."""
    rows = [
        {
            "request": str(request.act_id),
            "model": request.label,
            "instead of": str(request.replaces),
            "asked": f"{request.acted_at:%Y-%m-%d %H:%M}",
            "by": request.actor,
            "reason": request.reason,
            "checklist": "; ".join(request.checklist),
        }
        for request in _open_releases(Workspace.open()).list_waiting()
    ]
    show(rows, title="releases that wait for an approver", empty="No release waits.")


@app.command("approve")
def approve(
    request: Request,
    reason: Reason,
    by: Person,
    checked: Annotated[
        list[str] | None,
        typer.Option(help="A line of the checklist that holds; repeat it for each."),
    ] = None,
) -> None:
    """Approve a release as its second person: the version is deployed."""
    workspace = Workspace.open()
    actor = _find_actor(workspace, by, "")
    promotion = _open_releases(workspace).approve(
        request, reason=reason, actor=actor, ticked=checked or ()
    )
    _print_champion(promotion)


@app.command("reject")
def reject(request: Request, reason: Reason, by: Person) -> None:
    """Reject a release that waits."""
    workspace = Workspace.open()
    actor = _find_actor(workspace, by, "")
    act = _open_releases(workspace).reject(request, reason=reason, actor=actor)
    echo(f"release request {request} of {act.label} is rejected")


@app.command("archive")
def archive(
    model: Version,
    reason: Reason,
    restore: Annotated[
        bool, typer.Option("--restore", help="Allow an archived version to be deployed again.")
    ] = False,
    by: By = None,
) -> None:
    """Archive a version: it can neither be deployed nor rolled back to. Its files stay."""
    workspace = Workspace.open()
    actor = _find_actor(workspace, by, "rlhf models archive")
    releases = _open_releases(workspace)
    act = releases.archive(model, reason=reason, actor=actor, is_restored=restore)
    echo(f"{act.label} is {'restored' if restore else 'archived'}")


@app.command("export")
def export(
    model: Version,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
) -> None:
    """Copy a version's files into a folder; that of a policy is one that transformers loads."""
    workspace = Workspace.open()
    kind, version = workspace.champions.find(model)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty. Name a new folder.")
    source = workspace.registry.fetch_folder(version, workspace.settings.cache / "models")
    # beside it, so that a killed export leaves no folder that looks whole
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    partial.replace(folder)
    how = f'AutoModelForCausalLM.from_pretrained("{folder}")' if kind == "policy" else "its files"
    echo(f"{version.label} in {folder}: {how}")


@app.command("register")
def register(
    kind: Annotated[
        Literal["policy"], typer.Argument(metavar="policy", help="Only policies come from outside.")
    ],
    source: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Folder or hub id of a causal LM for transformers."),
    ],
    reason: Reason,
) -> None:
    """Register a policy that was made elsewhere. It serves only after `rlhf models promote`."""
    workspace = Workspace.open()
    version = workspace.champions.register_policy(
        source, {"stage": "rlhf models register", "rlhf.reason": reason, "rlhf.source": source}
    )
    for notice in record_notices(workspace.settings.home, version):
        echo(f"Notice: {notice}.", fg=typer.colors.YELLOW)
    echo(
        f"{version.label} is registered. To let it complete prompts: "
        f'rlhf models promote {version.label} --reason "…"'
    )


def format_metrics(kind: Kind, metrics: Mapping[str, float]) -> str:
    """The metrics of `SHOWN` that there are, in its order; beside an accuracy the noise ceiling of
    the same votes, or that it is unknown.
    """
    stood_for = {worse for better, worse in STANDS_FOR if better in metrics}
    present = [key for key in SHOWN[kind] if key in metrics and key not in stood_for]
    ceilings = {ceiling_metric(key) for key in present if is_accuracy(key)}
    keys = [
        key
        for key in SHOWN[kind]
        if key in ceilings or (key in present and not key.startswith("noise_ceiling"))
    ]
    return ", ".join(
        f"{key} {_format_metric(metrics[key]) if key in metrics else 'unknown'}" for key in keys
    )


def _format_metric(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # no powers of ten for counts


def find_reward_model(champions: Champions, label: str) -> ModelVersion:
    """`Champions.find` that refuses a policy."""
    kind, version = champions.find(label)
    if kind != "reward_model":
        raise ConfigurationError(
            f"{label} is a {kind}; name a reward model. `rlhf models list` shows them."
        )
    return version


def _open_releases(workspace: Workspace) -> Releases:
    return Releases(workspace.champions, workspace.settings)


def _print_champion(promotion: Promotion) -> None:
    before = promotion.previous_version
    was = "none" if before is None else f"{promotion.model_name}@{before}"
    echo(f"{promotion.label} is champion, before it {was}")


def _find_actor(
    workspace: Workspace, email: str | None, command: str, *, is_required: bool = False
) -> str:
    """The id of the user with this e-mail, or without one the command. Raises ConfigurationError
    for a user who may not deploy.
    """
    if email is None:
        if is_required:
            raise ConfigurationError(
                "This project asks for a second person, so each release names who asked for it: "
                "add --by EMAIL."
            )
        return command
    user = workspace.store.users.with_email(email)
    if user is None or Permission.MODELS_PROMOTE not in permissions_of(user.roles):
        raise ConfigurationError(
            f"{email} has no permission {Permission.MODELS_PROMOTE}. Name a user with the role "
            "approver: `rlhf users list`."
        )
    return user.user_id
