"""The renderer by itself, in Chromium: every text node is a slice of the source, nothing grows out
of hand, marks survive any view.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_actions import until
from tests.browser.payloads import ALIVE, PAYLOADS
from tests.browser.people import LEFT, RIGHT, People, people

SAMPLES = [
    LEFT,
    RIGHT,
    "",
    "\n\n",
    "# one\n### two\n###### three\n# four",
    "> a\n> > b\n> - c\nlazy",
    "1. a\n   - b\n\n     c\n2. d\n\nafter",
    "```\nopen for ever",
    "~~~py\nx\n~~~\ny",
    "a *b **c** d* ~~e~~ `` f ` g `` \\*h\\*",
    "[a](b) ![c](d) [e] (f) [g](h\ni)",
    "| a | b |\n|---|:-:|\n| 1 \\| 2 | 3 |\nno row",
    "***\n---\n_ _ _",
    "tab\tand \u00a0 and 🌌🌊 and e\u0301",
    "a_b_c __d__ _e_ *f",
    "\r\n- x\r\n- y",
    "> $$a\n> *b*$$ $5\n\n| $|x|$ | `$y$` |\n|---|---|\n\\(c\\) \\[ \\frac{d",
]
WORDS = [
    "*",
    "**",
    "_",
    "`",
    "```",
    "~~",
    "[",
    "](",
    ")",
    "|",
    "\n",
    "\n\n",
    "- ",
    "1. ",
    "> ",
    "# ",
    "\\",
    "🌌",
    "x",
    " word ",
    "|---|",
    "    ",
    "<b>",
    "$",
    "$$",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
]
NASTY = [
    "*" * 100_000,
    "[" * 100_000,
    "`" * 50_000 + "a",
    "* a " * 40_000,
    "> " * 60_000,
    "- " * 60_000,
    "|" * 100_000 + "\n|---|\n",
    "_a" * 60_000,
    "a](" * 50_000,
    "\n" * 150_000,
    "x " * 100_000,
    "~~a" * 50_000,
    "`a" * 60_000,
    "- a\n" * 30_000,
    "> a\n" * 40_000,
    "\\(" * 50_000,
    "$a " * 33_000,
    "$x$ " * 25_000,
    "\\[$a$" * 20_000,
    "\\begin{a}" * 11_000,
]

CHECK = """async ([raw, marks]) => {
    const { render, startOf } = await import("/static/markdown.js");
    const wrong = [];
    let took = 0;
    for (const isRaw of [false, true]) {
        const start = performance.now();
        const box = document.createElement("div");
        box.append(render(raw, { isRaw, marks }));
        took = Math.max(took, performance.now() - start);
        const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
        let end = 0;
        let marked = "";
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            if (node.parentElement.closest(".katex")) continue; // the drawing of a slice
            const at = startOf(node);
            if (at === undefined || raw.slice(at, at + node.length) !== node.data)
                wrong.push(`not a slice at ${at}: ${node.data}`);
            if (at < end) wrong.push(`out of order at ${at}`);
            end = at + node.length;
            if (node.parentElement.tagName === "MARK") marked += node.data;
        }
        if (isRaw && box.textContent !== raw) wrong.push("raw is not the source");
        if (isRaw && marks.length
            && marked !== marks.map((m) => raw.slice(m.start, m.end)).join(""))
            wrong.push("marks moved");
        if (box.querySelector(ALIVE)) wrong.push("something alive");
    }
    return [wrong, took];
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[People]:
    """It only serves the scripts: no test changes it."""
    with people(tmp_path_factory.mktemp("site") / "home", migrated) as running:
        yield running


@pytest.fixture
def page(site: People, context: Any) -> Any:
    new_page = context.new_page()
    new_page.goto(site.url + "/login")
    return new_page


def expect_true_places(page: Any, raw: str, marks: list[dict[str, Any]] | None = None) -> float:
    wrong, took = page.evaluate(CHECK.replace("ALIVE", repr(ALIVE)), [raw, marks or []])
    assert wrong == [], raw[:200]
    return float(took)


def test_every_text_node_is_a_slice_of_the_source(page: Any) -> None:
    rng = random.Random(4)
    for raw in [*SAMPLES, *PAYLOADS, *("".join(rng.choices(WORDS, k=60)) for _ in range(300))]:
        expect_true_places(page, raw)


def test_highlights_keep_their_place(page: Any) -> None:
    rng = random.Random(5)
    for raw in ["".join(rng.choices(WORDS, k=50)) for _ in range(100)]:
        units = len(raw.encode("utf-16-le")) // 2
        cuts = sorted(rng.sample(range(units + 1), 4))
        expect_true_places(
            page,
            raw,
            [
                {"start": cuts[0], "end": cuts[1], "sign": "+"},
                {"start": cuts[2], "end": cuts[3], "sign": "-"},
            ],
        )


@pytest.mark.parametrize("raw", NASTY, ids=lambda raw: repr(raw[:6]))
def test_no_text_blocks_the_page(page: Any, raw: str) -> None:
    began = time.monotonic()
    expect_true_places(page, raw)
    assert time.monotonic() - began < 60, "seconds; work that grows with the square takes minutes"


def test_markdown_structure_is_rendered(page: Any) -> None:
    counts = page.evaluate(
        """async (raw) => {
            const { render } = await import("/static/markdown.js");
            const box = document.createElement("div");
            box.append(render(raw));
            return Object.fromEntries(
                ["h3", "strong", "em", "ol > li", "th", "td", "pre code"].map(
                    (s) => [s, box.querySelectorAll(s).length]));
        }""",
        LEFT,
    )
    assert counts == {"h3": 1, "strong": 1, "em": 1, "ol > li": 3, "th": 3, "td": 6, "pre code": 1}


@pytest.mark.parametrize(
    ("raw", "html"),
    [
        ("[x] [e][f] &amp; <b>", "<p>[x] [e][f] &amp;amp; &lt;b&gt;</p>"),
        (
            '![*a*](b "t")',
            '<p><span class="image"><em>a</em></span><span class="address">b "t"</span></p>',
        ),
        (
            "|a||c|\n|-|-|-|\n||2|",
            '<div class="table"><table><thead><tr><th>a</th><th></th><th>c</th></tr></thead>'
            "<tr><td></td><td>2</td></tr></table></div>",
        ),
        (
            "> a\n> *b*\n\n7. c  \n   d\\\n   e",
            "<blockquote><p>a\n<em>b</em></p></blockquote>"
            '<ol start="7"><li><p>c\nd\ne</p></li></ol>',
        ),
        (
            "- a\n  ```py\n  x\n\n  y\n  ```",
            "<ul><li><p>a</p><pre><code>x\n\ny</code></pre></li></ul>",
        ),
    ],
)
def test_each_element_is_rendered_like_html(page: Any, raw: str, html: str) -> None:
    assert (
        page.evaluate(
            """async (raw) => {
                const { render } = await import("/static/markdown.js");
                const box = document.createElement("div");
                box.append(render(raw));
                return box.innerHTML;
            }""",
            raw,
        )
        == html
    )


@pytest.mark.parametrize(
    ("raw", "formulas"),
    [
        (r"$x*y*z$ and \(a_1\)", [r"$x*y*z$", r"\(a_1\)"]),
        ("\\[ a \\\\\n- b \\]", ["\\[ a \\\\\n- b \\]"]),
        ("$$\na\n=\nb\n$$", ["$$\na\n=\nb\n$$"]),
        (r"\begin{align}a&=b\\c\end{align}.", [r"\begin{align}a&=b\\c\end{align}"]),
        (r"$a\$b$ is the $n$th, 是$x$的", [r"$a\$b$", "$n$", "$x$"]),
        ("$5 and $6, US$20,000 or US$30,000, from $5 to 10$, $1.5M–$2M, $5-$6", []),
        ("$, $$, $$$; $$ and $$; 5$ or 6$", []),
        ("$HOME/$PATH and ${a}/${b}", []),
        (r"costs \$5 or \$6, \\(x\\)", []),
        ("`$x$`\n```\n$a$\n```\n~~~\n$b$\n~~~\n$c$", ["$c$"]),
        ("$5, then $x$ for $6", ["$x$"]),
        ("One \\[ unclosed\n\nand $x$, then $$\\frac{1}{2", ["$x$", "$$\\frac{1}{2"]),
    ],
)
def test_prices_code_and_shells_are_no_formulas(page: Any, raw: str, formulas: list[str]) -> None:
    sources = page.evaluate(
        """async (raw) => {
            const { findFormulas } = await import("/static/formulas.js");
            return findFormulas(raw).map(({ start, end }) => raw.slice(start, end));
        }""",
        raw,
    )
    assert sources == formulas


def test_formulas_are_drawn_and_others_stay_as_written(page: Any) -> None:
    raw = (
        r"**Bold** $x*y*z$, \[ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} \] "
        r"$\vec{v}$ $\overbrace{a}$ $\Biggl\{ \sqrt{2}$ $\nonsense$ \\ "
        r"$\href{javascript:alert(1)}{x}$ $\includegraphics{https://evil.example/x}$ and $5"
    )
    parts = page.evaluate(
        """async (raw) => {
            const { render } = await import("/static/markdown.js");
            const box = document.createElement("div");
            box.append(render(raw));
            document.body.append(box);
            while (!box.querySelector(".drawn")) await new Promise((go) => setTimeout(go, 20));
            await document.fonts.ready;
            return {
                tex: [...box.querySelectorAll(".drawn > .tex")].map((one) => one.textContent),
                plain: [...box.querySelectorAll(".formula:not(.drawn)")].map(
                    (one) => one.textContent),
                rows: box.querySelectorAll(".mtable .mord").length >= 4,
                fonts: [...document.fonts].filter(
                    ({ status, family }) => status === "loaded" && /KaTeX/.test(family)).length > 0,
                links: box.querySelectorAll("a, img").length,
                text: box.firstChild.lastChild.data,
            };
        }""",
        raw,
    )
    assert r"$x*y*z$" in parts["tex"]
    assert [tex for tex in parts["plain"] if "nonsense" in tex] == [r"$\nonsense$"]
    assert parts["rows"]
    assert parts["fonts"]
    assert parts["links"] == 0
    assert parts["text"] == " and $5"


def test_a_text_without_a_formula_loads_no_katex(page: Any) -> None:
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))

    def is_loaded() -> bool:
        page.evaluate(
            "fetch('/login').then(() => 0)"
        )  # a request that comes after those of the renderer
        return any("katex" in url for url in urls)

    expect_true_places(page, "It costs $5 and $6. `$x$`")
    assert not is_loaded()
    expect_true_places(page, "$x$")
    until(is_loaded, "the request for KaTeX")


def test_long_markers_of_a_list_stay_inside_the_text(page: Any) -> None:
    room, needed = page.evaluate(
        """async () => {
            const { render } = await import("/static/markdown.js");
            const box = document.createElement("div");
            box.className = "text";
            box.append(render("999. a"));
            document.body.append(box);
            const style = getComputedStyle(box.querySelector("ol"));
            const pen = document.createElement("canvas").getContext("2d");
            pen.font = style.font;
            return [parseFloat(style.paddingLeft), pen.measureText("999. ").width];
        }"""
    )
    assert room >= needed
