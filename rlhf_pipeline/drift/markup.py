"""HTML as a tree, so that no text can become markup. Knows elements; knows nothing of drift.

Everything is put into the tree as text or attribute and escaped by the serialiser, and there is no
way to put markup in as a string: a prompt that holds `<script>` is shown, never run. What would
fetch or run anything is refused outright.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

Child: TypeAlias = "Element | str | Iterable[Element | str | None] | None"

FORBIDDEN_TAGS = {"script", "iframe", "object", "embed", "link", "base", "img", "form"}
FORBIDDEN_ATTRIBUTES = {"src", "srcset", "action", "formaction", "poster", "background", "style"}


def make_element(tag: str, *children: Child, **attributes: object) -> Element:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; an attribute that is
    None is left out.

    Raises ValueError for an element or attribute that could run or fetch something.

    >>> render_html(make_element("p", "1 < 2", class_="note"))
    '<p class="note">1 &lt; 2</p>'
    """
    named = {
        name.rstrip("_").replace("_", "-"): str(value)
        for name, value in attributes.items()
        if value is not None
    }
    unsafe = sorted(
        name
        for name in named
        if name in FORBIDDEN_ATTRIBUTES or name.startswith("on") or name.endswith("href")
    )
    if tag in FORBIDDEN_TAGS or [
        name for name in unsafe if not (name == "href" and named[name].startswith("#"))
    ]:
        raise ValueError(
            f"<{tag} {' '.join(unsafe)}> could run or fetch something. The page has to stand "
            "alone: write it as text."
        )
    element = Element(tag, {name: replace_unprintable(value) for name, value in named.items()})
    for child in children:
        _append(element, child)
    return element


def render_html(element: Element) -> str:
    return tostring(element, encoding="unicode", method="html")


def replace_unprintable(text: str) -> str:
    """`text` without what HTML cannot hold: control characters and halves of characters are shown
    as �.

    >>> replace_unprintable("a\\x00b\\ud800c")
    'a�b�c'
    """
    return "".join(
        c
        if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f" and not "\ud800" <= c <= "\udfff")
        else "�"
        for c in text
    )


def truncate(text: str, width: int) -> str:
    """One line of at most `width` characters.

    >>> truncate("a  long\\nprompt", 8)
    'a long …'
    """
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()} …"[: width + 1]


def make_table(
    caption: str,
    head: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    numeric: Iterable[int] = (),
) -> Element:
    """A table that scrolls by itself on a narrow screen; the first cell of a row names it.
    `numeric`: columns set to the right.
    """
    right = set(numeric)
    body = [
        make_element(
            "tr",
            (
                make_element(
                    "th" if i == 0 else "td",
                    cell,
                    scope="row" if i == 0 else None,
                    class_="number" if i in right else None,
                )
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    made = make_element(
        "table",
        make_element("caption", caption),
        make_element(
            "thead",
            make_element(
                "tr",
                (
                    make_element("th", cell, scope="col", class_="number" if i in right else None)
                    for i, cell in enumerate(head)
                ),
            ),
        ),
        make_element("tbody", body),
    )
    return make_element(
        "div", made, class_="scroll", role="region", aria_label=caption, tabindex="0"
    )


def _append(parent: Element, child: Child) -> None:
    if child is None:
        return
    if isinstance(child, str):
        text = replace_unprintable(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif isinstance(child, Element):
        parent.append(child)
    else:
        for one in child:
            _append(parent, one)
