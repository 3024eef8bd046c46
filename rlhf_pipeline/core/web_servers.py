"""Records and finds the addresses of a home's web servers, one small file per server."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.processes import is_dead, make_owner

FOLDER = "web_servers"


class WebServerRecord(BaseModel):
    """A server's printed address, its process (see `processes`) and its home: a copied
    home contains the file too.
    """

    url: str
    owner: str
    home: Path


@contextlib.contextmanager
def announce(home: Path, url: str) -> Iterator[None]:
    """Let other commands on this home find this process at `url` until the block ends."""
    for _, path, known in _read_records(home):
        if is_dead(known.owner):
            path.unlink(missing_ok=True)
    mine = home / FOLDER / f"{socket.gethostname()}-{os.getpid()}.json"
    write_atomically(
        mine,
        (
            WebServerRecord(url=url, owner=make_owner(), home=home.resolve()).model_dump_json()
            + "\n"
        ).encode(),
    )
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)


def find_web_address(settings: Settings) -> str:
    """The address of the web app: the setting, else the latest server of this home on this host,
    else the default.
    """
    if "web_url" in settings.model_fields_set:
        return settings.web_url
    # A server on another host cannot be checked from here, and its loopback is not ours.
    here = f"{socket.gethostname()}/"
    ours = [
        (began, known)
        for began, _, known in _read_records(settings.home)
        if known.home == settings.home.resolve()
    ]
    live = [
        (began, known.url)
        for began, known in ours
        if known.owner.startswith(here) and not is_dead(known.owner)
    ]
    return max(live)[1] if live else settings.web_url


def _read_records(home: Path) -> list[tuple[int, Path, WebServerRecord]]:
    """Time of writing, path and content of each. A file may vanish with its server; other files are
    skipped.
    """
    found = []
    for path in (home / FOLDER).glob("*.json"):
        with contextlib.suppress(FileNotFoundError, ValidationError):
            found.append(
                (
                    path.stat().st_mtime_ns,
                    path,
                    WebServerRecord.model_validate_json(path.read_bytes()),
                )
            )
    return found
