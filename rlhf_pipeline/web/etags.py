"""ETags of rules and guidelines, and the If-Match header that an edit must send."""

from typing import Annotated

from fastapi import Header

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


def require_version(if_match: str | None) -> int:
    """The version that an edit is based on. Raises Problem 428 if it is missing, 422 if it is
    invalid.
    """
    if if_match is None:
        raise Problem(
            428,
            "If-Match is missing. Send the ETag of the version you edited, so that a newer one is "
            "not overwritten.",
            kind="unconditional_edit",
            errors=[("header.if-match", "is missing")],
        )
    word = if_match.strip().strip('"')
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise Problem(
            422,
            'Invalid If-Match; expected a version such as "3".',
            kind="invalid",
            errors=[("header.if-match", "is not a version")],
        )
    return int(word)
