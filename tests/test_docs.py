"""The documents name everything there is, point at what exists, and show what the definitions
are.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from docs import draw_graph, reference
from rlhf_pipeline.core.config import DAGSTER_URL, ENV_PREFIX, Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.simulation.testing import (
    check_backend,
    check_calibrator,
    check_detector,
    check_generator,
)
from rlhf_pipeline.watch.drift import DETECTORS

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "llms.txt")
] + sorted((ROOT / "docs").rglob("*.md"))
# Vocabulary (docs/vocabulary.md): these are said with other words, or not at all.
FORBIDDEN = (
    "response",
    "labeler",
    "labeller",
    "rater",
    "seamless",
    "powerful",
    "cutting-edge",
    "state-of-the-art",
    "simply",
    "blazing",
)


def text_of(*pages: Path) -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


DOCS = text_of(*PAGES)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))


@cache
def generated() -> dict[str, str]:
    """The pages of the reference, by their path below docs/."""
    return {f"reference/{name}.md": write() for name, write in reference.PAGES.items()}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as Markdown's table of contents makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def test_the_reference_has_every_setting_command_and_member() -> None:
    pages = generated()
    settings = {f"`{ENV_PREFIX}{name.upper()}`" for name in Settings.model_fields}
    assert [name for name in settings if name not in pages["reference/settings.md"]] == []
    assert pages["reference/commands.md"].count("\n## rlhf ") > 50
    assert pages["reference/api.md"].count("\n| `GET ") > 40
    names = [f"`{name}`" for members in reference.members().values() for name in members]
    assert [name for name in names if name not in pages["reference/members.md"]] == []


def test_named_commands_exist() -> None:
    """`rlhf GROUP COMMAND` in code marks and blocks, of the notebooks too."""
    known = set(re.findall(r"^## rlhf (.*)$", generated()["reference/commands.md"], re.MULTILINE))
    groups = {name.split()[0] for name in known if " " in name}
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    text = text_of(*pages, *(ROOT / "docs" / "notebooks").glob("*.ipynb"))
    named = set(re.findall(r"\brlhf ([a-z]+)(?: ([a-z][a-z-]+))?", text))
    commands = {f"{word} {two}" if word in groups and two else word for word, two in named}
    first = {name.split()[0] for name in known}
    assert sorted(name for name in commands if name not in known and name not in first) == []


def test_every_detector_has_a_card() -> None:
    page = text_of(ROOT / "docs" / "how" / "detectors.md")
    assert [name for name in DETECTORS if f"`{name}`" not in page] == []


def test_the_site_has_every_page() -> None:
    nav = set(re.findall(r"[\w/-]+\.md$", text_of(ROOT / "mkdocs.yml"), re.MULTILINE))
    pages = {
        p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.is_relative_to(ROOT / "docs")
    }
    notebooks = {f"notebooks/{p.stem}.md" for p in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert nav == pages | set(generated()) | notebooks


def test_the_readme_is_short() -> None:
    assert len(text_of(ROOT / "README.md").split()) <= 900


def test_no_setting_is_named_that_does_not_exist() -> None:
    named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", DOCS + text_of(ROOT / ".env.example")))
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | {
        DAGSTER_URL,
        f"{ENV_PREFIX}RETENTION__RUN_DAYS",
    }
    assert named <= known | {ENV_PREFIX}


def test_the_examples_of_extending_pass_their_checks() -> None:
    pages = text_of(*sorted((ROOT / "docs" / "guides").glob("extending*.md")))
    blocks = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    classes: dict[str, Any] = {}
    for block in blocks:
        if "my_package" not in block and "__file__" not in block:
            exec(block, classes)
    check_generator(classes["Greetings"], categories=["creative"], has_difficulties=False)
    check_backend(classes["EchoBackend"])
    check_detector(classes["Surplus"])
    check_calibrator(classes["Shrinkage"])


def test_the_picture_is_that_of_the_definitions() -> None:
    assert draw_graph.drawn(ROOT / "docs" / "graph.svg") == draw_graph.graph(), "run `make graph`"
    assert (ROOT / "docs" / "graph.svg").read_text(encoding="utf-8") == draw_graph.svg(
        draw_graph.graph()
    ), "run `make graph`"


def test_relative_links_lead_somewhere() -> None:
    texts = {(ROOT / "docs" / path).resolve(): text for path, text in generated().items()}
    texts |= {page.resolve(): text_of(page) for page in PAGES}
    broken = []
    for page, text in texts.items():
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            target = (page.parent / link).resolve() if link else page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not (target in texts or target.exists()):
                broken.append(f"{page.name}: {link}")
            elif anchor and anchor not in anchors(texts.get(target, "")):
                broken.append(f"{page.name}: {link}#{anchor}")
    assert broken == []


def test_named_make_targets_exist() -> None:
    code = "\n".join(a or b for a, b in re.findall(r"`([^`\n]+)`|^(make .*)$", DOCS, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b", code)) <= make_targets()


def test_documents_use_the_vocabulary() -> None:
    offenders = [
        (page.name, word)
        for page in PAGES
        for word in FORBIDDEN
        if re.search(rf"\b{word}s?\b", text_of(page), re.IGNORECASE)
    ]
    assert offenders == []


def test_named_paths_exist() -> None:
    """Paths in code marks that begin with a folder of the checkout."""
    folders = "rlhf_pipeline|assets|resources|jobs|sensors|demo|tests|docs|benchmarks|dagster_home"
    paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", DOCS)
    assert sorted({path for path in paths if not (ROOT / path).exists()}) == []


def test_every_error_is_in_the_tree_of_its_module() -> None:
    errors = import_module("rlhf_pipeline.core.errors")
    names = [
        n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, PipelineError)
    ]
    assert [name for name in names if name not in (errors.__doc__ or "")] == []


def test_the_readme_leaves_room_for_the_demos_own_words() -> None:
    assert "<!-- demo output -->" in text_of(ROOT / "README.md")


@pytest.mark.parametrize(
    ("stretch", "most"), [("From the request to its row", 12), ("From the row to its pair", 16)]
)
def test_a_vote_crosses_few_short_files(stretch: str, most: int) -> None:
    """Tracing takes minutes: `docs/vote-path.md` names the files, their lines are counted here."""
    page = (ROOT / "docs" / "vote-path.md").read_text()
    part = page.partition(f"## {stretch}\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `(\S+)` \|", part, re.MULTILINE)
    assert 5 < len(files) <= most
    lengths = {file: len((ROOT / file).read_text().splitlines()) for file in files}
    assert {file: n for file, n in lengths.items() if n > 400} == {}
