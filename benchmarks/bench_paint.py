"""How soon a page shows something in headless Chromium, and how large its scripts are. Prints one
table.

    python benchmarks/bench_paint.py [--votes 20000] [--loads 5]

`rlhf serve` runs as an operator starts it, over the store of bench_pages with fewer votes. An
administrator loads each page several times with an empty cache, after one load that is not
counted: the time runs from navigation to the first contentful paint, as the browser reports it.
What the server counts off to the side is waited for first. Scripts are counted as they are sent,
compressed. The limits hold on an otherwise idle machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402

from benchmarks.bench_pages import COUNTED, PAGES_OF_THE_LOOP  # noqa: E402
from benchmarks.bench_store import make_files  # noqa: E402
from benchmarks.filled_store import fill  # noqa: E402
from benchmarks.measurement import Limits  # noqa: E402
from benchmarks.web_server import open_store, run_server  # noqa: E402
from rlhf_pipeline.records import Role  # noqa: E402
from tests.browser.chromium import CURE, find_chromium  # noqa: E402

PAINT_MS, SCRIPTS_KB = 1000.0, 400.0
PAGES = ("/", "/alignment", "/calibration", "/votes", "/consensus", *PAGES_OF_THE_LOOP)
READ = """() => ({
    paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
    scripts: performance.getEntriesByType("resource")
        .filter((one) => one.initiatorType === "script" || one.name.endsWith(".js"))
        .reduce((sum, one) => sum + one.encodedBodySize, 0),
})"""


class Loads(NamedTuple):
    page: str
    paints_ms: list[float]
    scripts_kb: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--votes", type=int, default=20_000)
    parser.add_argument("--loads", type=int, default=5)
    given = parser.parse_args()
    limits, chromium = Limits(), find_chromium()
    if chromium is None:
        limits.skip(f"no Chromium on this machine. {CURE}")
        return limits.print_summary()
    with tempfile.TemporaryDirectory(prefix="rlhf-bench-") as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        url = f"sqlite:///{home / 'store.db'}"
        fill(url, home, make_files(folder, given.votes), given.votes)
        with run_server(url, home) as (address, _):
            link = f"{address}/login?token={make_login(url)}"
            found = list(load_pages(chromium, address, link, given.loads))
    print(f"{'page':>24}{'p50 ms':>9}{'p95 ms':>9}{'scripts, kB':>13}")
    for page, paints, scripts in found:
        p50, p95 = np.percentile(paints, [50, 95])
        print(f"{page:>24}{p50:>9.0f}{p95:>9.0f}{scripts:>13.0f}")
    slowest = max(found, key=lambda one: float(np.percentile(one.paints_ms, 95)))
    p95 = float(np.percentile(slowest.paints_ms, 95))
    limits.check(
        p95 <= PAINT_MS,
        f"first contentful paint p95 at most {p95:.0f} ms ({slowest.page}), limit {PAINT_MS:g} ms",
    )
    largest = max(found, key=lambda one: one.scripts_kb)
    limits.check(
        0 < largest.scripts_kb <= SCRIPTS_KB,
        f"scripts of a page at most {largest.scripts_kb:.0f} kB ({largest.page}), limit "
        f"{SCRIPTS_KB:g} kB",
    )
    return limits.print_summary()


def make_login(url: str) -> str:
    """The secret of a login link for an administrator."""
    with open_store(url) as store:
        user = store.users.add(
            email="reader@bench.test", name="Reader", roles=[Role.ADMIN], actor="bench"
        )
        return store.tokens.issue(
            user.user_id, kind="login", lifetime=timedelta(hours=1), actor="bench"
        )[0]


def load_pages(chromium: str, address: str, link: str, n_loads: int) -> Iterator[Loads]:
    """Each page with what was measured of it; every load has a browser context of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        page.get_by_role("button", name="Log in with this link").click()
        page.wait_for_url(lambda url: "login" not in url)
        session = context.storage_state()
        for _, path, is_counted in COUNTED:
            while not is_counted(context.request.get(address + path).json()):
                page.wait_for_timeout(200)
        for path in PAGES:
            paints, scripts = [], 0.0
            for n in range(n_loads + 1):
                fresh = browser.new_context(
                    storage_state=session, viewport={"width": 1280, "height": 800}
                )
                page = fresh.new_page()
                page.goto(address + path)
                page.wait_for_timeout(700)  # charts load their script later
                page.wait_for_function(
                    "performance.getEntriesByName('first-contentful-paint').length"
                )
                read = page.evaluate(READ)
                fresh.close()
                if n > 0:
                    paints.append(float(read["paint"]))
                scripts = max(scripts, read["scripts"] / 1000)
            yield Loads(path, paints, scripts)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
