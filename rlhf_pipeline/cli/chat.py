"""`rlhf chat`: talks to the deployed policy in a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TextIO
from uuid import uuid4

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.errors import ConfigurationError, ServerUnavailable
from rlhf_pipeline.core.records import Role

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass
class ChatSession:
    """One conversation."""

    client: "OpenAI"
    model: str
    lines: Iterator[str]
    out: TextIO
    session_id: str = field(default_factory=lambda: str(uuid4()))
    messages: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Answer lines until they end, or `/quit`."""
        from openai import OpenAIError

        echo(f"{self.model}. /quit ends", file=self.out)
        while True:
            echo("> ", nl=False, file=self.out)
            line = next(self.lines, "/quit").strip()
            if line == "/quit":
                return
            try:
                if line:
                    self.ask(line)
            except OpenAIError as cause:
                echo(f"\nnot done: {cause}", file=self.out)

    def ask(self, text: str) -> None:
        """Print the answer while it comes. One that fails leaves the conversation as it was."""
        messages = [*self.messages, {"role": "user", "content": text}]
        stream: Any = self.client.chat.completions.create(
            model=self.model,
            messages=messages,  # type: ignore[arg-type]
            metadata={"session_id": self.session_id},
            stream=True,
        )
        answer = ""
        for chunk in stream:
            piece = chunk.choices[0].delta.content or ""
            answer += piece
            echo(piece, nl=False, file=self.out)
        echo("", file=self.out)
        self.messages = [*messages, {"role": "assistant", "content": answer}]


def chat(
    url: Annotated[
        str | None,
        typer.Option(
            help="A running server, such as http://127.0.0.1:8080; default: the policy of this "
            "home, in this process."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TOKEN",
            help="A token for that server, with the scope serve.",
        ),
    ] = None,
) -> None:
    """Talk to the deployed policy; `/quit` ends."""
    if url is None:
        with _serve_home() as (own_url, own_token):
            _open_session(own_url, own_token).run()
    elif token is None:
        raise ConfigurationError("A server needs a token: --token, or the variable TOKEN.")
    else:
        _open_session(url, token).run()


def _open_session(url: str, token: str) -> ChatSession:
    """Raises ServerUnavailable where no server or no policy answers."""
    from openai import OpenAI, OpenAIError

    client = OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key=token)
    try:
        [model] = client.models.list().data
    except OpenAIError as cause:
        raise ServerUnavailable(f"{url} does not chat: {cause}") from cause
    lines = iter(sys.stdin.readline, "")
    return ChatSession(client, model.id, lines, sys.stdout)


@contextmanager
def _serve_home() -> Iterator[tuple[str, str]]:
    """The address of a server in this process, and a token of the first admin until it ends."""
    from rlhf_pipeline.web.app import create_app
    from rlhf_pipeline.web.auth import create_first_admin
    from rlhf_pipeline.web.server import WebServer

    workspace = Workspace.open()
    settings, store = workspace.settings, workspace.store
    if (admin := create_first_admin(store, settings)) is not None:
        email, link = admin  # no later start prints it
        echo(f"made the first admin, {email}: log in once, within 24 hours: {link}", err=True)
    admins = [user for user in store.users.all() if Role.ADMIN in user.roles]
    user = next(user for user in admins if user.disabled_at is None)
    secret, token = store.tokens.issue(
        user.user_id,
        kind="api",
        name="rlhf chat",
        lifetime=timedelta(days=1),
        scopes=["serve"],
        actor=user.user_id,
    )
    try:
        with WebServer(create_app(settings, store, has_pages=False)) as server:
            yield server.url, secret
    finally:
        store.tokens.revoke(token.token_id, actor=user.user_id)
