"""Where the web servers of a home listen. Knows small files below the home and which processes
live; knows no app.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rlhf_pipeline.completions.owners import is_dead, make_owner
from rlhf_pipeline.config import Settings
from rlhf_pipeline.files import write_atomically

FOLDER = "web_servers"  # a file for each: one that ends leaves those of the others


class WebServerRecord(BaseModel):
    """One server: the address it prints, its process as `completions.owners` names one, and its
    home: a copied home copies this too.
    """

    url: str
    owner: str
    home: Path


@contextlib.contextmanager
def announce(home: Path, url: str) -> Iterator[None]:
    """Other commands on this home know until the block ends that this process listens at `url`."""
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
    """Where people reach the web app: as it was set, else at the server of this home on this host
    that began last, else by default.
    """
    if "web_url" in settings.model_fields_set:
        return settings.web_url
    # Whether a process of another host lives is not known here, and its loopback is another one.
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
    """When each was written, where, what. A server that ends takes its file along; a file of
    another kind is none of these.
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
