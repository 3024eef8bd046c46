"""Renders pages: Jinja templates with autoescape, the menu and formats of values."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.intervals import format_estimate
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.reports.words import format_count, name_detectors, name_models
from rlhf_pipeline.web import glossary
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import QUERY, Problem
from rlhf_pipeline.web.routing import cached_principal, find_principal
from rlhf_pipeline.web.section import Place, Section
from rlhf_pipeline.web.site import Site

HERE = Path(__file__).parent
STATIC = HERE / "static"
# the order of the menu; then places of installed packages
PLACES = (
    *("Home", "Annotate", "Data", "People", "Preferences", "Models"),
    *("Drift", "Production", "Alerts", "Runs", "Settings", "Audit"),
)
DAYS = ["since", "until"]  # parameters of charts, which are wrong together
NOTICE, NOTICE_LASTS_S = "notice", 60  # the cookie that carries words to the next page
UNDO = "undo"  # the cookie with the address that undoes what the notice says
MOST_NEXT = 500  # characters of an address that a login leads back to
THEMES = ("dark", "light")
STRENGTHS = {1: "slightly", 2: "somewhat", 3: "clearly", 4: "much"}
CHOICES = {"tie": "equally good", "both_bad": "both bad", "skip": "skipped"}


class Pages:
    """The pages of an app: the menu, the templates and the static files of its sections."""

    def __init__(self, sections: Mapping[str, Section]):
        self._sections = sections
        self.environment = _make_environment(sections)
        self.environment.globals["static"] = lru_cache(self._static_url)

    def menu(self, asker: Principal) -> list[Place]:
        """The places of which the user may open a section, with those sections as tabs."""
        tabs: dict[str, list[Section]] = {name: [] for name in PLACES}
        for section in self._sections.values():
            if section.place and (section.permission is None or asker.may(section.permission)):
                tabs.setdefault(section.place, []).append(section)
        return [Place(name, tuple(members)) for name, members in tabs.items() if members]

    def _static_url(self, name: str) -> str:
        """The URL of a static file, which changes with its content."""
        head, _, rest = name.partition("/")
        section = self._sections.get(head)
        path = STATIC / name
        if section is not None and section.folder is not None:
            path = section.folder / rest
        return f"/static/{name}?v={hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def render(
    name: str,
    request: Request,
    site: Site,
    asker: Principal | None,
    *,
    status: int = 200,
    notice: str | None = None,
    **values: Any,
) -> HTMLResponse:
    """The page of a template."""
    theme = request.cookies.get("theme")
    pages: Pages = request.app.state.pages
    has_glossary = request.cookies.get(glossary.COOKIE) == "on"
    done = unquote(request.cookies.get(NOTICE, ""))
    menu = pages.menu(asker) if asker else []
    place, tab = find_tab(menu, request.url.path)
    html = pages.environment.get_template(name).render(
        asker=asker,
        project=site.settings.project,
        menu=menu,
        place=place,
        tab=tab,
        address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        theme=theme if theme in THEMES else None,
        has_glossary=has_glossary,
        notice=done or notice,
        undo=unquote(request.cookies.get(UNDO, "")) if done else "",
        **values,
    )
    response = HTMLResponse(glossary.add_labels(html) if has_glossary else html, status)
    if done:
        for name in (NOTICE, UNDO):
            response.set_cookie(name, "", max_age=0)
    return response


async def problem_page(request: Request, problem: Problem) -> Response:
    """An error page with the user's menu; without a login, a redirect to the login page."""
    if problem.status == 401:
        return see_other(login_path(request), notice=_describe_loss(request))
    site: Site = request.app.state.site
    asker = await _find_principal(request, problem)
    wrong = [path.removeprefix(QUERY) for path, _ in problem.errors if path.startswith(QUERY)]
    back, words = "/", "Back to the start page"
    if problem.kind == "paused":
        back, words = "/me", "Your votes"
    elif request.method != "GET":
        back, words = _find_sender(request) or "/", "Back"
    elif any(name in request.query_params for name in wrong):
        is_of_days = set(wrong) <= set(DAYS)
        left_out = DAYS if is_of_days else wrong
        back = str(request.url.remove_query_params(left_out).replace(scheme="", netloc=""))
        words = "Show all days" if is_of_days else "Show it without this"
    page = render(
        "problem.html",
        request,
        site,
        asker,
        status=problem.status,
        problem=problem.document(),
        is_error=not problem.title,
        is_query=len(wrong) == len(problem.errors),
        back=back,
        back_words=words,
    )
    page.headers.update(problem.headers)
    return page


def _find_sender(request: Request) -> str:
    """Path and query of this app's page that sent a request; empty for another sender."""
    sender = urlsplit(request.headers.get("referer", ""))
    here = (request.url.scheme, request.url.netloc)
    if (sender.scheme, sender.netloc) != here or sender.path.startswith("//"):
        return ""
    return sender.path + (f"?{sender.query}" if sender.query else "")


async def _find_principal(request: Request, problem: Problem) -> Principal | None:
    """The user of the request; after a server error only a cached one, because the store could fail
    again.
    """
    if problem.status >= 500:
        return cached_principal(request)
    try:
        return await find_principal(request)
    except (Problem, PipelineError):
        return None


def login_path(request: Request) -> str:
    """The login page, which leads back to the requested page or the one whose form was sent."""
    query = f"?{request.url.query}" if request.url.query else ""
    path = request.url.path + query if request.method == "GET" else _find_sender(request)
    if request.url.path == "/logout" or path in ("", "/") or len(path) > MOST_NEXT:
        return "/login"
    return f"/login?next={quote(path)}"


def _describe_loss(request: Request) -> str:
    """What a form did that was sent after its session had ended; empty where nothing is lost."""
    is_lost = request.method != "GET" and request.url.path != "/logout"
    return "You were logged out; the last change was not saved." if is_lost else ""


def names_for(site: Site, asker: Principal) -> dict[str, str]:
    """Names by user id, for those who may read users or votes; with the end of the id where several
    users have one name. Who reads votes but not users sees the id of an annotator whose name is the
    e-mail address.
    """
    sees_addresses = asker.may(Permission.USERS_READ)
    if not sees_addresses and not asker.may(Permission.VOTES_READ):
        return {}
    users = site.store.users.all()
    n_of_name = Counter(user.name for user in users)
    return {
        user.user_id: user.user_id
        if user.name == user.email and not sees_addresses and user.roles == (Role.ANNOTATOR,)
        else user.name
        if n_of_name[user.name] == 1
        else f"{user.name} (…{user.user_id[-6:]})"
        for user in users
    }


def query_of(filters: Mapping[str, str]) -> str:
    """The set filters as the beginning of a query string.

    >>> query_of({"q": "a b", "day": ""})
    'q=a+b&'
    """
    values = {name: value for name, value in filters.items() if value}
    return f"{urlencode(values)}&" if values else ""


def see_other(path: str, *, notice: str = "", undo: str = "") -> RedirectResponse:
    """Redirects after a successful form, so that a reload does not send it again. The next page
    shows the notice, with a button that posts to the address `undo`.
    """
    response = RedirectResponse(path, 303)
    for name, value in ((NOTICE, notice), (UNDO, undo)):
        if value:
            response.set_cookie(
                name, quote(value), max_age=NOTICE_LASTS_S, httponly=True, samesite="strict"
            )
    return response


def _make_environment(sections: Mapping[str, Section]) -> Environment:
    folders = {
        name: FileSystemLoader(section.folder)
        for name, section in sections.items()
        if section.folder is not None
    }
    environment = Environment(
        loader=ChoiceLoader([PrefixLoader(folders), FileSystemLoader(HERE / "templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": _format_iso,
        "short_time": _format_short_time,
        "choice_words": choice_words,
        "ago": _format_age,
        "count_of": format_count,
        "percent": _format_percent,
        "estimate": format_estimate,
        "seconds": _format_seconds,
        "name_detectors": name_detectors,
        "name_models": name_models,
        "cut": _cut,
        "transcript": render_transcript,
        "find_tab": find_tab,
        "spans": split_code_spans,
    }
    return environment


def find_tab(menu: Iterable[Place], address: str) -> tuple[Place | None, Section | None]:
    """The place and the section that an address lies in: the one with the longest path."""
    path = urlsplit(address).path
    around = [
        (place, tab)
        for place in menu
        for tab in place.tabs
        if path == tab.path or (tab.path != "/" and path.startswith(f"{tab.path}/"))
    ]
    return max(around, key=lambda pair: len(pair[1].path), default=(None, None))


def split_code_spans(text: str) -> list[str]:
    """Split at backticks: every second part is code, as in messages that terminals show too.

    >>> split_code_spans("Run `rlhf init` first.")
    ['Run ', 'rlhf init', ' first.']
    """
    return re.split(r"`([^`\n]+)`", text)


def choice_words(choice: str, strength: int | None) -> str:
    """
    >>> choice_words("a", 4), choice_words("b", None), choice_words("both_bad", None)
    ('A much better', 'B better', 'both bad')
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


def _format_age(moment: datetime, now: datetime) -> str:
    """
    >>> from datetime import timedelta
    >>> noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    >>> [_format_age(noon, noon + timedelta(minutes=m)) for m in (0.5, 5, 150, 4000)]
    ['just now', '5 min ago', '2 h ago', '2 days ago']
    """
    minutes = (now - moment).total_seconds() / 60
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes:.0f} min ago"
    return f"{int(minutes / 60)} h ago" if minutes < 48 * 60 else f"{int(minutes / 1440)} days ago"


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f}%"


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
