"""Wherever an accuracy is delivered, its noise ceiling is too: read from the source of what people are shown."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from assets.delivery import _metadata as metadata_of

ROOT = Path(__file__).parent.parent
SHOWN = ("assets", "demo", "replay", "rlhf_pipeline/cli", "rlhf_pipeline/web", "rlhf_pipeline/drift")
# What has the word in its name and is no share of people's judgements found by a model.
OTHERS = {
    "token_accuracy": "of next tokens, which nobody judged",
    "gold_accuracy": "of an annotator on known answers: a ceiling is of models",
}


def names(tree: ast.AST) -> Iterator[str]:
    """Keys, headings, fields and attributes: how a figure is called where it is handed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def lacks_its_ceiling(source: str) -> list[str]:
    said = {name.lower() for name in names(ast.parse(source))}
    accuracies = sorted(name for name in said if "accuracy" in name and not any(other in name for other in OTHERS))
    return [] if any("ceiling" in name for name in said) else accuracies


@pytest.mark.parametrize(
    "path", [p for folder in SHOWN for p in sorted((ROOT / folder).rglob("*.py"))], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_no_accuracy_is_shown_without_its_ceiling(path: Path) -> None:
    missing = lacks_its_ceiling(path.read_text(encoding="utf-8"))
    assert not missing, f"{path.name} shows {missing} and no noise ceiling: what a perfect model could reach has to stand beside it"


def test_the_search_finds_what_it_is_for() -> None:
    assert lacks_its_ceiling('metrics = {"test_accuracy": report.test.accuracy.value}') == ["accuracy", "test_accuracy"]
    assert lacks_its_ceiling('table.add_row("accuracy")') == ["accuracy"]
    assert not lacks_its_ceiling('metrics = {"accuracy": a, "noise_ceiling": c}')
    assert not lacks_its_ceiling('metrics = {"token_accuracy": a}')


TEMPLATES = sorted(p for p in (ROOT / "rlhf_pipeline" / "web").rglob("*") if p.suffix in {".html", ".js", ".jinja"})


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_page_shows_an_accuracy_without_its_ceiling(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert "accuracy" not in text or "ceiling" in text


def test_where_no_votes_overlap_the_ui_says_that_the_ceiling_is_unknown() -> None:
    def said(**numbers: float) -> dict[str, object]:
        return metadata_of(pd.DataFrame({"x": [1]}), numbers, "headline", None, {})

    assert said(test_accuracy=0.7)["noise_ceiling"] == "unknown: no two votes on one comparison overlap"
    assert said(test_accuracy=0.7, noise_ceiling=0.8)["noise_ceiling"] == 0.8
    for others in ({"token_accuracy": 0.5}, {"n_pairs": 3.0}):
        assert "noise_ceiling" not in said(**others)
