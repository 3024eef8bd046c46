"""`rlhf chat`: talks to the deployed policy in a terminal, and judges its answers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TextIO
from uuid import uuid4

import typer
from pydantic import ValidationError

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import list_faults
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.client import Client
from rlhf_pipeline.core.conversations import parse_prompt
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError, ServerUnavailable
from rlhf_pipeline.core.records import NewFeedback, Role

if TYPE_CHECKING:
    from openai import OpenAI

HELP = "/up  /down  /rate 1-5  /fix BETTER ANSWER judge the last answer; /quit ends"


@dataclass
class ChatSession:
    """One conversation; its answers are judged by lines that begin with a slash."""

    api: Client
    openai: "OpenAI"
    model: str
    lines: Iterator[str]
    out: TextIO
    session_id: str = field(default_factory=lambda: str(uuid4()))
    messages: list[dict[str, Any]] = field(default_factory=list)
    answer_id: str | None = None

    def run(self) -> None:
        """Answer lines until they end, or `/quit`."""
        from openai import OpenAIError

        echo(f"{self.model}. {HELP}", file=self.out)
        while True:
            echo("> ", nl=False, file=self.out)
            line = next(self.lines, "/quit").strip()
            if line == "/quit":
                return
            try:
                if line.startswith("/"):
                    self.judge(*line.split(None, 1))
                elif line:
                    self.ask(line)
            except (OpenAIError, PipelineError) as cause:
                echo(f"\nnot done: {cause}", file=self.out)
            except ValidationError as cause:
                echo(f"not done: {list_faults(cause)}", file=self.out)

    def ask(self, text: str) -> None:
        """Print the answer while it comes. One that fails leaves the conversation as it was."""
        messages = [*self.messages, {"role": "user", "content": text}]
        stream: Any = self.openai.chat.completions.create(
            model=self.model,
            messages=messages,  # type: ignore[arg-type]
            metadata={"session_id": self.session_id},
            stream=True,
        )
        answer, answer_id = "", None
        for chunk in stream:
            answer_id, piece = chunk.id, chunk.choices[0].delta.content or ""
            answer += piece
            echo(piece, nl=False, file=self.out)
        echo("", file=self.out)
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        self.answer_id = answer_id

    def judge(self, command: str, argument: str = "") -> None:
        """Send feedback on the last answer. A correction brings the texts, kept or not."""
        judgements: dict[str, dict[str, Any]] = {
            "/up": {"kind": "thumbs", "value": 1},
            "/down": {"kind": "thumbs", "value": 0},
            "/rate": {"kind": "rating", "value": _read_number(argument)},
            "/fix": {"kind": "correction", "correction": argument},
        }
        if command not in judgements or self.answer_id is None:
            is_known = command in judgements
            echo("There is no answer yet." if is_known else HELP, file=self.out)
            return
        fields = judgements[command]
        if command == "/fix" and not argument:
            echo("Write the better answer after /fix.", file=self.out)
            return
        if command == "/fix":
            *before, last = self.messages
            fields |= {"prompt": parse_prompt(before), "completion": last["content"]}
        self.api.send_feedback(NewFeedback(answer_id=self.answer_id, **fields))
        echo("thank you", file=self.out)


def _read_number(text: str) -> float | None:
    """None for another text."""
    try:
        return float(text)
    except ValueError:
        return None


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
            help="A token for that server, with the scopes serve and feedback.send.",
        ),
    ] = None,
) -> None:
    """Talk to the deployed policy. `/up`, `/down`, `/rate N` and `/fix TEXT` judge its last answer,
    `/quit` ends.
    """
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
    return ChatSession(Client(url, token), client, model.id, lines, sys.stdout)


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
        scopes=["serve", "feedback.send"],
        actor=user.user_id,
    )
    try:
        with WebServer(create_app(settings, store, has_pages=False)) as server:
            yield server.url, secret
    finally:
        store.tokens.revoke(token.token_id, actor=user.user_id)
