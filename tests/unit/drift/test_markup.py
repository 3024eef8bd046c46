"""Text stays text, whatever it holds, and nothing on a page fetches or runs."""

from html.parser import HTMLParser

import pytest

from rlhf_pipeline.drift.markup import make_element, make_table, render_html, truncate

NASTY = [
    '<script>alert("x")</script>',
    "</td></table><img src=x onerror=alert(1)>",
    "a & b < c > d \"e\" 'f'",
    "]]><!--",
    "&lt;b&gt;",
]


class Reader(HTMLParser):
    """Tags, attributes and text as a browser would read them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.mark.parametrize("text", NASTY)
def test_text_and_attributes_come_out_as_they_went_in(text: str) -> None:
    found = read(render_html(make_element("p", make_element("b", "before"), text, aria_label=text)))
    assert found.tags == ["p", "b"]
    assert found.text == f"before{text}"
    assert found.attributes == [("aria-label", text)]


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ("script", {}),
        ("img", {"src": "data:,"}),
        ("iframe", {}),
        ("link", {}),
        ("a", {"href": "https://example.org"}),
        ("a", {"href": "javascript:alert(1)"}),
        ("p", {"onclick": "x"}),
        ("p", {"style": "background:url(x)"}),
        ("use", {"xlink_href": "#a"}),
    ],
)
def test_what_could_run_or_fetch_is_refused(tag: str, attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="run or fetch"):
        make_element(tag, **attributes)
    assert render_html(make_element("a", "there", href="#there")) == '<a href="#there">there</a>'


def test_what_is_none_is_left_out_and_runs_of_children_are_joined() -> None:
    assert (
        render_html(make_element("p", None, ["a", None, make_element("b", "c"), "d"], id=None))
        == "<p>a<b>c</b>d</p>"
    )


def test_a_table_says_what_its_headers_are_for() -> None:
    found = render_html(make_table("Things", ["Name", "Count"], [["one", "1"]], numeric=[1]))
    assert '<th scope="col" class="number">Count</th>' in found
    assert '<th scope="row">one</th><td class="number">1</td>' in found
    assert "<caption>Things</caption>" in found


@pytest.mark.parametrize(
    ("text", "shown"),
    [("short", "short"), ("a\n\n b\tc", "a b c"), ("x" * 30, "x" * 9 + " …"), ("", "")],
)
def test_a_long_prompt_is_cut_to_one_line(text: str, shown: str) -> None:
    assert truncate(text, 10) == shown
