"""The documents name everything there is, point at what exists, and show what the definitions
are.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from definitions import definitions_for, defs
from docs import draw_graph
from rlhf_pipeline.alerts.rules import FACTS, RULES
from rlhf_pipeline.calibration import CALIBRATORS
from rlhf_pipeline.cli import COMMANDS, load_command
from rlhf_pipeline.client import Client
from rlhf_pipeline.completions import BACKENDS
from rlhf_pipeline.config import DAGSTER_URL, ENV_PREFIX, Settings
from rlhf_pipeline.datasets.formats import FORMATS
from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.laboratory import LAB_SCENARIOS
from rlhf_pipeline.metric_catalogue import METRICS
from rlhf_pipeline.prompts import GENERATORS
from rlhf_pipeline.retraining.strategies import STRATEGIES
from rlhf_pipeline.reward_model import REWARD_MODELS
from rlhf_pipeline.testing import (
    check_backend,
    check_calibrator,
    check_detector,
    check_generator,
)
from rlhf_pipeline.web.sections import SECTIONS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
MEMBERS: dict[str, Mapping[str, Any]] = {
    "generator": GENERATORS,
    "backend": BACKENDS,
    "detector": DETECTORS,
    "calibrator": CALIBRATORS,
    "reward model": REWARD_MODELS,
    "strategy": STRATEGIES,
    "file format": FORMATS,
    "section of the web app": SECTIONS,
    "laboratory scenario": LAB_SCENARIOS,
}
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


def commands(group: typer.main.TyperGroup | None = None, prefix: str = "rlhf") -> Iterator[str]:
    """Every command in full, such as `rlhf export prompts`."""
    listed = {name: load_command(name) for name in COMMANDS} if group is None else group.commands
    for name, command in listed.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}"


def setting_row(name: str) -> str:
    """The line of docs/operations.md about one setting."""
    field = Settings.model_fields[name]
    default = (
        ""
        if field.default is None or isinstance(field.default, BaseModel)
        else f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
    )
    return f"| `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))


def test_every_setting_is_documented() -> None:
    table = text_of(ROOT / "docs" / "operations.md")
    missing = [row for row in map(setting_row, Settings.model_fields) if row not in table]
    assert missing == [], "copy these lines into docs/operations.md"


def test_every_metric_is_in_monitoring() -> None:
    page = text_of(ROOT / "docs" / "monitoring.md")
    rows = {
        f"| `{m.name}` | {m.unit} | {', '.join(m.labels)} | {m.description} |"
        for m in METRICS.values()
    }
    assert [row for row in sorted(rows) if row not in page] == [], "copy these lines"


def test_every_rule_of_alerts_is_in_monitoring() -> None:
    page = text_of(ROOT / "docs" / "monitoring.md")
    rows = [
        f"| `{rule.name}` | `{rule.reads}` | {rule.comparison} {rule.threshold:g} | "
        f"{rule.for_minutes:g} | {rule.within_days} | {rule.severity} |"
        for rule in RULES.values()
    ] + [f"| `{name}` | {meaning} |" for name, meaning in FACTS.items()]
    assert [row for row in rows if row not in page] == [], "copy these lines"


def test_no_setting_is_named_that_does_not_exist() -> None:
    named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", DOCS + text_of(ROOT / ".env.example")))
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | {
        DAGSTER_URL,
        f"{ENV_PREFIX}RETENTION__RUN_DAYS",
    }
    assert named <= known | {ENV_PREFIX}


def test_every_member_of_a_mapping_is_in_extending() -> None:
    page = text_of(ROOT / "docs" / "extending.md")
    assert [
        f"{kind} {name}"
        for kind, mapping in MEMBERS.items()
        for name in mapping
        if f"`{name}`" not in page
    ] == []


@pytest.mark.parametrize("kind", ["generator", "detector", "calibrator", "strategy"])
def test_every_parameter_of_a_member_is_in_its_row(kind: str) -> None:
    rows = text_of(ROOT / "docs" / "extending.md").splitlines()
    for name, member in MEMBERS[kind].items():
        fields = ", ".join(f"`{field}`" for field in member.Params.model_fields)
        end = f"| {fields} |" if fields else "| |"
        assert [row for row in rows if row.startswith(f"| `{name}` |") and row.endswith(end)], (
            f"The row of {kind} {name} in docs/extending.md must end in {end!r}"
        )


def test_the_examples_of_extending_pass_their_checks() -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs" / "extending.md"), re.DOTALL)
    classes: dict[str, Any] = {}
    for block in blocks:
        if "my_package" not in block and "__file__" not in block:
            exec(block, classes)
    check_generator(classes["Greetings"], categories=["creative"], has_difficulties=False)
    check_backend(classes["EchoBackend"])
    check_detector(classes["Surplus"])
    check_calibrator(classes["Shrinkage"])


def is_documented(command: str) -> bool:
    *group, name = command.split()
    return command in DOCS or (
        group[-1:] == ["export"] and re.search(rf"rlhf export .*\b{name}\b", DOCS) is not None
    )


def test_every_command_is_documented() -> None:
    assert [command for command in sorted(commands()) if not is_documented(command)] == []


def test_every_method_of_the_client_is_documented() -> None:
    page = text_of(ROOT / "docs" / "api.md")
    methods = [name for name in vars(Client) if not name.startswith("_")]
    assert len(methods) >= 20
    assert [name for name in methods if f"`{name}`" not in page] == []


@pytest.mark.parametrize("kind", ["jobs", "sensors", "schedules"])
def test_every_job_sensor_and_schedule_is_in_the_loop(kind: str) -> None:
    page = text_of(ROOT / "docs" / "loop.md")
    simulated = definitions_for(
        Settings.read(folder=ROOT).model_copy(update={"annotators": "simulated"})
    )
    names = {thing.name for thing in getattr(simulated, kind) or ()}
    assert names
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_every_stage_is_a_row_of_the_readme() -> None:
    page = text_of(ROOT / "README.md")
    stages = [key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()]
    assert [stage for stage in stages if f"| `{stage}` |" not in page] == []


def test_the_picture_is_that_of_the_definitions() -> None:
    assert draw_graph.drawn(ROOT / "docs" / "graph.svg") == draw_graph.graph(), "run `make graph`"
    assert (ROOT / "docs" / "graph.svg").read_text(encoding="utf-8") == draw_graph.svg(
        draw_graph.graph()
    ), "run `make graph`"


def test_relative_links_lead_somewhere() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
    ]
    assert [
        f"{page.name}: {link}"
        for page, link in links
        if "://" not in link and not (page.parent / link).exists()
    ] == []


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
    errors = import_module("rlhf_pipeline.errors")
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
