"""What a command imports before it does anything. Modules are counted, not seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_pipeline.cli import COMMANDS, load_command, main

MODELS = {"torch", "transformers", "mlflow", "dagster", "evidently", "great_expectations", "openai"}
TABLES = {"pandas", "pyarrow", "scipy"}
WEB = {"fastapi", "starlette", "uvicorn"}
STORE = {"sqlalchemy"}
RUN = """
import json, sys
from rlhf_pipeline.cli import app
from rlhf_pipeline.core.errors import PipelineError
try:
    app(sys.argv[1:])
except (SystemExit, PipelineError):
    pass
print("loaded", json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(*words: str, home: Path) -> set[str]:
    """The top-level modules of a process that ran `rlhf WORDS`."""
    out = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        env={"PATH": "/usr/bin:/bin", "RLHF_HOME": str(home), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return set(json.loads(out.rpartition("loaded ")[2]))


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (["--help"], MODELS | TABLES | WEB | STORE | {"numpy"}),
        (["users", "list"], MODELS | TABLES | WEB | {"numpy"}),
        (["changes", "list"], MODELS | TABLES | WEB | {"numpy"}),
        (["audit", "verify"], MODELS | TABLES | WEB | {"numpy"}),
        (["vote", "--annotator", "nobody@x.org"], MODELS | TABLES),
        (["import", "preferences", "missing.csv"], MODELS | WEB),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_command_imports_only_what_it_needs(
    initialised: Path, words: list[str], without: set[str]
) -> None:
    assert loaded(*words, home=initialised) & without == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listed_help_is_that_of_the_command(name: str) -> None:
    help_text = load_command(name).help
    assert " ".join(help_text.split("\n\n")[0].split()) == COMMANDS[name][1]


def test_windows_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="inside WSL"):
        main()
