"""The example package adds a prompt source by entry point, without a change to the library."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from rlhf_pipeline.plugins import Members
from rlhf_pipeline.prompts import Report, generate_with
from rlhf_pipeline.prompts.parameters import SourceParams
from rlhf_pipeline.records import Category
from rlhf_pipeline.testing.generation import DAY

EXAMPLE = Path(__file__).parents[3] / "examples" / "interview_prompts"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder as pip leaves it: the package beside the dist-info of its pyproject."""
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
        {},
        lambda group: [
            p for d in distributions(path=[str(site)]) for p in d.entry_points.select(group=group)
        ],
    )
    return members["interview"]


def test_the_example_passes_its_own_test(interview):
    tests = runpy.run_path(str(EXAMPLE / "tests" / "test_generator.py"))
    tests["test_the_generator_keeps_the_promises"]()


def test_every_question_is_complete_and_has_the_domain(interview):
    from interview_prompts.generator import questions

    drafts = questions()
    assert len(drafts) > 5000
    assert {d.category for d in drafts} == {c.value for c in Category}
    assert [d.text for d in drafts if re.search(r"[{}]|  |\ba [aeio]", d.text)] == []
    frame = generate_with(interview(), SourceParams(n=30), day=DAY)
    assert {json.loads(v)["domain"] for v in frame["variables"]} == {"interview"}


def test_questions_of_a_file_carry_the_domain_and_count_duplicates(interview, tmp_path):
    path, report = tmp_path / "questions.csv", Report()
    path.write_text(
        "question,difficulty\nWhy us?,easy\nWhy you?,hard\nWhy us?,easy\n,easy\n", encoding="utf-8"
    )
    frame = generate_with(interview(path), SourceParams(n=2), day=DAY, report=report).set_index(
        "text"
    )
    assert frame["difficulty"].to_dict() == {"Why us?": "easy", "Why you?": "hard"}
    assert {json.loads(v)["domain"] for v in frame["variables"]} == {"interview"}
    assert report.n_duplicates == 1
    assert [r.where.rpartition(", ")[2] for r in report.rejections] == ["line 5"]


def test_an_installed_source_and_its_parameters_are_in_the_launchpad(site):
    """In a new process, because packages are found once; the package is imported first, as its
    own tests do.
    """
    script = (
        "from interview_prompts.generator import InterviewGenerator\n"
        "from assets.prompts import PromptsConfig\n"
        "from rlhf_pipeline.prompts import generate\n"
        "from rlhf_pipeline.prompts.parameters import SourceParams\n"
        "params = SourceParams(n=12, source='interview', interview_role='nurse')\n"
        "frame = generate(params, day='2026-01-01')\n"
        "print('interview' in PromptsConfig.model_fields['source'].description,\n"
        "      'interview_role' in PromptsConfig.model_fields, len(frame),\n"
        "      frame['variables'].str.contains('nurse').all())"
    )
    path = f"import sys; sys.path[:0] = [{str(site)!r}, {str(EXAMPLE.parents[1])!r}]\n"
    said = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, check=True, cwd=site
    ).stdout
    assert said.split() == ["True", "True", "12", "True"]
