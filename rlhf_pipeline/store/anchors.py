"""Appends the head of the audit chain to a file once a day, so that a truncated chain is noticed.

Copy the file elsewhere (it is small and only grows): then nobody who can write the database can
shorten its history unseen.
"""

import json
import os
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.audit_chain import Audit

FILE = "audit_anchors.jsonl"


class Anchor(Record):
    """The head of the chain at a moment."""

    seq: int
    hash: str
    at: datetime

    @property
    def day(self) -> date:
        return self.at.date()


def read_anchors(path: Path) -> list[Anchor]:
    """Oldest first; empty if the file does not exist. Raises StoreError for an invalid line.

    A last line without a line end was being written when the power failed: it is ignored, and the
    next anchor replaces it.
    """
    if not path.exists():
        return []
    anchors = []
    for n, line in enumerate(
        _read_whole_lines(path).decode(errors="replace").splitlines(), start=1
    ):
        try:
            anchors.append(Anchor.from_json(line))
        except ValueError as cause:
            raise StoreError(
                f"Line {n} of {path} is not an anchor of the audit chain. Restore the file from "
                "its copy."
            ) from cause
    return anchors


def add_daily_anchor(path: Path, audit: Audit, now: datetime) -> Anchor | None:
    """Append a line for the head of the chain, unless the last line is from today; returns the new
    line.

    A last line dated in the future was written by a clock that ran ahead: waiting for that day
    would leave the chain without anchors.
    """
    seq, digest = audit.head()
    anchors = read_anchors(path)
    if seq == 0 or (anchors and anchors[-1].day == now.date()):
        return None
    anchor = Anchor(seq=seq, hash=digest, at=now)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(len(_read_whole_lines(path)))
        file.write(json.dumps(anchor.model_dump(mode="json"), sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return anchor


def _read_whole_lines(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def verify_with_anchors(audit: Audit, anchors: Sequence[Anchor]) -> int:
    """Run `Audit.verify` and check that every anchor is still in the chain. Raises StoreError
    naming the first seq that changed.
    """
    for anchor in anchors:
        stored_hash = audit.hash_at(anchor.seq)
        if stored_hash is None:
            raise StoreError(
                f"The audit chain ends before seq {anchor.seq}, where it stood on {anchor.day}: "
                "its tail was cut. Stop writing, keep the file as evidence and restore the last "
                "backup that verifies."
            )
        if stored_hash != anchor.hash:
            raise StoreError(
                f"The audit chain at seq {anchor.seq} differs from that of {anchor.day}: it was "
                "rewritten from some earlier seq on. Stop writing, keep the file as evidence "
                "and restore the last backup that verifies."
            )
    return audit.verify()
