"""`rlhf users`: who may log in, as what, with which tokens. Knows the store's users; passwords are
set on the page.
"""

from datetime import timedelta
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.cli.web_servers import find_web_address
from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.permissions import Permission, permissions_of
from rlhf_pipeline.records import Role, User

ACTOR = "rlhf users"  # in the audit chain: whoever may run this here is admin
LOGIN_LINK_LASTS = timedelta(hours=24)

app = typer.Typer(help="People and services that may log in.", no_args_is_help=True)
Organisation = Annotated[
    bool,
    typer.Option(
        "--organisation",
        help="In every project of the organisation that this store holds, not in this one alone.",
    ),
]
Email = Annotated[
    str, typer.Argument(help="The e-mail address, which is the login.", show_default=False)
]


@app.callback()
def group() -> None:
    """People and services that may log in."""


@app.command("add")
def add(
    email: Email,
    name: Annotated[str, typer.Option(help="Shown to admins; default the address.")] = "",
    role: Annotated[
        list[Role] | None, typer.Option(help="May be repeated; default annotator.")
    ] = None,
    service: Annotated[
        bool,
        typer.Option(
            "--service", help="A program, not a person: it gets no login link, only tokens."
        ),
    ] = False,
    organisation: Organisation = False,
) -> None:
    """Add somebody and print a link that logs its first visitor in, once, within a day."""
    workspace = _open_workspace()
    here, everywhere = (
        ([], role or [Role.ANNOTATOR]) if organisation else (role or [Role.ANNOTATOR], [])
    )
    user = workspace.store.users.add(
        email=email,
        name=name,
        roles=here,
        organization_roles=everywhere,
        kind="service" if service else "person",
        actor=ACTOR,
    )
    echo(f"added {_describe_user(user)}")
    if service:
        echo(f"give it a token: rlhf users token {user.email} --name NAME")
    else:
        _print_login_link(workspace, user)


@app.command("list")
def list_users() -> None:
    """Everybody, with roles; disabled ones too."""
    workspace = _open_workspace()
    rows = [
        {
            "e-mail": user.email,
            "name": user.name,
            "user id": user.user_id,
            "kind": user.kind,
            "roles": _format_roles(user) or "none",
            "login": "disabled"
            if user.disabled_at
            else "password"
            if user.has_password
            else "by link",
        }
        for user in workspace.store.users.all()
    ]
    empty = (
        f"No users yet in {workspace.settings.home}. `rlhf serve` makes the first admin, or "
        "`rlhf users add`."
    )
    show(rows, title=f"users of {workspace.settings.project}", empty=empty)


@app.command("roles")
def roles(
    email: Email,
    role: Annotated[
        list[Role] | None,
        typer.Argument(
            help="Exactly these from now on; none with --organisation takes them all.",
            show_default=False,
        ),
    ] = None,
    organisation: Organisation = False,
) -> None:
    """Say which roles somebody has in this project, or in all of the organisation; those that are
    not named are taken away there.
    """
    if not role and not organisation:
        raise ConfigurationError(
            "Which roles? Name at least one, or `rlhf users disable` for somebody who may do "
            "nothing any more."
        )
    workspace = _open_workspace()
    before, users = _get_user(workspace, email), workspace.store.users
    change = users.set_organization_roles if organisation else users.set_roles
    user = change(before.user_id, role or [], actor=ACTOR)
    echo(f"{_describe_user(user)}: {', '.join(sorted(permissions_of(user.all_roles)))}")
    if user.in_every_project and not before.in_every_project:
        echo("an account of the organisation from now on: its password, sessions and tokens ended")
        if user.kind == "person":
            _print_login_link(workspace, user)


@app.command("token")
def token(
    email: Email,
    name: Annotated[
        str, typer.Option(help="What it is for; shown in the list of tokens.")
    ] = "command line",
    scope: Annotated[
        list[Permission] | None,
        typer.Option(
            help="Permission it carries; may be repeated. Default: all that its owner has."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Until it ends.")] = 90,
) -> None:
    """Print a new API token. It is shown this once: nobody can read it from the store."""
    workspace = _open_workspace()
    user = _get_user(workspace, email)
    beyond = sorted(set(scope or ()) - permissions_of(user.all_roles))
    if beyond:
        raise ConfigurationError(
            f"{user.email} has no permission {', '.join(beyond)}, so a token cannot carry it. Give "
            "them a role first."
        )
    secret, made = workspace.store.tokens.issue(
        user.user_id,
        kind="api",
        lifetime=timedelta(days=days),
        actor=ACTOR,
        name=name,
        scopes=None if scope is None else [*scope],
    )
    echo(secret)
    # not into what is piped onwards
    echo(f"token {made.token_id} of {user.email}, ends {made.expires_at:%Y-%m-%d}", err=True)


@app.command("disable")
def disable(email: Email) -> None:
    """No login and no token of theirs works from now on; their votes stay."""
    workspace = _open_workspace()
    user = workspace.store.users.disable(_get_user(workspace, email).user_id, actor=ACTOR)
    echo(f"disabled {_describe_user(user)}")


@app.command("enable")
def enable(email: Email) -> None:
    """Let somebody in again who was disabled; tokens that were taken stay so."""
    workspace = _open_workspace()
    user = workspace.store.users.enable(_get_user(workspace, email).user_id, actor=ACTOR)
    echo(f"enabled {_describe_user(user)}")


@app.command("login-link")
def login_link(email: Email) -> None:
    """Print a link that logs its first visitor in, once, within a day."""
    workspace = _open_workspace()
    _print_login_link(workspace, _get_user(workspace, email))


def _open_workspace() -> Workspace:
    workspace = Workspace.from_environment()
    workspace.store.migrate()
    return workspace


def _get_user(workspace: Workspace, email: str) -> User:
    user = workspace.store.users.with_email(email)
    if user is None:
        raise NotFound(
            f"There is no user with e-mail {email!r} in project {workspace.settings.project!r}. "
            "`rlhf users list` names them."
        )
    return user


def _print_login_link(workspace: Workspace, user: User) -> None:
    secret, _ = workspace.store.tokens.issue(
        user.user_id, kind="login", lifetime=LOGIN_LINK_LASTS, actor=ACTOR
    )
    echo(
        "login link, once, within 24 hours: "
        f"{find_web_address(workspace.settings).rstrip('/')}/login?token={secret}"
    )


def _describe_user(user: User) -> str:
    return f"{user.email} ({user.user_id}), {_format_roles(user) or 'no role'}"


def _format_roles(user: User) -> str:
    return ", ".join(
        [*user.roles, *(f"{role} in every project" for role in user.organization_roles)]
    )
