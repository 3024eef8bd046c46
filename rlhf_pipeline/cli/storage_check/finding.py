"""The findings of `rlhf check`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_pipeline.errors import PipelineError

SHOWN = 3  # faults of one kind that are named


@dataclass(frozen=True)
class Finding:
    """One line of `rlhf check`."""

    what: str
    found: str
    is_sound: bool = True


def attempt(what: str, ask: Callable[[], str]) -> Finding:
    """What `ask` returns, or the error that it raises."""
    try:
        return Finding(what, ask())
    except PipelineError as error:
        return Finding(what, str(error), is_sound=False)


def summarise(what: str, sound: str, faults: Sequence[str]) -> Finding:
    """`sound` where there are no faults, else the first of them and how many more there are."""
    if not faults:
        return Finding(what, sound)
    more = f" And {len(faults) - SHOWN} more." if len(faults) > SHOWN else ""
    return Finding(what, " ".join(faults[:SHOWN]) + more, is_sound=False)
