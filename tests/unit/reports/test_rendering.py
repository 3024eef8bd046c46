"""Text stays text, whatever it holds, and no page fetches or runs anything."""

import pytest
from jinja2 import DictLoader

from rlhf_pipeline.reports import rendering
from rlhf_pipeline.reports.rendering import render_page
from rlhf_pipeline.reports.words import truncate
from tests.unit.reports.test_drift_page import Page

NASTY = [
    '<script>alert("x")</script>',
    "</td></table><img src=x onerror=alert(1)>",
    "a & b < c > d \"e\" 'f'",
    "]]><!--",
    "&lt;b&gt;",
    "{{ 7 * 7 }}",
]


@pytest.fixture(autouse=True)
def templates(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    sources: dict[str, str] = {"text": '<p aria-label="{{ text }}"><b>before</b>{{ text }}</p>'}
    environment = rendering._environment().overlay(loader=DictLoader(sources))
    monkeypatch.setattr(rendering, "_environment", lambda: environment)
    return sources


@pytest.mark.parametrize("text", NASTY)
def test_text_and_attributes_round_trip(text: str) -> None:
    page = Page(render_page("text", text=text))
    assert [tag for tag, _ in page.elements] == ["p", "b"]
    assert "".join(page.texts) == f"before{text}"
    assert page.attributes("aria-label") == [text]


@pytest.mark.parametrize(
    "source",
    [
        "<script>1</script>",
        '<img src="data:,">',
        "<iframe></iframe>",
        '<link rel="stylesheet">',
        '<a href="https://example.org">there</a>',
        '<a href="javascript:alert(1)">there</a>',
        '<p onclick="x">a</p>',
        '<p style="background:url(x)">a</p>',
        '<use xlink:href="#a"></use>',
    ],
)
def test_page_with_scripts_or_remote_files_is_refused(
    templates: dict[str, str], source: str
) -> None:
    templates["page"] = source
    with pytest.raises(ValueError, match="run or fetch"):
        render_page("page")
    templates["there"] = '<a href="#there">there</a>'
    assert render_page("there") == '<a href="#there">there</a>'


@pytest.mark.parametrize(
    ("text", "cut"),
    [("short", "short"), ("a\n\n b\tc", "a b c"), ("x" * 30, "x" * 9 + " …"), ("", "")],
)
def test_a_long_prompt_is_cut_to_one_line(text: str, cut: str) -> None:
    assert truncate(text, 10) == cut
