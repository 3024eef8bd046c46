"""The example package adds a prompt source by entry point, without a change to the library."""

import json
import runpy
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.generate.prompts import Report, generate_with
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.simulation.testing.generation import DAY

EXAMPLE = Path(__file__).parents[4] / "examples" / "interview_prompts"


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
