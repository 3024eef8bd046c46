"""Renders templates: escapes all text, replaces unprintable characters, fetches nothing.

A prompt that contains `<script>` is shown, never run. `render_page` also rejects a page with an
element or attribute that could run or fetch something, so pages open offline and can be emailed.
"""

import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.reports import words
from rlhf_pipeline.reports.layout import DOT_RADIUS, KEY, Point

FORBIDDEN_TAGS = {"script", "iframe", "object", "embed", "link", "base", "img", "form"}
FORBIDDEN_ATTRIBUTES = {"src", "srcset", "action", "formaction", "poster", "background", "style"}
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def render_page(template: str, **values: Any) -> str:
    """Render a standalone page. Raises ValueError if it could run or fetch something."""
    page = str(render_part(template, **values))
    _StandaloneCheck().feed(page)
    return page


def render_part(template: str, **values: Any) -> Markup:
    """Render a fragment for another template."""
    return Markup(_environment().get_template(template).render(values))


def replace_unprintable(value: Any) -> Any:
    """A string without what HTML cannot hold: control characters and lone surrogates become �.

    >>> replace_unprintable("a\\x00b\\ud800c")
    'a�b�c'
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return UNPRINTABLE.sub("�", value)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rlhf_pipeline.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=replace_unprintable,
    )
    environment.globals |= {"dot_radius": DOT_RADIUS, "key_size": KEY}
    environment.filters |= {
        "px": _format_pixel,
        "pixels": _format_points,
        "count": "{:,}".format,
        "name": words.display_name,
        "share": words.format_share,
        "interval": words.format_interval,
        "figure": words.format_value,
        "p_value": words.format_p_value,
        "qualify": words.describe_qualifier,
        "shorten": words.shorten,
        "transcript": render_transcript,
        "truncate_line": words.truncate,
    }
    return environment


def _format_pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _format_points(points: tuple[Point, ...]) -> str:
    return " ".join(f"{_format_pixel(x)},{_format_pixel(y)}" for x, y in points)


class _StandaloneCheck(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        unsafe = [
            name
            for name, value in attrs
            if name in FORBIDDEN_ATTRIBUTES
            or name.startswith("on")
            or (name.endswith("href") and not (name == "href" and (value or "").startswith("#")))
        ]
        if tag in FORBIDDEN_TAGS or unsafe:
            raise ValueError(
                f"<{tag} {' '.join(unsafe)}> could run or fetch something. A page must stand "
                "alone: remove it from the template."
            )
