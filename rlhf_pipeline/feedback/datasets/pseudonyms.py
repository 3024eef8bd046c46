"""Replaces annotators' names by stable pseudonyms."""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.files import write_atomically

SALT_FILE = "annotator_salt"
SALT_BYTES = 32
PSEUDONYM = re.compile(r"ann_[0-9a-f]{16}")


class Pseudonyms:
    """Pseudonyms: `ann_` and 16 hex digits of the HMAC-SHA-256 of a name under the home's salt.
    Names that already have this form are kept.

    Without the salt a pseudonym cannot be recomputed from a name or found by trying names. With a
    new salt, later imports give every annotator a new pseudonym, so the salt is part of a home's
    backup.
    """

    def __init__(self, salt: bytes):
        self._salt = salt
        self.salt_hash = hash_salt(salt)
        self._known: dict[str, str] = {}

    @classmethod
    def load(cls, home: Path, recorded: str | None = None) -> "Pseudonyms":
        """Load the salt from `<home>/annotator_salt`; creates it, readable only by its owner, if it
        does not exist.

        Raises DatasetError for another salt than the one whose hash was `recorded`.
        """
        path = home / SALT_FILE
        try:
            salt = path.read_bytes() if recorded or path.exists() else _make_salt(path)
        except FileNotFoundError as cause:
            raise DatasetError(
                f"{path} is missing: the same people would be imported as others. Put it back from "
                "a backup, or import with --keep-annotators."
            ) from cause
        except OSError as cause:
            raise DatasetError(
                f"{path} cannot be read: {cause.strerror}. Make it readable: annotators' "
                "pseudonyms depend on it."
            ) from cause
        if len(salt) != SALT_BYTES:
            raise DatasetError(
                f"{path} has {len(salt)} bytes, not {SALT_BYTES}. Restore it from a backup: "
                "annotators' pseudonyms depend on it."
            )
        if recorded not in (None, hash_salt(salt)):
            raise DatasetError(
                f"{path} is not the one of the first import: the same people would be imported as "
                "others. Put it back from a backup, or import with --keep-annotators."
            )
        return cls(salt)

    def __call__(self, name: str) -> str:
        if PSEUDONYM.fullmatch(name):
            return name
        if name not in self._known:
            if len(self._known) > 50_000:  # bounds memory
                self._known.clear()
            self._known[name] = f"ann_{hmac.digest(self._salt, name.encode(), 'sha256').hex()[:16]}"
        return self._known[name]


def hash_salt(salt: bytes) -> str:
    """What the store records of a salt, by which another one is noticed."""
    return hashlib.sha256(salt).hexdigest()


def _make_salt(path: Path) -> bytes:
    """Create the salt file, readable only by its owner. The import lock keeps others from it."""
    salt = secrets.token_bytes(SALT_BYTES)
    write_atomically(path, salt)
    path.chmod(0o600)
    return salt
