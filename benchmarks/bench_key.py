"""What an annotator feels: from the key to the next comparison on the screen, in headless Chromium.
Prints one table.

    python benchmarks/bench_key.py [--votes 100] [--every-ms 500]

`rlhf serve` runs as an operator starts it, with 400 comparisons of about 2,000 characters of
Markdown. A real key is pressed every half second; the time runs from the event's own time stamp to
the second animation frame after it, in which the next comparison is checked to stand (the first is
where it was painted). Two frames take 17 to 33 ms by themselves at 60 Hz: `no vote` is the same
measure of a key that means nothing, in the same run. The burst presses the next key as soon as a
comparison stands. At the end all votes must be in the store. The limit holds on an otherwise idle
machine.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "tests")) if path not in sys.path]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits  # noqa: E402
from benchmarks.web_server import open_store, run_server  # noqa: E402
from rlhf_pipeline.core.frames import COMPARISONS, check_frame  # noqa: E402
from rlhf_pipeline.core.records import Role, utc_now  # noqa: E402

P95_MS = 35.0
N_COMPARISONS = 400
BURST = 60
KEYS = "1234567890"
COMPLETION = """## Answer {i}

Sunlight looks **white**, but it is a mix of *all* colours. `scatter(blue) > scatter(red)`:

1. Light meets the molecules of the air, far smaller than its waves.
2. Short waves are scattered more than long ones; see [the law](https://example.org/{i}).
3. So blue reaches your eyes from **every** direction.

| colour | wave | scattered |
|---|---|---|
| red | 700 nm | little |
| blue | 450 nm | much |

```python
def scattered(wave: float) -> float:
    return wave**-4
```

"""
PROSE = (
    "People have asked this for as long as there have been people and skies, and the answer "
    "took until the nineteenth century to be found. "
)

WATCH = """() => {
    window.taken = [];
    const text = () =>
        document.querySelector("#prompt").textContent + document.querySelector("#left").textContent;
    document.addEventListener("keydown", (event) => {
        const before = text();
        const look = (n) => requestAnimationFrame(() => {
            const isNext = text() !== before && !document.querySelector("#desk").hidden;
            if (n >= 2)
                window.taken.push(
                    { ms: performance.now() - event.timeStamp, isNext, key: event.key });
            else look(n + 1);
        });
        look(1);
    }, { capture: true });
}"""
BURST_WATCH = """(n) => new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error("the burst did not end within a minute")), 60_000);
    const text = () =>
        document.querySelector("#desk").hidden ? "" : document.querySelector("#prompt").textContent;
    const taken = [];
    const accepts = () => "acceptsVotes" in document.querySelector("#annotate").dataset;
    const step = () => {
        // a moment after each paint, which nobody's hand notices
        if (!accepts()) return requestAnimationFrame(step);
        const before = text();
        const start = performance.now();
        document.body.dispatchEvent(
            new KeyboardEvent("keydown", { key: String(1 + (taken.length % 9)), bubbles: true }));
        const look = () => requestAnimationFrame(() => {
            const now = text();
            if (now === "" || now === before) return look();
            requestAnimationFrame(() => {
                taken.push(performance.now() - start);
                taken.length < n ? step() : resolve(taken);
            });
        });
        look();
    };
    step();
})"""


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--votes", type=int, default=100)
    arguments.add_argument(
        "--every-ms",
        type=float,
        default=500,
        help="above the 150 ms in which the page takes no vote",
    )
    options = arguments.parse_args()
    limits = Limits()
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if chromium is None:
        limits.skip("no Chromium; install it, or name yours by CHROMIUM=/path/to/chromium")
        return limits.print_summary()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{home / 'store.db'}"
        user_id, secret = furnish(url)
        with run_server(url, home) as (address, _):
            idle, keys, burst = measure(
                chromium, f"{address}/login?token={secret}", options.votes, options.every_ms
            )
        with open_store(url) as store:
            stored = store.votes.page(annotator_id=user_id, limit=10_000)
    n_cast = options.votes + BURST
    print(f"{'':>28}{'n':>6}{'p50 ms':>9}{'p95 ms':>9}{'max ms':>9}")
    for name, durations in (
        ("no vote (two frames)", idle),
        (f"key, one each {options.every_ms:g} ms", keys),
        ("burst", burst),
    ):
        p50, p95 = np.percentile(durations, [50, 95])
        print(f"{name:>28}{len(durations):>6}{p50:>9.1f}{p95:>9.1f}{max(durations):>9.1f}")
    p95 = float(np.percentile(keys, 95))
    limits.check(p95 <= P95_MS, f"key to next comparison p95 {p95:.1f} ms, limit {P95_MS:g} ms")
    limits.check(len(stored) == n_cast, f"votes cast {n_cast}, stored {len(stored)}")
    return limits.print_summary()


def furnish(url: str) -> tuple[str, str]:
    """People and work; the annotator and the secret of a login link."""
    n = N_COMPARISONS
    long = [COMPLETION.format(i=i) + PROSE * 9 for i in range(n)]
    rows = {
        "day": utc_now().date().isoformat(),
        "comparison_id": [f"key-{i:05d}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": [
            f"Why is the sky blue, and not violet? Explain it to a curious ten-year-old. ({i})"
            for i in range(n)
        ],
        "completion_a_id": [f"a{i}" for i in range(n)],
        "completion_b_id": [f"b{i}" for i in range(n)],
        "completion_a": long,
        "completion_b": long[::-1],
        "model_version_a": "bench.policy@1",
        "model_version_b": "bench.policy@2",
        "category": "factual",
        "repeat_of": None,
        "position": range(n),
        "seed": 0,
    }
    frame = check_frame(pd.DataFrame(rows), COMPARISONS)
    with open_store(url) as store:
        store.migrate()
        store.comparisons.publish(frame, published_at=utc_now())
        store.cards.offer(frame["comparison_id"].tolist(), overlap=1)
        user = store.users.add(
            email="ann@bench.test", name="Ann", roles=[Role.ANNOTATOR], actor="bench"
        )
        secret, _ = store.tokens.issue(
            user.user_id, kind="login", lifetime=timedelta(hours=1), actor="bench"
        )
    return user.user_id, secret


def measure(
    chromium: str, link: str, n: int, every_ms: float
) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of keys that mean nothing, of votes, of a burst of votes."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(link)
        page.get_by_role("button", name="Log in with this link").click()
        page.wait_for_selector("#desk:not([hidden])")
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
        pressed(page, ["k"] * 20, every_ms)
        idle = [key["ms"] for key in page.evaluate("window.taken.splice(0)")]
        pressed(page, [KEYS[i % len(KEYS)] for i in range(n)], every_ms)
        keys = page.evaluate("window.taken.splice(0)")
        late = [key for key in keys if not key["isNext"]]
        assert len(keys) == n, f"{len(keys)} keys were seen of {n}"
        assert not late, f"{len(late)} keys had no next comparison in the second frame"
        burst = page.evaluate(BURST_WATCH, BURST)
        page.wait_for_selector("#outbox", state="hidden")
        browser.close()
    return idle, [key["ms"] for key in keys], burst


def pressed(page: Any, keys: list[str], every_ms: float) -> None:
    start = time.perf_counter()
    for i, key in enumerate(keys, start=1):
        page.keyboard.press(key)
        page.wait_for_timeout(max(0.0, start * 1000 + i * every_ms - time.perf_counter() * 1000))
    page.wait_for_timeout(200)


if __name__ == "__main__":
    sys.exit(main())
