"""ETags of editable records, and the If-Match header that an edit must send."""

import hashlib
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel

from rlhf_pipeline.web.problems import Problem

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=200, description="ETag of the version that was edited"),
]


def etag_of(version: int) -> str:
    """
    >>> etag_of(3)
    '"3"'
    """
    return f'"{version}"'


def etag_of_record(record: BaseModel) -> str:
    """The ETag of a record without a version: a hash of its content."""
    return f'"{hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:20]}"'


def require_etag(if_match: str | None) -> str:
    """The ETag that an edit is based on. Raises Problem 428 if it is missing."""
    if if_match is None:
        raise Problem(
            428,
            "If-Match is missing. Send the ETag of the version you edited, so that a newer one is "
            "not overwritten.",
            kind="unconditional_edit",
            errors=[("header.if-match", "is missing")],
        )
    return if_match.strip()


def require_version(if_match: str | None) -> int:
    """The version that an edit is based on. Raises Problem 428 if it is missing, 422 if it is
    invalid.
    """
    word = require_etag(if_match).strip('"')
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise Problem(
            422,
            'Invalid If-Match; expected a version such as "3".',
            kind="invalid",
            errors=[("header.if-match", "is not a version")],
        )
    return int(word)
