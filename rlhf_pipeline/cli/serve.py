"""`rlhf serve`: starts the web app where people vote, and its API."""

import signal
import socket
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import homes


def serve(
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; beyond loopback, put a TLS proxy in front."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8080,
) -> None:
    """Start the web app and its API; the first start makes an admin and prints a one-time login
    link.
    """
    free_port = find_free_port(host, port)
    if free_port is None:
        raise ConfigurationError(
            f"Port {port} on {host} is taken or not available. Choose another with --port."
        )
    from rlhf_pipeline.web.auth import create_first_admin
    from rlhf_pipeline.web.server import serve as serve_pages

    workspace = Workspace.from_environment()
    prepare(workspace)
    settings = workspace.settings
    if "web_url" not in settings.model_fields_set:
        settings = settings.model_copy(update={"web_url": _local_url(host, free_port)})
    echo(f"{settings.web_url}  project {settings.project!r}, Ctrl-C ends it")
    admin = create_first_admin(workspace.store, settings)
    if admin is not None:
        email, link = admin
        echo(f"log in as the first admin, {email}, once, within 24 hours: {link}")
    # SIGTERM of a service manager counts as Ctrl-C, so that the server ends in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve_pages(settings, workspace.store, host=host, port=free_port)
    finally:
        homes.record_end(settings, workspace.store.database)


def find_free_port(host: str, port: int) -> int | None:
    """`port`, or a free one where it is 0; None where it is taken or the host is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _local_url(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on `host`.

    >>> _local_url("0.0.0.0", 8080), _local_url("::", 8080)
    ('http://127.0.0.1:8080', 'http://[::1]:8080')
    """
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
