"""Escapes control characters and rich markup, so that the terminal shows stored text literally."""

import re

from rich.markup import escape

# C0 except tab and line feed, DEL, C1, and the bidi embeddings, overrides and isolates. A carriage
# return may stand before a line feed.
_CONTROLS = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""The text with control characters as `\uXXXX`, which JSON reads as the same character.

    >>> print(escape_controls("a\x1b[31m red\x07 \u202eevil"))
    a\u001b[31m red\u0007 \u202eevil
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_markup(text: str) -> str:
    r"""Stored text, escaped for use inside rich markup.

    >>> print(escape_markup("[red]\x1b"))
    \[red]\u001b
    """
    return escape(escape_controls(text))
