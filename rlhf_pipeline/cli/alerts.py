"""`rlhf alerts`: incidents, and the messages that tell people about them."""

import typer

from rlhf_pipeline.cli.alert_messages import list_messages, replay_messages, send_test_message

app = typer.Typer(
    help="Alerts: incidents, and the messages about them.",
    no_args_is_help=True,
)
app.command("messages")(list_messages)
app.command("replay")(replay_messages)
app.command("test")(send_test_message)


@app.callback()
def group() -> None:
    """Alerts: incidents, and the messages about them."""
