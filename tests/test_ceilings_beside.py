"""Wherever an accuracy is delivered, its noise ceiling is too: read from the source of what people
are shown, place by place.

A place is a dict literal (by its keys), a table's head or a list of names (a literal of texts), a
record's fields, and a function: by the texts it writes, the keywords it hands on and the attributes
it reads. A ceiling acquits the place it stands in and no other; docstrings, comments and
descriptions acquit nothing.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from assets.delivery import StageReport
from assets.delivery import _build_metadata as metadata_of

ROOT = Path(__file__).parent.parent
SHOWN = (
    "assets",
    "driver",
    "benchmarks",
    "rlhf_pipeline/champions",
    "rlhf_pipeline/cli",
    "rlhf_pipeline/web",
    "rlhf_pipeline/drift",
    "rlhf_pipeline/reward_model",
    "rlhf_pipeline/calibration",
    "rlhf_pipeline/evaluation",
    "rlhf_pipeline/reports",
)
# Where an error rate is one of predictions shown to people, and so an accuracy. Drift's are names
# of tests and states of detectors too; what its page says beside them is held by
# tests/unit/reports/test_drift_page.py.
ERRORS_SHOWN = ("assets", "driver", "rlhf_pipeline/cli", "rlhf_pipeline/web")
ACCURACY, ERRORS = ("accuracy",), ("accuracy", "error_rate", "error rate")
# Names of a ceiling: beside an error rate it is shown as the best reachable one.
CEILING = ("ceiling", "best reachable")
# What has the word in its name and is no share of people's judgements found by a model.
OTHERS = {
    "token_accuracy": "of next tokens, which nobody judged",
    "gold_accuracy": "of an annotator on known answers: a ceiling is of models",
}
# Places, by file and function (class, or name of a literal), whose ceiling stands elsewhere, and
# where.
BIN = (
    "right in a bin of a reliability diagram: read beside the confidence stated there; the "
    "diagram has the ceiling"
)
ELSEWHERE: dict[str, dict[str, str]] = {
    "benchmarks/bench_detectors.py": {"main": "of alarms, which nobody voted on"},
    "benchmarks/bench_pages.py": {"measure": "names of requests, of which the time is shown"},
    "benchmarks/filled_store.py": {"_make_points": "names of metrics; one is the ceiling's"},
    "rlhf_pipeline/calibration/summary.py": {
        "calibration_metrics": "measures of rows, whose votes it does not know; CalibrationReport "
        "holds the ceiling",
        "reliability_table": BIN,
    },
    "rlhf_pipeline/cli/models.py": {
        "STANDS_FOR": "which of two columns is left out; SHOWN has the ceiling's",
    },
    "rlhf_pipeline/cli/probe.py": {"_build_bin_row": BIN},
    "rlhf_pipeline/reports/calibration.py": {"_bin_series": BIN, "describe_bin": BIN},
    "rlhf_pipeline/reward_model/__init__.py": {"__all__": "names of code"},
}
UNSEEN = {"description", "help", "purpose"}  # keywords whose text is no figure's name


@dataclass(frozen=True)
class Found:
    """A place and the accuracies that it names alone."""

    place: str
    line: int
    names: tuple[str, ...]


def lacks_their_ceiling(source: str, words: Sequence[str] = ERRORS) -> list[Found]:
    found = []
    for place, line, said, acquitting in places(ast.parse(source)):
        accuracies = sorted(
            {
                name
                for name in said
                if any(word in name.lower() for word in words)
                and not any(other in name.lower() for other in OTHERS)
            }
        )
        if accuracies and not any(
            word in name.lower() for name in (*said, *acquitting) for word in CEILING
        ):
            found.append(Found(place, line, tuple(accuracies)))
    return found


def places(tree: ast.Module) -> Iterator[tuple[str, int, list[str], list[str]]]:
    """Each place: its name, its line, what it calls figures, and what else may name a ceiling
    there.
    """
    for scope, node in _scopes(tree, "module"):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.ClassDef):
            yield (
                scope,
                node.lineno,
                [
                    n.target.id
                    for n in node.body
                    if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
                ],
                [],
            )
        elif is_function:
            inside = list(_seen(node))
            called = [
                *_texts(inside),
                *(n.attr for n in inside if isinstance(n, ast.Attribute)),
                *(n.arg or "" for n in inside if isinstance(n, ast.keyword)),
            ]
            known = [
                *(n.id for n in inside if isinstance(n, ast.Name)),
                *(n.arg for n in inside if isinstance(n, ast.arg)),
            ]
            yield scope, node.lineno, called, known
        if is_function:
            for one in inside:
                yield from _literal(scope, one)
        else:
            for name, one in _statements(node, scope):
                yield from _literal(name, one)


def _scopes(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """The module, its classes, and functions with all that is nested in them."""
    yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _scopes(child, child.name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name, child


def _statements(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """What stands in a module or class and in no function or class of it, by the name it is
    given.
    """
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            targets = (
                child.targets
                if isinstance(child, ast.Assign)
                else [child.target]
                if isinstance(child, ast.AnnAssign)
                else []
            )
            name = next((target.id for target in targets if isinstance(target, ast.Name)), scope)
            yield from ((name, inner) for inner in _seen(child))


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes within but docstrings and what UNSEEN keywords say."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) and child.arg in UNSEEN:
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        yield from _seen(child)


def _texts(nodes: Sequence[ast.AST]) -> list[str]:
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _literal(scope: str, node: ast.AST) -> Iterator[tuple[str, int, list[str], list[str]]]:
    if isinstance(node, ast.Dict):
        yield scope, node.lineno, _texts([key for key in node.keys if key is not None]), []
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        texts = [
            part
            for one in node.elts
            for part in _texts(list(ast.walk(one)) if isinstance(one, ast.JoinedStr) else [one])
        ]
        # a head or list of names, no row of cells
        if len(node.elts) > 1 and len(texts) >= len(node.elts) - 1:
            yield scope, node.lineno, texts, []


def test_no_accuracy_is_shown_without_its_ceiling() -> None:
    """What a perfect model could reach stands in the same place."""
    offenders = []
    for path in (p for folder in SHOWN for p in sorted((ROOT / folder).rglob("*.py"))):
        here = path.relative_to(ROOT).as_posix()
        words = ERRORS if here.startswith(ERRORS_SHOWN) else ACCURACY
        missing = lacks_their_ceiling(path.read_text(encoding="utf-8"), words)
        offenders += [
            f"{here}:{found.line} {found.place} shows {', '.join(found.names)} and no noise ceiling"
            for found in missing
            if found.place not in ELSEWHERE.get(here, {})
        ]
    assert offenders == []


def test_every_exception_is_still_needed() -> None:
    needed = {
        file: {
            found.place for found in lacks_their_ceiling((ROOT / file).read_text("utf-8"), ACCURACY)
        }
        for file in ELSEWHERE
    }
    assert [
        f"{file}: {place}"
        for file, places in ELSEWHERE.items()
        for place in places
        if place not in needed[file]
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        'metrics = {"test_accuracy": report.test.accuracy.value}',
        'def told(t): t.add_row("accuracy", t.accuracy)',
        'def told(r): return f"accuracy {r.value}"',
        "def told(r): return dict(accuracy=r.value)",
        'HEADER = ("model", "accuracy", "ECE")',
        'metrics = {"error_rate": judged.mean()}',
        'def told(r): return f"error rate {r.value}"',
        "class Day:\n    accuracy: float\n    votes: int",
        # A ceiling somewhere else in the file acquits nothing.
        'CEILING = "noise ceiling"\ndef told(r): return f"accuracy {r.value}"',
        'def one(r): return {"accuracy": r.a}\ndef two(r): return {"noise_ceiling": r.c}',
        'def told(r):\n    first = {"noise_ceiling": r.c}\n    return {"accuracy": r.a}',
        'def told(r):\n    table("noise ceiling", ("model", "accuracy", "ECE"))',
        'def told(r):\n    """Beside its ceiling."""\n    return f"accuracy {r.value}"',
        'class Day:\n    accuracy: float = Field(description="beside the noise ceiling")',
    ],
)
def test_the_search_finds_accuracies_without_a_ceiling(source: str) -> None:
    assert lacks_their_ceiling(source)


@pytest.mark.parametrize(
    "source",
    [
        'metrics = {"accuracy": a, "noise_ceiling": c}',
        'metrics = {"token_accuracy": a}',
        'def told(r, ceiling): return f"accuracy {r.value} beside {ceiling}"',
        'HEADER = ("model", "accuracy", "noise ceiling")',
        'row = {"error rate": e, "best reachable": b}',
        'HEADER = ("model", f"accuracy; ceiling {c}")',
        "class Day:\n    accuracy: float\n    ceiling: float",
        'def fit(pairs):\n    """Its accuracy is told by another."""\n    return pairs',
    ],
)
def test_and_nothing_else(source: str) -> None:
    assert not lacks_their_ceiling(source)


def test_no_page_shows_an_accuracy_without_its_ceiling() -> None:
    pages = [
        p
        for p in (ROOT / "rlhf_pipeline" / "web").rglob("*")
        if p.suffix in {".html", ".js", ".jinja"}
    ]
    texts = {path.name: path.read_text(encoding="utf-8").lower() for path in pages}
    assert texts
    assert (
        sorted(name for name, text in texts.items() if "accuracy" in text and "ceiling" not in text)
        == []
    )


def test_the_ui_states_an_unknown_ceiling() -> None:
    def make_metadata(**numbers: float) -> dict[str, object]:
        return metadata_of(pd.DataFrame({"x": [1]}), numbers, StageReport("headline", numbers))

    assert (
        make_metadata(test_accuracy=0.7)["noise_ceiling"]
        == "unknown: no overlapping votes and no repeated judgements"
    )
    assert make_metadata(test_accuracy=0.7, noise_ceiling=0.8)["noise_ceiling"] == 0.8
    assert str(make_metadata(error_rate=0.3)["noise_ceiling"]).startswith("unknown")
    since = make_metadata(test_accuracy_since_change=0.7, noise_ceiling=0.8)
    # that of all votes is not it
    assert str(since["noise_ceiling_since_change"]).startswith("unknown")
    for others in ({"token_accuracy": 0.5}, {"n_pairs": 3.0}):
        assert "noise_ceiling" not in make_metadata(**others)
