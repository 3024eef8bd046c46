"""How a page is made: templates that escape everything, the menu, words for values. Knows Jinja;
knows no route's data.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.site import Site

HERE = Path(__file__).parent.parent
STATIC = HERE / "static"
THEMES = ("dark", "light")
STRENGTHS = {1: "slightly", 2: "somewhat", 3: "clearly", 4: "by far"}
CHOICES = {"tie": "equally good", "both_bad": "both bad", "skip": "skipped"}


@dataclass(frozen=True)
class MenuEntry:
    """An entry of the menu, for those who may."""

    path: str
    name: str
    needs: Permission | None
    needs_all_votes: bool = False


MENU = (
    MenuEntry("/annotate", "Annotate", Permission.VOTES_CAST),
    MenuEntry("/progress", "Progress", Permission.PROGRESS_READ),
    MenuEntry("/votes", "Votes", Permission.VOTES_READ),
    MenuEntry("/quality", "Data quality", Permission.VOTES_READ),
    MenuEntry("/comparisons", "Comparisons", Permission.COMPARISONS_READ),
    MenuEntry("/consensus", "Consensus", Permission.CONSENSUS_READ),
    MenuEntry("/calibration", "Calibration", Permission.METRICS_READ, needs_all_votes=True),
    MenuEntry("/feedback", "Feedback", Permission.FEEDBACK_READ),
    MenuEntry("/guidelines", "Guidelines", Permission.GUIDELINES_READ),
    MenuEntry("/rules", "Rules", Permission.RULES_READ),
    MenuEntry("/users", "Users", Permission.USERS_READ),
    MenuEntry("/audit", "Audit", Permission.AUDIT_READ, needs_all_votes=True),
    MenuEntry("/me", "Me", None),
)


def menu_entries(asker: Principal) -> list[MenuEntry]:
    allowed = [place for place in MENU if place.needs is None or asker.may(place.needs)]
    return (
        allowed
        if blind_reader_id(asker) is None
        else [place for place in allowed if not place.needs_all_votes]
    )


def render(
    name: str,
    request: Request,
    site: Site,
    asker: Principal | None,
    *,
    status: int = 200,
    told: str | None = None,
    **values: Any,
) -> HTMLResponse:
    """The page of a template."""
    theme = request.cookies.get("theme")
    html = (
        _environment()
        .get_template(name)
        .render(
            asker=asker,
            project=site.settings.project,
            nav=menu_entries(asker) if asker else [],
            here="/" + request.url.path.strip("/").partition("/")[0],
            theme=theme if theme in THEMES else None,
            told=told,
            **values,
        )
    )
    return HTMLResponse(html, status)


def names_for(site: Site, asker: Principal) -> dict[str, str]:
    """user_id -> name, for those who may know who is who."""
    return (
        {user.user_id: user.name for user in site.store.users.all()}
        if asker.may(Permission.USERS_READ)
        else {}
    )


def query_of(filters: Mapping[str, str]) -> str:
    """The filters that say something, as the beginning of a query.

    >>> query_of({"q": "a b", "day": ""})
    'q=a+b&'
    """
    said = {name: value for name, value in filters.items() if value}
    return f"{urlencode(said)}&" if said else ""


def see_other(path: str) -> RedirectResponse:
    """Go and look there: the answer to a form that was done."""
    return RedirectResponse(path, 303)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = static_url
    environment.filters |= {
        "iso": _format_iso,
        "short_time": _format_short_time,
        "choice_words": choice_words,
        "percent": _format_percent,
        "seconds": _format_seconds,
        "cut": _cut,
        "spans": split_code_spans,
    }
    return environment


@lru_cache
def static_url(name: str) -> str:
    """The address of a static file, another one for each content."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def split_code_spans(text: str) -> list[str]:
    """Every second one stood between backticks, as a command does in what is also said in a
    terminal.

    >>> split_code_spans("Run `rlhf init` first.")
    ['Run ', 'rlhf init', ' first.']
    """
    return re.split(r"`([^`\n]+)`", text)


def choice_words(choice: str, strength: int | None) -> str:
    """
    >>> choice_words("a", 4), choice_words("b", None), choice_words("both_bad", None)
    ('A by far better', 'B better', 'both bad')
    """
    if choice in CHOICES:
        return CHOICES[choice]
    return (
        f"{choice.upper()} {STRENGTHS[strength]} better" if strength else f"{choice.upper()} better"
    )


def _format_iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _format_short_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return (
        f"{seconds:.1f} s"
        if seconds < 10
        else f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
    )


def _cut(text: str, most: int) -> str:
    """
    >>> _cut("one  two", 20), _cut("abcdef", 4)
    ('one two', 'abc…')
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
