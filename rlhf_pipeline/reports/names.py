"""Shortens names so that they fit a chart or table."""

from collections.abc import Sequence

LABEL_WIDTH, LONGEST_LABEL = 24, 60  # characters; the second if the first makes names alike


def shorten(name: str, width: int) -> str:
    """At most `width` characters, from both ends: names may differ at either.

    >>> shorten("annotator", 9), shorten("a-name-with-a-number-17", 9)
    ('annotator', 'a-na…r-17')
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def distinct_labels(names: Sequence[str]) -> list[str]:
    """Each name shortened in its middle, less so if that would make two of them alike."""
    short = [shorten(name, LABEL_WIDTH) for name in names]
    is_distinct = len(set(short)) == len(set(names))
    return short if is_distinct else [shorten(name, LONGEST_LABEL) for name in names]


def truncate(text: str, width: int) -> str:
    """One line of at most `width` characters and an ellipsis.

    >>> truncate("a  long\\nprompt", 8)
    'a long …'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()} …"[: width + 1]
