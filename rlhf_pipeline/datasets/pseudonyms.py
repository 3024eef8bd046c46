"""Annotators' names made unreadable, the same one always the same. Knows the home's salt; keeps no
name.
"""

import hmac
import os
import re
import secrets
from pathlib import Path

from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.files import translate_write_errors

SALT_FILE = "annotator_salt"
SALT_BYTES = 32
PSEUDONYM = re.compile(r"ann_[0-9a-f]{16}")


class Pseudonyms:
    """`ann_` and 16 hex digits of the HMAC-SHA-256 of a name under the home's salt; what has that
    form already stays as it is.

    Whoever has no salt can neither recompute a pseudonym from a name nor try names out. A lost salt
    makes everybody a new person to later imports, so it is part of a home's backup.
    """

    def __init__(self, salt: bytes):
        self._salt = salt
        self._known: dict[str, str] = {}

    @classmethod
    def load(cls, home: Path) -> "Pseudonyms":
        """With the salt in `<home>/annotator_salt`, made at first use, readable by its owner
        alone.
        """
        path = home / SALT_FILE
        try:
            salt = path.read_bytes()
        except FileNotFoundError:
            salt = _make_salt(path)
        except OSError as cause:
            raise DatasetError(
                f"{path} cannot be read: {cause.strerror}. Annotators' pseudonyms depend on it: "
                "make it readable."
            ) from cause
        if len(salt) != SALT_BYTES:
            raise DatasetError(
                f"{path} has {len(salt)} bytes, not {SALT_BYTES}. Annotators' pseudonyms depend on "
                "it: restore it from a backup."
            )
        return cls(salt)

    def __call__(self, name: str) -> str:
        if PSEUDONYM.fullmatch(name):
            return name
        if name not in self._known:
            if len(self._known) > 50_000:  # names in memory are bounded too
                self._known.clear()
            self._known[name] = f"ann_{hmac.digest(self._salt, name.encode(), 'sha256').hex()[:16]}"
        return self._known[name]


def _make_salt(path: Path) -> bytes:
    """Whole or not at all: half a salt would be another one."""
    salt = secrets.token_bytes(SALT_BYTES)
    unfinished = path.with_name(f".{SALT_FILE}.{os.getpid()}.tmp")
    with translate_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(salt)
                file.flush()
                os.fsync(file.fileno())
            # unlike a rename, it leaves a salt that another process made meanwhile
            os.link(unfinished, path)
        except FileExistsError:
            return path.read_bytes()
        finally:
            unfinished.unlink(missing_ok=True)
    return salt
