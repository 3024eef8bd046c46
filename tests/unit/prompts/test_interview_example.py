"""The example package: found by entry point, held to the promises of every source, with no change
to the library.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from rlhf_pipeline.plugins import Members
from rlhf_pipeline.prompts import _OWN, PromptParams, Report, generate_with
from rlhf_pipeline.records import Category
from tests.unit.prompts.promises import DAY, keeps_the_promises

EXAMPLE = Path(__file__).parents[3] / "examples" / "interview_prompts"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder as pip leaves it: the package beside a dist-info that says what its pyproject
    does.
    """
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / f"interview_prompts-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["rlhf_pipeline.prompts"]
    (info / "entry_points.txt").write_text(
        "[rlhf_pipeline.prompts]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
    )
    (folder / "interview_prompts").symlink_to(EXAMPLE / "interview_prompts")
    return folder


@pytest.fixture
def interview(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    members = Members(
        "prompts",
        dict(_OWN),
        lambda group: [
            p for d in distributions(path=[str(site)]) for p in d.entry_points.select(group=group)
        ],
    )
    return members["interview"]


def test_the_installed_package_is_a_source_like_any_other(interview):
    keeps_the_promises(interview)


def test_every_question_is_whole_and_of_the_domain(interview):
    from interview_prompts.generator import questions

    drafts = questions()
    assert len(drafts) > 5000
    assert {d.category for d in drafts} == {c.value for c in Category}
    assert [d.text for d in drafts if re.search(r"[{}]|  |\ba [aeio]", d.text)] == []
    frame = generate_with(interview(), PromptParams(n=30), day=DAY)
    assert {json.loads(v)["domain"] for v in frame["variables"]} == {"interview"}


def test_questions_of_a_file_come_with_the_domain_and_the_count_of_duplicates(interview, tmp_path):
    path, report = tmp_path / "questions.csv", Report()
    path.write_text(
        "question,difficulty\nWhy us?,easy\nWhy you?,hard\nWhy us?,easy\n,easy\n", encoding="utf-8"
    )
    frame = generate_with(interview(path), PromptParams(n=2), day=DAY, report=report).set_index(
        "text"
    )
    assert frame["difficulty"].to_dict() == {"Why us?": "easy", "Why you?": "hard"}
    assert {json.loads(v)["domain"] for v in frame["variables"]} == {"interview"}
    assert report.n_duplicates == 1
    assert [r.where.rpartition(", ")[2] for r in report.rejections] == ["line 5"]


def test_once_it_is_installed_it_is_in_the_launchpad_and_in_the_list_of_sources(site):
    """In a process of its own: packages are found when the mapping is first read."""
    script = (
        "from assets.prompts import PromptsConfig; from rlhf_pipeline.prompts import GENERATORS, "
        "PromptParams, generate;print('interview' in "
        "PromptsConfig.model_fields['source'].description, 'interview' in "
        "GENERATORS,len(generate(PromptParams(n=12, source='interview'), day='2026-01-01')))"
    )
    path = f"import sys; sys.path[:0] = [{str(site)!r}, {str(EXAMPLE.parents[1])!r}]; "
    said = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, check=True, cwd=site
    ).stdout
    assert said.split() == ["True", "True", "12"]
