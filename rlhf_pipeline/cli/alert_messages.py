"""Commands about the messages of alerts: `rlhf alerts messages`, `replay` and `test`."""

from typing import Annotated

import typer

from rlhf_pipeline.alerts.channels import channels_of
from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage, MessageState
from rlhf_pipeline.records import utc_now

ACTOR = "rlhf alerts"
TEST_SECONDS = 30.0


def list_messages(
    state: Annotated[MessageState | None, typer.Option(help="Only messages in this state.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of messages, newest first.")
    ] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the payloads.")] = False,
) -> None:
    """List messages about alerts: which were delivered to which target, and why others failed."""
    outbox = Workspace.open_current().store.alert_messages
    messages = outbox.page(state=state, limit=limit)
    if as_json:
        show_json([message.model_dump(mode="json") for message in messages])
        return
    show(
        [_build_row(message) for message in messages],
        title=f"{len(messages)} message{'s' * (len(messages) != 1)}, newest first",
        empty="No message about an alert." if state is None else f"No {state} message.",
    )


def replay_messages(
    message_id: Annotated[
        str, typer.Argument(metavar="[MESSAGE]", help="Id of a dead message.", show_default=False)
    ] = "",
    all_dead: Annotated[bool, typer.Option("--all-dead", help="Replay all dead messages.")] = False,
) -> None:
    """Send dead messages again, from their first attempt; the daemon, `rlhf loop` or `rlhf serve`
    sends them next.
    """
    if bool(message_id) == all_dead:
        raise typer.BadParameter("give the id of a message, or --all-dead")
    outbox = Workspace.open_current().store.alert_messages
    n = 1
    if all_dead:
        n = 0
        while dead := outbox.page(state="dead"):
            for message in dead:
                outbox.replay(message.message_id, utc_now(), actor=ACTOR)
            n += len(dead)
    else:
        outbox.replay(message_id, utc_now(), actor=ACTOR)
    echo(f"{n} message{'' if n == 1 else 's'} will be sent again.")


def send_test_message(
    target: Annotated[str, typer.Argument(help="Name of a target in alert_targets, or log.")],
) -> None:
    """Send a test message to one target now, and print what happened; exit with 1 if it failed."""
    settings = Workspace.from_environment().settings
    channels = channels_of(settings)
    if target not in channels:
        raise ConfigurationError(
            f"No target {target!r} in alert_targets. Targets: {', '.join(sorted(channels))}."
        )
    now = utc_now()
    message = build_test_message(target, project=settings.project, link=settings.web_url, now=now)
    try:
        outcome = channels[target].send(message, now=now, seconds=TEST_SECONDS)
    except DeliveryFailed as failure:
        echo(f"{message.message_id} to {target} failed: {failure}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
    echo(f"{message.message_id} to {target}: {outcome}.")


def _build_row(message: AlertMessage) -> dict[str, str]:
    return {
        "message": message.message_id,
        "target": message.target,
        "what": f"{message.kind} {message.alert_id or ''}".strip(),
        "title": str(message.payload.get("data", {}).get("title", "-")),
        "state": message.state,
        "attempts": str(message.n_attempts),
        "created": f"{message.created_at:%Y-%m-%d %H:%M}",
        "next or delivered": _format_time(message),
        "last error": message.last_error or "-",
    }


def _format_time(message: AlertMessage) -> str:
    at = {"pending": message.next_attempt_at, "delivered": message.delivered_at}.get(message.state)
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"
