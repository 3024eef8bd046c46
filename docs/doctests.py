"""A Griffe extension: puts the doctests of docstrings into code blocks on the pages of the site."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """The text with each run of lines from `>>>` to the next blank line in a block."""
    lines: list[str] = []
    is_open = False
    for line in [*text.splitlines(), ""]:
        starts, ends = line.strip().startswith(">>>"), not line.strip()
        if (starts and not is_open) or (ends and is_open):
            lines += ["", "```pycon"] if starts else ["```"]
            is_open = starts
        lines.append(line.strip() if is_open and starts else line)
    return "\n".join(lines).rstrip()
