"""What stages need from outside, as protocols: handed in, never imported. Knows no implementation."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Where `now` comes from, so that a simulated day is a day."""

    def now(self) -> datetime: ...


class Progress(Protocol):
    """Told of long work; `done` of `total` units, with the number that matters in `note`."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class TextGenerator(Protocol):
    """Anything that turns instructions into text, for free-form prompts."""

    def generate_texts(self, instructions: Sequence[str], *, seed: int) -> list[str]: ...


class CompletionCache(Protocol):
    """Completions by content fingerprint: a hit is never generated, or paid for, again."""

    def get_many(self, keys: Sequence[str]) -> Mapping[str, str]: ...

    def put_many(self, entries: Mapping[str, str]) -> None: ...


def silent(done: int, total: int, note: str = "") -> None:
    """The null Progress."""
