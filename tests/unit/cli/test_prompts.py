import pandas as pd
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.prompts import GENERATORS


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(app, ["prompts", *map(str, arguments)])
        run.said.append(result.output)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    run.said = []
    return run


def test_sources_are_listed_with_their_purpose(prompts):
    output = prompts("sources")
    assert all(name in output for name in GENERATORS)
    assert "Fills the templates of a shipped library" in output


def test_any_parameter_is_set_by_its_name(prompts, tmp_path):
    out = tmp_path / "p.jsonl"
    shares = [
        "categories={coding: 2, safety: 1}",
        "difficulties={easy: 1, hard: 1}",
        "library=wide",
        "must_not=[regular expression]",
    ]
    output = prompts(
        "generate",
        "--num-prompts",
        60,
        "--out",
        out,
        *(part for share in shares for part in ("--set", share)),
    )
    frame = pd.read_json(out, lines=True)
    assert output.startswith("60 prompts in ")
    assert "rejected (" in output
    assert frame.groupby(["category", "difficulty"]).size().tolist() == [20, 20, 10, 10]
    assert not frame["text"].str.contains("regular expression").any()
    with pytest.raises(ConfigurationError, match=r"changes no parameter.*library"):
        prompts("generate", "--set", "libary=all")
