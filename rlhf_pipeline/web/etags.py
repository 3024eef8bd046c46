"""Edits of what somebody read: the version is the ETag, and an edit names it in If-Match. Knows
headers; knows no noun.
"""

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
    """Of what has no version: of all it says."""
    return f'"{hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:20]}"'


def require_etag(if_match: str | None) -> str:
    """The ETag an edit was made of. Raises Problem 428 where it is missing."""
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
    """Raises Problem 428 where it is missing, 422 where it is none."""
    word = require_etag(if_match).strip('"')
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise Problem(
            422,
            'Invalid If-Match; expected a version such as "3".',
            kind="invalid",
            errors=[("header.if-match", "is not a version")],
        )
    return int(word)
