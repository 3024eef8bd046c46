"""Whether every page of the menu renders on a project of yours: pictures to look at, in light and
dark, on a desktop and a phone. Prints one table.

    rlhf serve &
    python benchmarks/bench_sections.py "$(rlhf users login-link you@example.org)" [--out pictures]

The link logs in once, so each run needs a new one; what its owner may not see is not visited.
Beside the menu, one page of each other kind that these pages link to is visited: a decision, a
cluster, an annotator. A page fails where it does not answer with 200, where its scripts report an
error, where axe-core finds a fault, or where a phone would scroll it sideways.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

from benchmarks.measurement import Limits, print_table  # noqa: E402
from tests.browser.chromium import CURE, find_chromium  # noqa: E402
from tests.browser.test_access import AXE, RULES, SIZES  # noqa: E402

SETTLE_MS = 2_500  # charts and what a page loads by itself
LINKS = """selector => [...document.querySelectorAll(selector)].map(one => one.getAttribute("href"))
    .filter(href => href.startsWith("/"))"""
FAULTS = """async rules => (await axe.run(document, { runOnly: rules })).violations.map(
    one => `${one.id}: ${one.nodes[0].html.slice(0, 100)}`)"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Look(NamedTuple):
    path: str
    size: str
    scheme: str
    faults: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("link", help="a login link of a server that runs")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="a folder for pictures")
    given = parser.parse_args()
    limits, chromium = Limits(), find_chromium()
    if chromium is None:
        limits.skip(f"no Chromium on this machine. {CURE}")
        return limits.print_summary()
    given.out.mkdir(parents=True, exist_ok=True)
    link = re.search(r"https?://\S+", given.link)
    if link is None:
        parser.error(f"there is no login link in {given.link!r}")
    looks = []
    for look in look_at_all(chromium, link[0], given.out):
        looks.append(look)
        print(f"{look.path}, {look.size}, {look.scheme}", file=sys.stderr, flush=True)
    rows = [[one.path, one.size, one.scheme, "; ".join(one.faults)] for one in looks if one.faults]
    if rows:
        print_table("Pages with faults", ["page", "size", "scheme", "faults"], rows)
    n_pages = len({one.path for one in looks})
    limits.check(
        bool(looks) and not rows,
        f"{len(rows)} of {len(looks)} pictures of {n_pages} pages with a fault, limit 0",
    )
    return limits.print_summary()


def look_at_all(chromium: str, link: str, out: Path) -> Iterator[Look]:
    """Every page in every scheme and size."""
    from playwright.sync_api import sync_playwright

    address = "{0.scheme}://{0.netloc}".format(urlsplit(link))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        page.get_by_role("button", name="Log in with this link").click()
        page.wait_for_url(lambda url: "login" not in url)
        session = page.context.storage_state()
        paths = find_pages(page, address)
        for size in ("desktop", "phone"):
            width, height = SIZES[size]
            context = browser.new_context(
                storage_state=session,
                viewport={"width": width, "height": height},
                reduced_motion="reduce",
            )
            for path in paths:
                page = context.new_page()
                yield from look_at(page, address, path, size, out)
                page.close()
            context.close()
        browser.close()


def find_pages(page: Any, address: str) -> list[str]:
    """What the menu links to, and the first page of each other kind that these pages link to."""
    page.goto(address)
    menu = dict.fromkeys(page.evaluate(LINKS, "nav a[href]"))
    paths = dict.fromkeys(["/", *menu])
    kinds = {kind_of(path) for path in paths}
    for path in list(paths):
        page.goto(address + path)
        page.wait_for_timeout(SETTLE_MS)
        for link in page.evaluate(LINKS, "main a[href]:not([download])"):
            is_page = "." not in urlsplit(link).path and not link.startswith("/api/")
            if is_page and kind_of(link) not in kinds:
                kinds.add(kind_of(link))
                paths[link] = None
    return list(paths)


def kind_of(link: str) -> tuple[str, int]:
    """Pages of one kind differ in their last part and their query alone."""
    parts = urlsplit(link).path.strip("/").split("/")
    return parts[0] + (parts[1] if len(parts) > 2 else ""), len(parts)


def look_at(page: Any, address: str, path: str, size: str, out: Path) -> Iterator[Look]:
    errors: list[str] = []
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda one: errors.append(str(one)))
    answer = page.goto(address + path)
    page.wait_for_timeout(SETTLE_MS)
    if answer is None or answer.status != 200:
        errors.append(f"status {answer.status if answer else 'unknown'}")
    if size == "phone" and (overflow := page.evaluate(OVERFLOW)) > 0:
        errors.append(f"{overflow} pixels wider than the screen")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(200)
        name = re.sub(r"\W+", "_", path).strip("_")[:80] or "home"
        page.screenshot(path=out / f"{name}.{size}.{scheme}.png", full_page=True)
        yield Look(path, size, scheme, [*errors, *page.evaluate(FAULTS, RULES)])


if __name__ == "__main__":
    sys.exit(main())
