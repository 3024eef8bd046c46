"""`rlhf users`: users, their roles and tokens. Passwords are set in the web app."""

from datetime import timedelta
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.records import Role, User
from rlhf_pipeline.web.permissions import Permission, permissions_of

ACTOR = "rlhf users"  # in the audit chain: access to the home makes an admin
LOGIN_LINK_LASTS = timedelta(hours=24)

app = typer.Typer(help="People and services that may log in.", no_args_is_help=True)
Email = Annotated[
    str, typer.Argument(help="E-mail address, which is the login.", show_default=False)
]


@app.command("add")
def add(
    email: Email,
    name: Annotated[str, typer.Option(help="Shown to admins; default the address.")] = "",
    role: Annotated[
        list[Role] | None,
        typer.Option(help="Role of the user; may be repeated. Default: annotator."),
    ] = None,
    service: Annotated[
        bool,
        typer.Option(
            "--service", help="The user is a program: it gets tokens instead of a login link."
        ),
    ] = False,
) -> None:
    """Add a user and print a one-time login link, valid for a day."""
    workspace = Workspace.open_current()
    user = workspace.store.users.add(
        email=email,
        name=name,
        roles=role or [Role.ANNOTATOR],
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
    """List all users with their roles, including disabled ones."""
    workspace = Workspace.open_current()
    groups = workspace.store.annotator_groups.all()
    rows = [
        {
            "e-mail": user.email,
            "name": user.name,
            "user id": user.user_id,
            "kind": user.kind,
            "roles": _format_roles(user) or "none",
            "group": groups.get(user.user_id, ""),
            "login": "disabled"
            if user.disabled_at
            else "paused"
            if user.paused_at
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


@app.command("token")
def token(
    email: Email,
    name: Annotated[
        str, typer.Option(help="Purpose of the token; shown in the list of tokens.")
    ] = "command line",
    scope: Annotated[
        list[Permission] | None,
        typer.Option(
            help="Permission of the token; may be repeated. Default: all permissions of its owner."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Days until it expires.")] = 90,
) -> None:
    """Print a new API token. It is shown only once: the store keeps its hash."""
    workspace = Workspace.open_current()
    user = _get_user(workspace, email)
    beyond = sorted(set(scope or ()) - permissions_of(user.roles))
    if beyond:
        raise ConfigurationError(
            f"{user.email} has no permission {', '.join(beyond)}, so a token cannot carry it. Give "
            "them a role first."
        )
    secret, record = workspace.store.tokens.issue(
        user.user_id,
        kind="api",
        lifetime=timedelta(days=days),
        actor=ACTOR,
        name=name,
        scopes=None if scope is None else [*scope],
    )
    echo(secret)
    # on stderr, so that a pipe receives only the token
    echo(f"token {record.token_id} of {user.email}, ends {record.expires_at:%Y-%m-%d}", err=True)


@app.command("group")
def set_group(
    email: Email,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The group; without it, votes belong to that of their origin.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Place a user in a group of annotators, by which the page *preferences* compares votes."""
    workspace = Workspace.open_current()
    user = _get_user(workspace, email)
    group = None if name is None else name.strip() or None
    n_changed = workspace.store.annotator_groups.assign({user.user_id: group}, actor=ACTOR)
    place = f"in group {group}" if group else "in no named group"
    echo(f"{_describe_user(user)} {'is now' if n_changed else 'was already'} {place}")


@app.command("login-link")
def login_link(email: Email) -> None:
    """Print a one-time login link, valid for a day."""
    workspace = Workspace.open_current()
    _print_login_link(workspace, _get_user(workspace, email))


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
        f"{workspace.settings.web_url.rstrip('/')}/login?token={secret}"
    )
    if "web_url" not in workspace.settings.model_fields_set:
        echo(
            "If `rlhf serve` or `rlhf dev` has another port, write it into the link.",
            err=True,
        )


def _describe_user(user: User) -> str:
    return f"{user.email} ({user.user_id}), {_format_roles(user) or 'no role'}"


def _format_roles(user: User) -> str:
    return ", ".join(user.roles)
