"""`rlhf serve`: the web app where people vote, and its API. Knows how it is started and what runs beside it; the app is rlhf_pipeline/web."""

import socket
import threading
from typing import Annotated

import typer

from rlhf_pipeline import web
from rlhf_pipeline.cli.audit import drop
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.errors import ConfigurationError, PipelineError

ANCHORS_EVERY_S = 600.0  # looks whether it is another day: there is one anchor a day


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond loopback put a proxy with TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
) -> None:
    """Start the web app and its API; the first start makes an admin and prints a link that logs its first visitor in, once."""
    if not is_free(host, port):
        raise ConfigurationError(f"Port {port} on {host} is taken, or not to be had. Choose another with --port.")
    workspace = Workspace.here()
    prepare(workspace)
    settings = workspace.settings
    if "web_url" not in settings.model_fields_set:
        settings = settings.model_copy(update={"web_url": f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"})
    typer.echo(f"{settings.web_url}  project {settings.project!r}, Ctrl-C ends it")
    link = web.first_admin(workspace.store, settings)
    if link is not None:
        typer.echo(f"log in as the first admin, once, within 24 hours: {link}")
    ended = threading.Event()
    anchoring = threading.Thread(target=_drop_anchors, args=(workspace, ended), name="anchors", daemon=True)
    anchoring.start()
    try:
        web.serve(settings, workspace.store, host=host, port=port)
    finally:
        ended.set()
        anchoring.join(10)


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _drop_anchors(workspace: Workspace, ended: threading.Event) -> None:
    """One a day, as long as the server runs; what keeps one from being written is said, and keeps nobody from voting."""
    while True:
        try:
            drop(workspace)
        except (PipelineError, OSError) as cause:
            typer.echo(f"no anchor of the audit chain today: {cause}", err=True)
        if ended.wait(ANCHORS_EVERY_S):
            return
