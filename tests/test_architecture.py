"""The house's import rules, read from the source: who may import whom, and which library has which single owner.

Imports inside functions count. A change of these rules is a change of this file, in the same commit, with its reason.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "rlhf_pipeline"
APPLICATION = ("assets", "resources", "jobs", "sensors", "demo", "replay", "storage")

FOUNDATION = ["records", "errors", "files", "frames", "protocols", "plugins", "config"]  # each imports only earlier ones
STAGES = [
    "prompts", "policy", "completions", "comparisons", "votes", "reward_model", "calibration", "reflection", "drift", "evaluation", "retraining",
]  # fmt: skip
BESIDE = {"registry", "expectations"}  # foundation and stages
# artefacts: paths of frames and records, needed by the IO manager and the command line alike.
# object_stores: a file is put, got and listed in one place, whether below a folder or an fsspec URL; remote drivers' errors end there.
# champions: the one place where store, registry and stages meet, so that assets, cli and web serve the same champion.
ALLOWED: dict[str, set[str]] = {
    **{name: set(FOUNDATION[:i]) for i, name in enumerate(FOUNDATION)},
    **{name: {*FOUNDATION, *STAGES[:i]} for i, name in enumerate(STAGES)},
    **{name: {*FOUNDATION, *STAGES} for name in BESIDE},
    "simulation": {*FOUNDATION, *STAGES},
    "object_stores": set(FOUNDATION),
    "artefacts": {*FOUNDATION, "object_stores"},
    "datasets": {*FOUNDATION, *STAGES},  # files of comparisons, votes and prompts; the store is handed in
    "store": set(FOUNDATION),
    "backups": {*FOUNDATION, "store"},  # a home as a folder and back: databases, files, manifest
    "champions": {*FOUNDATION, *STAGES, *BESIDE, "store"},
    "client": set(FOUNDATION),  # somebody else's program installs it: it speaks HTTP, and knows no store
    "web": {*FOUNDATION, *STAGES, *BESIDE, "object_stores", "artefacts", "datasets", "store", "champions"},
    # It serves the web app, and the terminal votes by the page's own checks.
    "cli": {*FOUNDATION, *STAGES, *BESIDE, "simulation", "artefacts", "backups", "datasets", "store", "champions", "web"},
}

OWNERS: dict[str, tuple[str, ...]] = {
    "dagster": (),
    "sqlalchemy": ("store/",),
    "alembic": ("store/",),
    "mlflow": ("registry",),
    "evidently": ("calibration/evidently_report.py", "drift/report.py"),
    "frouros": ("drift/",),
    "great_expectations": ("expectations.py",),
    "fastapi": ("web/",),
    "starlette": ("web/",),
    "uvicorn": ("web/",),
    "jinja2": ("web/",),
    "argon2": ("web/",),
    "itsdangerous": ("web/",),
    "httpx": ("client/",),
}
HEAVY = {
    "torch",
    "transformers",
    "trl",
    "mlflow",
    "evidently",
    "great_expectations",
    "frouros",
    "sklearn",
    "datasets",
    "matplotlib",
    "openai",
}
# The application's arrows: definitions -> sensors -> jobs -> assets -> library; assets and resources meet only in definitions.
APPLICATION_ALLOWED: dict[str, set[str]] = {
    "assets": {"assets", "rlhf_pipeline"},
    "resources": {"resources", "rlhf_pipeline"},
    "jobs": {"jobs", "assets", "rlhf_pipeline"},
    "sensors": {"sensors", "jobs", "assets", "rlhf_pipeline"},
    "demo": {"demo", "definitions", "sensors", "assets", "rlhf_pipeline"},
    "storage": {"storage", "rlhf_pipeline"},
    "replay": {"replay", "demo", "definitions", "sensors", "rlhf_pipeline"},  # it runs jobs in its own process as the demo does
}


def imports(path: Path, *, top_only: bool = False) -> Iterator[str]:
    """Full names of all modules that `path` imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def library_files() -> list[Path]:
    return sorted(p for p in LIBRARY.rglob("*.py") if p != LIBRARY / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(LIBRARY)))
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    mine = room(path)
    assert mine in ALLOWED, f"{mine} is a new room: say in this file what it may import"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "rlhf_pipeline" and len(parts) > 1 and parts[1] in ALLOWED:
            assert parts[1] == mine or parts[1] in ALLOWED[mine], f"{mine} may not import {parts[1]}"


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(LIBRARY)))
def test_a_library_is_imported_by_its_owner_alone(path: Path) -> None:
    here = path.relative_to(LIBRARY).as_posix()
    for name in imports(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or any(here.startswith(owner) for owner in owners), (
            f"{here} imports {name}, owned by {owners or 'the application'}"
        )


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(LIBRARY)))
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    heavy = {name.split(".")[0] for name in imports(path, top_only=True)} & HEAVY
    assert not heavy, f"{path.name} imports {heavy} at module top: definitions would load in seconds, not in one"


def application_files() -> list[Path]:
    return [path for folder in APPLICATION for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", application_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_applications_arrows_point_one_way(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    own = {*APPLICATION, "definitions", "rlhf_pipeline"}
    for name in imports(path):
        top = name.split(".")[0]
        assert top not in own or top in APPLICATION_ALLOWED[folder], f"{path.name} may not import {top}"


@pytest.mark.parametrize("path", application_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_annotations_stay_objects_in_the_dagster_folders(path: Path) -> None:
    assert "__future__.annotations" not in set(imports(path)), "it breaks annotated context and dg.Config parameters"


@pytest.mark.parametrize("path", [*library_files(), *application_files()], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_knows(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} opens without a docstring"


def test_only_settings_read_the_environment() -> None:
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in library_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    }
    # The commands hand an environment on to the processes they start.
    assert readers <= {
        "rlhf_pipeline/config.py",
        "rlhf_pipeline/cli/dev.py",
        "rlhf_pipeline/cli/demo.py",
        "rlhf_pipeline/cli/dagster_side.py",
        "rlhf_pipeline/cli/replay.py",
    }


def test_no_heavy_library_is_loaded_by_the_definitions() -> None:
    import subprocess

    script = f"import sys; import definitions; print(','.join(sorted(set(sys.modules) & {HEAVY!r})))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == ""


GENERATES = {"generate", "complete", "stream", "call", "generate_batch"}  # methods of policies, models and backends


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "assets").rglob("*.py")), *sorted((LIBRARY / "evaluation").rglob("*.py"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_assets_generate_through_the_engine_alone(path: Path) -> None:
    """What is written around it stands in no ledger, is paid for again and knows no budget."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        assert method not in GENERATES, f"{path.name}:{node.lineno} calls .{method}() itself: ask rlhf_pipeline.completions with a ledger"
        asks = getattr(node.func, "id", "") in {"BackendTexts", "evaluate", "outcomes", "answers"}
        assert not asks or any(keyword.arg == "ledger" for keyword in node.keywords), f"{path.name}:{node.lineno} names no ledger"
