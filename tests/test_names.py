"""Names of functions, classes and modules, read from the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("rlhf_pipeline", "assets", "resources", "jobs", "sensors", "driver")
TEST_FOLDERS = ("tests", "benchmarks")
# Say nothing about what comes back.
PARTICIPLES = frozenset(
    ("told", "said", "shown", "found", "judged", "asked", "heard", "apart", "written", "kept")
)
# Nor do these of a variable. `left` is a side, and `known` beside `unknown` a term.
VARIABLES = PARTICIPLES | {
    "one",
    "ones",
    "wanted",
    "made",
    "given",
    "taken",
    "seen",
    "sent",
    "held",
}
# Nor do these in the library: an element or a second value has a noun of its own.
WEAK = frozenset(("each", "again", "sure"))
# Nobody but their author knows what they stand for.
METAPHORS = frozenset(
    [
        "clerk",
        "books",
        "booth",
        "ballot",
        "ballots",
        "desk",
        "hand",
        "shelf",
        "corked",
        "courteously",
        "surely",
        "unheard",
    ]
)
# Gerunds and poetry; a module is a noun of the field.
MODULES = frozenset(
    ("telling", "looking", "showing", "listening", "watching", "eras", "soundness", "parked")
)
# A protocol and what implements it.
SHARED_CLASSES: set[str] = set()


def sources(folders: tuple[str, ...] = FOLDERS) -> Iterator[tuple[Path, list[ast.AST]]]:
    """Each module's path and the nodes of its tree."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), _nodes_of(path)


@cache
def _nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_functions_are_not_bare_participles_or_metaphors() -> None:
    offenders = [
        f"{path}:{node.lineno} {node.name}"
        for path, nodes in sources()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.strip("_") in PARTICIPLES | METAPHORS
    ]
    assert offenders == []


def test_helpers_of_tests_are_not_bare_participles() -> None:
    """A fixture is a thing, and may be named by its state."""
    offenders = [
        f"{path}:{node.lineno} {node.name}"
        for path, nodes in sources(TEST_FOLDERS)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.strip("_") in PARTICIPLES
        and not any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert offenders == []


# Of sub-clauses; a red line in CI is read once.
SUB_CLAUSES = re.compile(r"_(?:who|whoever|whose|whatever|whichever|however|nobody|told|said)_")


def test_test_names_are_short_statements() -> None:
    offenders = [
        f"{path}:{node.lineno} {node.name}"
        for path, nodes in sources(("tests",))
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and (len(node.name) > 70 or SUB_CLAUSES.search(node.name))
    ]
    assert offenders == []


def test_modules_are_not_metaphors() -> None:
    paths = [path for path, _ in sources()]
    assert [str(p) for p in paths if p.stem.strip("_") in METAPHORS | MODULES] == []


def test_variables_name_what_they_hold() -> None:
    offenders = [
        f"{path}:{node.lineno} {name}"
        for path, nodes in sources((*FOLDERS, *TEST_FOLDERS))
        for node in _without_fields(nodes)
        for name in _bound_names(node)
        if name.strip("_")
        in (METAPHORS | VARIABLES | (WEAK if path.parts[0] in FOLDERS else set()))
    ]
    assert offenders == []


def _without_fields(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Fields of records are part of the API, and read beside their record's name."""
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    lines = [line for node in classes for line in node.body if isinstance(line, ast.AnnAssign)]
    fields = {id(line.target) for line in lines}
    return (node for node in nodes if id(node) not in fields)


def _bound_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def test_class_name_belongs_to_one_class() -> None:
    paths_of: dict[str, list[str]] = defaultdict(list)
    for path, nodes in sources():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                paths_of[node.name].append(path.as_posix())
    offenders = {
        name: paths
        for name, paths in paths_of.items()
        if len(paths) > 1 and name not in SHARED_CLASSES
    }
    assert offenders == {}


# Phrases that a native speaker has to read twice.
STUMBLING = re.compile(
    r"\bwhoever\b|\bwho votes\b|\bis no (?:day|text|number|file|moment|record|comparison|folder)\b"
    r"|\bknows no(?:thing)?\b|\bof (?:now|before)\b|\b(?:is|are) (?:said of|told)\b|\btold to\b",
    re.IGNORECASE,
)


def test_docstrings_and_messages_avoid_stumbling_phrases() -> None:
    offenders = [
        f"{path}:{node.lineno} {phrase[0]!r}"
        for path, nodes in sources()
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for phrase in STUMBLING.finditer(" ".join(node.value.split()))
    ]
    assert offenders == []


def test_functions_take_at_most_eight_parameters() -> None:
    """More belong in a record. Commands, routes and assets state their parameters to users."""
    stated = re.compile(r"^(app|api|router)\.|^\w+_asset\b")
    offenders = []
    for path, nodes in sources():
        for node in nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any(stated.match(ast.unparse(each)) for each in node.decorator_list):
                continue
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            names = [each.arg for each in arguments if each.arg not in ("self", "cls")]
            if len(names) > 8:
                offenders.append(f"{path}:{node.lineno} {node.name} has {len(names)}")
    # `rlhf generate` is registered under two names, by calls instead of decorators.
    assert [offender for offender in offenders if " generate has 16" not in offender] == []
