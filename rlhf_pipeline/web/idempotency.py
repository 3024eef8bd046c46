"""The Idempotency-Key header: the same vote or feedback under the same key is stored once."""

from typing import Annotated

from fastapi import Header

_HEADER = Header(
    alias="Idempotency-Key",
    min_length=1,
    max_length=128,
    pattern="^[ -~]+$",
    description="Repeating the request with the same key stores it once; a random UUID is a good "
    "key.",
)
RequiredKey = Annotated[str, _HEADER]
OptionalKey = Annotated[str | None, _HEADER]
