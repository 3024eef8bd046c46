"""WCAG AA as far as a machine can tell (axe-core), both themes, a phone, 200 %; and what it cannot:
B is within sight, keys reach all.
"""

from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.records import NewFeedback, Role
from tests.browser.page_actions import log_in, press, vote, wait_for_card
from tests.browser.people import People
from tests.browser.test_pages import PAGES
from tests.policy_versions import put_versions

WEB = Path(__file__).resolve().parents[2] / "rlhf_pipeline" / "web"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Width and height in CSS pixels; 640 x 400 is 1280 x 800 at 200 %.
SIZES = {"desktop": (1280, 800), "zoom": (640, 400), "phone": (390, 844), "small phone": (360, 640)}


def faults(page: Any, is_resized: bool = False) -> list[str]:
    """What axe-core finds on the page as it is, in both themes; the light one is left on. With
    `is_resized`, the dark one is that of a phone and the light one that of a desktop.
    """
    # Through the debugger and not as a script element: our policy would refuse that, as it should.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    messages = []
    for scheme, size in (("dark", "phone"), ("light", "desktop")):
        if is_resized:
            width, height = SIZES[size]
            page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        violations = page.evaluate("rules => axe.run(document, { runOnly: rules })", RULES)
        messages += [
            f"{scheme}, {v['id']}: {node['html'][:120]} "
            f"{node['any'][0]['message'] if node['any'] else ''}"
            for v in violations["violations"]
            for node in v["nodes"]
        ]
    return messages


def opened(browser: Any, site: People, size: str = "desktop", path: str = "/annotate") -> Any:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = context.new_page()
    user = site.add(f"{size.replace(' ', '')}@example.org", Role.ADMIN, name="Ada")
    log_in(page, site, user, path)
    return page


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_annotate_page_passes_axe(site: People, browser: Any, size: str) -> None:
    site.furnish(6)
    site.store.guidelines.add("# Kind\n\nand *correct*", after=0, actor="test")
    page = opened(browser, site, size)
    wait_for_card(page)
    press(page, "t")  # a narrow screen takes no vote before both are read
    vote(page, "1")
    assert faults(page) == []
    press(page, "t", "v", "2", "f", "c", "8", "d", "a", "Escape")
    assert page.get_attribute('[data-flag="pii"]', "aria-pressed") == "true"
    assert faults(page) == []
    for key in "g?":
        press(page, key)
        assert faults(page) == []
        press(page, "Escape")
    press(page, "p")
    assert faults(page) == []
    page.context.close()


def test_other_pages_pass_axe(site: People, browser: Any) -> None:
    ids = site.furnish(4, overlap=2)
    put_versions(site.store, site.settings.frames, site.settings.project)
    page = opened(browser, site)
    wait_for_card(page)
    vote(page, "1")
    user = site.store.users.all()[0]
    site.store.feedback.add(
        NewFeedback(
            kind="rating", value=4, prompt="2+2?", completion="4", text="good", session_id="s"
        ),
        created_by=user.user_id,
    )
    site.store.guidelines.add("# Kind", after=0, actor="test")
    annotator = f"/quality/annotator?annotator_id={user.user_id}"
    more = "/consensus?state=all", f"/comparisons/{ids[0]}", annotator, "/nowhere", "/login"
    for path in (*PAGES, *more):
        page.goto(site.url + path)
        page.wait_for_load_state()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert faults(page, is_resized=True) == [], path
    page.context.close()


@pytest.mark.parametrize("size", SIZES)
def test_completions_and_choices_are_visible(site: People, browser: Any, size: str) -> None:
    long = "\n\n".join(
        f"Paragraph {i} of a very long text that needs to be scrolled. " * 4 for i in range(30)
    )
    site.publish([(f"{long} {i}", f"{long} a{i}", f"{long} b{i}") for i in range(3)])
    page = opened(browser, site, size)
    wait_for_card(page)
    width, height = SIZES[size]
    left, right = page.locator("#left").bounding_box(), page.locator("#right").bounding_box()
    assert right["y"] + 60 <= height, "B begins where it is seen"
    assert left["y"] + 40 <= height
    assert abs(left["height"] - right["height"]) <= 1
    assert abs(left["width"] - right["width"]) <= 1
    fonts = [
        page.evaluate(f"getComputedStyle(document.querySelector('{pane}')).font")
        for pane in ("#left", "#right")
    ]
    assert fonts[0] == fonts[1]
    for button in page.locator(".choices button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height
        assert box["height"] >= 24, "a finger's size (WCAG 2.5.8)"
        assert box["width"] >= 24
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#left").evaluate("pane => (pane.scrollTop = pane.scrollHeight)")
    page.wait_for_function(  # they scroll in step
        "() => { const pane = document.querySelector('#right');"
        " return pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 5 }"
    )
    page.context.close()


@pytest.mark.parametrize("size", ["zoom", "phone"])
def test_no_page_scrolls_sideways(site: People, browser: Any, size: str) -> None:
    site.furnish(3)
    page = opened(browser, site, size, path="/progress")
    for path in PAGES:
        page.goto(site.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], path
    page.context.close()


def test_a_vote_can_be_cast_by_touch_alone(site: People, browser: Any) -> None:
    site.furnish(3)
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    user = site.add("ann@example.org")
    log_in(page, site, user)
    wait_for_card(page)
    before = page.inner_text("#prompt")
    page.get_by_role("button", name="B", exact=True).tap()
    page.locator('[data-choice="b"][data-strength="3"]').tap()
    page.wait_for_function(
        "before => document.querySelector('#prompt').innerText !== before", arg=before
    )
    page.wait_for_selector("#outbox", state="hidden")
    assert [v.strength for v in site.votes(user)] == [3]
    context.close()


def test_the_tab_key_reaches_every_control_in_order(site: People, browser: Any) -> None:
    site.furnish(2)
    page = opened(browser, site)
    wait_for_card(page)
    stops: list[str] = []
    while True:
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "(() => { const e = document.activeElement; const name = e.id || e.dataset.choice || "
            "e.textContent.trim();"
            " return [e === document.body ? 'body' : name, getComputedStyle(e).outlineStyle] })()"
        )
        if name == "body" or len(stops) > 100:
            break
        assert outline != "none", f"the focus on {name} is not seen"
        stops.append(name)
    assert stops[0] == "Skip to content"
    order = [
        stops.index(name)
        for name in (
            "guidelines-open",
            "prompt",
            "left",
            "right",
            "both_bad",
            "skip",
            "reason",
            "mark-plus",
        )
    ]
    assert order == sorted(order)
    page.context.close()


def test_pages_are_below_100_kb_and_400_with_charts() -> None:
    import gzip

    files = [path for path in WEB.rglob("*") if path.suffix in (".js", ".css")]
    weights = {path: len(gzip.compress(path.read_bytes(), 9)) for path in files}
    charts = sum(
        size
        for path, size in weights.items()
        if path.parent.name == "charts" or path.name == "echarts.min.js"
    )
    formulas = sum(size for path, size in weights.items() if path.name.startswith("katex"))
    size = sum(weights.values()) - formulas  # loaded where a text has a formula
    assert formulas < 100_000
    print(f"{len(files)} files, {size / 1000:.1f} kB gz, {charts / 1000:.1f} of them for charts")
    assert size - charts < 100_000
    assert size < 400_000
