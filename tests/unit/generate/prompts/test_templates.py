import contextlib
import io
import re
from collections import Counter

import pytest
import yaml
from pydantic import ValidationError

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.records import Category, Difficulty
from rlhf_pipeline.generate.prompts import generate, is_right
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.generate.prompts.templates import load_shipped_templates, load_templates


def library(tmp_path, **template):
    row = {
        "id": "greeting",
        "category": "creative",
        "text": "Greet {who}.",
        "variables": {"who": ["Ana", "Ben"]},
    } | template
    path = tmp_path / "library.yaml"
    path.write_text(yaml.safe_dump({"templates": [row]}), encoding="utf-8")
    return path


def test_the_shipped_library_spans_six_categories_with_all_difficulties():
    templates = load_templates()
    ids_by_category = {c: {t.template_id for t in templates if t.category == c} for c in Category}
    assert sum(map(len, ids_by_category.values())) >= 12
    assert all(len(ids) >= 2 for ids in ids_by_category.values())
    assert {(t.category, t.difficulty) for t in templates} == {
        (c, d) for c in Category for d in Difficulty
    }


def test_the_wide_library_covers_six_categories_in_three_levels():
    templates = load_shipped_templates("wide")
    ids = {t.template_id for t in templates}
    assert len(ids) >= 60
    assert {(t.template_id, t.difficulty) for t in templates} == {
        (i, d) for i in ids for d in Difficulty
    }
    assert min(Counter(t.category for t in templates if t.difficulty == "easy").values()) >= 10
    assert not ids & {t.template_id for t in load_shipped_templates("taught")}
    assert len(load_shipped_templates("all")) == len(templates) + len(
        load_shipped_templates("taught")
    )
    checkable = {t.template_id for t in templates if t.reference is not None}
    assert len(checkable) >= 25


@pytest.mark.parametrize(
    "template", load_shipped_templates("wide"), ids=lambda t: f"{t.template_id}-{t.difficulty}"
)
def test_a_wide_template_fills_to_valid_prompts_with_references(template):
    steps = range(0, template.n_combinations, max(1, template.n_combinations // 97))
    drafts = [draft for i in steps if (draft := template.fill(i)) is not None]
    assert len(drafts) >= len(steps) // 5
    for draft in drafts:
        assert not re.search(r"[{}]|\ba [aeio]|  ", draft.text.replace("a one", "")), draft.text
        assert draft.text[0].isupper()
        assert draft.text[-1] in ".?!"
        assert (draft.reference is not None) == (template.reference is not None)
        assert draft.reference is None or (
            draft.reference.strip() and is_right(draft.reference, f"It is {draft.reference}.")
        )


def run_in_python(text):
    """What the code in a prompt prints, by Python itself."""
    code = re.search(r"runs (print\(.*\)) in ", text).group(1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {})
    return output.getvalue().strip()


@pytest.mark.parametrize(
    "template_id", ["sum_of_range", "text_methods", "integer_division", "sorted_words"]
)
def test_references_of_code_are_what_python_prints(template_id):
    drafts = [
        draft
        for t in load_shipped_templates("wide")
        if t.template_id == template_id
        for i in range(0, t.n_combinations, max(1, t.n_combinations // 61))
        if (draft := t.fill(i))
    ]
    assert len(drafts) > 100
    assert [d.text for d in drafts if run_in_python(d.text) != d.reference] == []


def test_the_libraries_of_a_run_are_chosen_by_name():
    taught = {t.template_id for t in load_shipped_templates("taught")}
    drawn = {
        name: set(generate(SourceParams(n=400, library=name), day="2026-01-01")["template_id"])
        for name in ("taught", "wide", "all")
    }
    assert drawn["taught"] <= taught
    assert not drawn["wide"] & taught
    assert drawn["all"] & taught
    assert drawn["all"] - taught
    with pytest.raises(ValidationError, match="library"):
        SourceParams(library="everything")


def test_checkable_templates_compute_the_reference():
    frame = generate(SourceParams(n=600), day="2026-01-01").set_index("text")
    for text, reference in frame["reference"].dropna().items():
        if "has" in text and "gets" in text:
            numbers = [int(w) for w in text.split() if w.isdigit()]
            assert int(reference) == sum(numbers)
    assert frame["reference"].notna().mean() > 0.5
    assert frame.loc[frame["category"].isin(["creative", "safety"]), "reference"].isna().all()


def test_used_prompts_do_not_exhaust_a_template(tmp_path):
    path = library(tmp_path, variables={"who": {"range": [1, 600]}})
    everyone = generate(SourceParams(n=600), day="2026-01-01", source_file=path)
    unused = {"Greet 7.", "Greet 300.", "Greet 600."}
    used = frozenset(everyone.loc[~everyone["text"].isin(unused), "prompt_id"])
    frame = generate(SourceParams(n=3), day="2026-01-02", source_file=path, exclude=used)
    assert set(frame["text"]) == unused


def test_distinct_variables_differ():
    frame = generate(SourceParams(n=300, categories={"reasoning": 1}), day="2026-01-01")
    bigger = frame.loc[frame["template_id"] == "which_is_bigger", "text"]
    assert all(
        len(set(text.removesuffix("?").split("bigger, ")[1].split(" or "))) == 2 for text in bigger
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            {"text": "Greet {whom}."},
            r"template 'greeting' \(row 1\): variables \['whom'\] are not defined",
        ),
        ({"variables": {"who": "people"}}, "variable 'who' names 'people'.*Known: none"),
        ({"reference": "guess who"}, "'guess who' is not an expression"),
        ({"reference": "ages[who]"}, r"variables \['ages'\] are not defined"),
        ({"variables": {"who": {"range": [3, 1]}}}, r"variable 'who' has the range \[3, 1\]"),
        ({"derived": {"much": "n + 1"}}, r"variables \['n'\] are not defined"),
        ({"derived": {"much": "import os"}}, "'import os' is not an expression"),
        ({"category": 7}, r"row 1\): category"),
        ({"text": "x" * 100_001, "variables": {}}, "100,001 bytes, the limit is 100,000"),
    ],
)
def test_a_broken_template_is_named_with_its_row(tmp_path, template, message):
    with pytest.raises(PromptError, match=message):
        load_templates(library(tmp_path, **template))


def test_an_unreadable_library_is_an_error(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_bytes(b"templates: \xff")
    with pytest.raises(PromptError, match="cannot be read"):
        load_templates(path)
    with pytest.raises(PromptError, match="cannot be read"):
        load_templates(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("reference", "completion", "right"),
    [
        ("Paris", "It is Paris.", True),
        ("Paris", "PARIS!", True),
        ("7", "There are 17.", False),
        ("7", "7", True),
        ("tea tea", "Here it is, Tea  tea.", True),
        ("tea tea", "tea", False),
        ("len", "Use lens.", False),
    ],
)
def test_completion_is_right_if_it_contains_the_reference_words(reference, completion, right):
    assert is_right(reference, completion) is right
