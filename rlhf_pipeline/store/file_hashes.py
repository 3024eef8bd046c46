"""The SHA-256 of every file that the project wrote, by its path below the home or the frames URL.

A file is replaced by a rename, which no database transaction can include. So its new hash is
`pending` before the rename and `written` after it, and while it is pending the old one is accepted
too: a writer killed in between causes no false alarm.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, bindparam, or_, select

from rlhf_pipeline.records import Record
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import files

# a hash that is pending for longer belongs to a writer that was killed
LONGEST_WRITE = timedelta(hours=1)


class RecordedFile(Record):
    """One accepted content of one file."""

    path: str
    sha256: str
    size: int
    state: Literal["pending", "written"]
    written_at: datetime


class FileHashes:
    """Implements `protocols.FileHashes`. Files that were never recorded pass every check."""

    def __init__(self, database: Database):
        self._database = database

    @contextmanager
    def record_replacement(self, contents: Mapping[str, bytes]) -> Iterator[None]:
        """Accept the old and the new content of these files while the block runs, and only the new
        one afterwards.

        An error in the block leaves both accepted, because it does not say which one is on disk.
        Two concurrent writers of one file have the same effect.
        """
        began_at = self._database.clock.now()
        hashes = {path: sha256_of(content) for path, content in contents.items()}
        sizes = {path: len(content) for path, content in contents.items()}
        for batch in batches(hashes.items(), MAX_ROWS):
            self._expect(
                [
                    {"path": path, "sha256": sha256, "size": sizes[path], "written_at": began_at}
                    for path, sha256 in batch
                ]
            )
        yield
        for batch in batches(hashes.items(), MAX_ROWS):
            self._settle([{"a_path": path, "a_sha256": sha256} for path, sha256 in batch], began_at)

    def find_changed(self, contents: Mapping[str, bytes]) -> list[str]:
        """The paths whose content differs from every recorded one."""
        accepted = defaultdict(set)
        for batch in batches(contents, MAX_ROWS):
            for known in self._read(files.c.path.in_(batch)):
                accepted[known.path].add(known.sha256)
        return [
            path
            for path, content in contents.items()
            if path in accepted and sha256_of(content) not in accepted[path]
        ]

    def all(self) -> list[RecordedFile]:
        """By path, the newest content of each first."""
        return self._read()

    def list_written(self, prefix: str) -> list[tuple[str, datetime]]:
        """Path and time of each written file whose path begins with the prefix, the newest content
        of a path last.
        """
        wanted = (
            select(files.c.path, files.c.written_at)
            .where(
                self._database.in_project(files),
                files.c.state == "written",
                files.c.path.startswith(prefix, autoescape=True),
            )
            .order_by(files.c.path, files.c.written_at)
        )
        return [(path, written_at) for path, written_at in self._database.fetch_all(wanted)]

    def forget(self, paths: Sequence[str]) -> None:
        """Delete the hashes of these files, which were removed on purpose or have unknown
        content.
        """
        for batch in batches(paths, MAX_ROWS):
            with self._database.write_transaction() as connection:
                connection.execute(
                    files.delete().where(self._database.in_project(files), files.c.path.in_(batch))
                )

    def _expect(self, rows: Sequence[dict[str, Any]]) -> None:
        same = [{"a_path": row["path"], "a_sha256": row["sha256"]} for row in rows]
        with self._database.write_transaction() as connection:
            connection.execute(files.delete().where(self._is_recorded()), same)
            self._database.insert(connection, files, [{**row, "state": "pending"} for row in rows])

    def _settle(self, rows: Sequence[dict[str, str]], began_at: datetime) -> None:
        """Delete earlier hashes, but not one that another writer of the file has pending.

        A hash from the far future was written by a clock that ran ahead and counts as earlier, else
        its content would be accepted forever.
        """
        is_past = or_(
            and_(files.c.state == "written", files.c.written_at <= began_at),
            files.c.written_at < began_at - LONGEST_WRITE,
            files.c.written_at > began_at + LONGEST_WRITE,
        )
        of_path = and_(self._database.in_project(files), files.c.path == bindparam("a_path"))
        with self._database.write_transaction() as connection:
            connection.execute(
                files.delete().where(of_path, files.c.sha256 != bindparam("a_sha256"), is_past),
                rows,
            )
            connection.execute(
                files.update().where(self._is_recorded()).values(state="written"), rows
            )

    def _is_recorded(self) -> ColumnElement[bool]:
        return and_(
            self._database.in_project(files),
            files.c.path == bindparam("a_path"),
            files.c.sha256 == bindparam("a_sha256"),
        )

    def _read(self, *conditions: ColumnElement[bool]) -> list[RecordedFile]:
        columns = [files.c[name] for name in RecordedFile.model_fields]
        order = (files.c.path, files.c.written_at.desc())
        rows = self._database.fetch_mappings(
            select(*columns).where(self._database.in_project(files), *conditions).order_by(*order)
        )
        return [RecordedFile.model_validate(dict(row)) for row in rows]


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
