from collections import Counter

import pytest
import yaml

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.prompts import PromptParams, generate, is_right
from rlhf_pipeline.prompts.references import compute_reference
from rlhf_pipeline.prompts.templates import load_templates
from rlhf_pipeline.records import Category, Difficulty


def library(tmp_path, **template):
    row = {"id": "greeting", "category": "creative", "text": "Greet {who}.", "variables": {"who": ["Ana", "Ben"]}} | template
    path = tmp_path / "library.yaml"
    path.write_text(yaml.safe_dump({"templates": [row]}), encoding="utf-8")
    return path


def test_the_shipped_library_spans_six_categories_with_all_difficulties():
    templates = load_templates()
    ids_by_category = {c: {t.template_id for t in templates if t.category == c} for c in Category}
    assert sum(map(len, ids_by_category.values())) >= 12
    assert all(len(ids) >= 2 for ids in ids_by_category.values())
    assert {(t.category, t.difficulty) for t in templates} == {(c, d) for c in Category for d in Difficulty}


@pytest.mark.slow
def test_the_shipped_library_does_not_run_out():
    found = Counter()
    for template in load_templates():
        drafts = filter(None, map(template.fill, range(template.n_combinations)))
        found[template.category] += len({draft.prompt_id for draft in drafts})
    assert sum(found.values()) >= 20_000
    assert min(found.values()) >= 2_000


def test_checkable_templates_compute_the_reference():
    frame = generate(PromptParams(n=600), day="2026-01-01").set_index("text")
    for text, reference in frame["reference"].dropna().items():
        if "has" in text and "gets" in text:
            numbers = [int(w) for w in text.split() if w.isdigit()]
            assert int(reference) == sum(numbers)
    assert frame["reference"].notna().mean() > 0.5
    assert frame.loc[frame["category"].isin(["creative", "safety"]), "reference"].isna().all()


def test_numbers_of_a_table_are_references_without_a_decimal_point():
    following = next(t for t in load_templates() if t.template_id == "next_number")
    references = {following.fill(i).reference for i in range(following.n_combinations)}
    assert all(reference.isdigit() for reference in references)


def test_variables_that_must_differ_do():
    frame = generate(PromptParams(n=300, categories={"reasoning": 1}), day="2026-01-01")
    bigger = frame.loc[frame["template_id"] == "which_is_bigger", "text"]
    assert all(len(set(text.removesuffix("?").split("bigger, ")[1].split(" or "))) == 2 for text in bigger)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"text": "Greet {whom}."}, r"template 'greeting' \(row 1\): variables \['whom'\] are not defined"),
        ({"variables": {"who": "people"}}, "variable 'who' names 'people'.*Known: none"),
        ({"reference": {"rule": "guess", "of": ["who"]}}, "unknown reference rule 'guess'"),
        ({"reference": {"rule": "lookup", "of": ["who"], "table": "ages"}}, "unknown table 'ages'"),
        ({"category": "poetry"}, r"row 1\): category"),
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


def test_an_edited_library_is_read_again(tmp_path):
    assert load_templates(library(tmp_path))[0].text == "Greet {who}."
    assert load_templates(library(tmp_path, text="Hail to {who} from all.", variables={"who": ["Ana"]}))[0].text.startswith("Hail")


def test_a_value_a_rule_cannot_use_is_named():
    with pytest.raises(PromptError, match="template x: rule 'sum' cannot use"):
        compute_reference("sum", ["two", 3], {}, where="template x")


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
def test_a_completion_is_right_when_it_gives_the_reference_as_whole_words(reference, completion, right):
    assert is_right(reference, completion) is right
