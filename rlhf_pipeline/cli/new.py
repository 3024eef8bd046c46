"""`rlhf new`: writes a project: settings, prompts, a package for own assets, how to start."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.config import CONFIG, LOOP, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically

PROMPTS = Path(__file__).with_name("sample_prompts.jsonl")

DEFINITIONS = '''"""The loop with this project's own assets: what `rlhf dev` shows in Dagster."""

import dagster as dg

from {package} import assets
from rlhf_pipeline.application import definitions

own = dg.load_assets_from_modules([assets], group_name="{package}")
defs = dg.Definitions.merge(definitions.defs, dg.Definitions(assets=own))
'''

ASSETS = '''"""Assets of this project. An argument named like an asset of the loop is its frame."""

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.partitions import DAYS


@dg.asset(partitions_def=DAYS)
def choices(votes: pd.DataFrame) -> dg.MaterializeResult:
    """How often annotators chose a, b, a tie, both bad or a skip on a day."""
    counted = votes["choice"].value_counts()
    return dg.MaterializeResult(metadata={{name: int(n) for name, n in counted.items()}})
'''

WORKSPACE = """load_from:
  - python_module:
      module_name: {package}.definitions
      location_name: rlhf_pipeline
"""

README = """# {project}

Model and annotators improve each other here, by [rlhf_pipeline](https://pypi.org/project/rlhf-pipeline/).
Run its commands in this folder:

    rlhf dev        # the web app where people vote, Dagster, MLflow
    rlhf status     # what happened, and what comes next
    rlhf check      # what is missing or damaged, and what to do

`rlhf.yaml` has every setting. To ask your own model your own prompts, set `policy`, and
`prompt_source: dataset` with `prompts_file: prompts.jsonl`, in it. `{package}/` is for your own
assets. All state lies in `var/`: `rlhf backup` copies it.
"""


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to make; its name becomes the project's.")],
) -> None:
    """Write a project into a new folder: `rlhf.yaml` with every setting, sample prompts, a package
    for own assets, a README.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty. Name a folder that does not exist yet.")
    project = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-")
    package = re.sub(r"\W", "_", project)
    is_taken = find_spec(package) is not None if package.isidentifier() else True
    if is_taken or iskeyword(package):
        raise ConfigurationError(
            f"{folder.name!r} cannot name a Python package: it does not begin with a letter, or "
            f"Python has a package or word {package!r} already. Choose another name."
        )
    names = {"project": project, "package": package}
    files = {
        CONFIG: describe_settings(project),
        "prompts.jsonl": PROMPTS.read_text(encoding="utf-8"),
        f"{package}/__init__.py": f'"""The own code of the project {project}."""\n',
        f"{package}/assets.py": ASSETS.format(**names),
        f"{package}/definitions.py": DEFINITIONS.format(**names),
        "workspace.yaml": WORKSPACE.format(**names),
        ".gitignore": "/var/\n/.env\n__pycache__/\n",
        "README.md": README.format(**names),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text.encode())
    echo(f"{folder} holds the project {project}. Next: cd {shlex.quote(str(folder))} && rlhf dev")


def describe_settings(project: str) -> str:
    """The text of an `rlhf.yaml` for `project`: every setting and loop parameter, those at their
    defaults commented out.
    """
    values = {"project": project}
    lines = [
        "## Settings of this project. A line that begins with one # is a setting at its default:",
        "## to change it, remove the # and the space. Environment variables (RLHF_HOME for `home`)",
        "## win over it.",
        "",
    ]
    defaults = Settings(home=Path("./var")).model_dump(mode="json", exclude={"config"})
    defaults["alert_targets"] = {}  # a mapping in the file, a tuple of targets in Settings
    for name, default in defaults.items():
        meaning = Settings.model_fields[name].description
        lines += _entry(name, values.get(name, default), meaning, set_=name in values)
    return "\n".join([*lines, *_loop(), ""])


def _loop() -> Iterator[str]:
    from rlhf_pipeline.improve.loop_settings import PARTS  # imports every stage

    yield "## How each stage computes: the page Settings lists the values in use."
    yield f"# {LOOP}:"
    for part, params in PARTS.items():
        yield f"#   {part}:"
        for name, default in params().model_dump(mode="json").items():
            yield from _entry(name, default, params.model_fields[name].description, indent="    ")


def _entry(
    name: str, value: Any, meaning: str | None, *, set_: bool = False, indent: str = ""
) -> list[str]:
    text = yaml.safe_dump({name: value}, sort_keys=False, width=90 - len(indent))
    mark = "" if set_ else "# "
    return [
        *(f"## {indent}{line}" for line in textwrap.wrap(meaning or name, 90 - len(indent))),
        *(f"{mark}{indent}{line}" for line in text.rstrip().splitlines()),
    ]
