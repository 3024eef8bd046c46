import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.config import code_commit
from rlhf_pipeline.errors import ConfigurationError, FrameError, StoreError
from rlhf_pipeline.frames import frame_hash
from rlhf_pipeline.votes import Opening, n_test_pairs, open_test_split

ROOT = Path(__file__).parents[3]
DOOR = "rlhf_pipeline/votes/splits.py"
PAIRS = pd.DataFrame(
    {"comparison_id": ["c1", "c2", "c3", "c4"], "split": ["train", "test", "calib", "test"]},
    index=[9, 8, 7, 6],
)


def opened(pairs: pd.DataFrame = PAIRS, **more: object) -> tuple[pd.DataFrame, list[Opening]]:
    seen: list[Opening] = []
    return open_test_split(
        pairs, **{"model": "rm@1", "purpose": "accuracy", "record": seen.append, **more}
    ), seen


def test_test_pairs_come_in_order_with_a_recorded_opening() -> None:
    test, (opening,) = opened()
    assert test["comparison_id"].tolist() == ["c2", "c4"]
    assert test.index.tolist() == [0, 1]
    assert (opening.model, opening.purpose, opening.n_pairs, opening.commit) == (
        "rm@1",
        "accuracy",
        2,
        code_commit(),
    )
    assert opening.data_hash == frame_hash(test)
    assert opening.opened_at.utcoffset() is not None
    assert Opening.from_json(opening.model_dump_json()) == opening


def test_the_caller_s_frame_stays_as_it_was() -> None:
    before = PAIRS.copy()
    test, _ = opened()
    test["split"] = "train"
    pd.testing.assert_frame_equal(PAIRS, before)


def test_without_a_record_there_are_no_test_pairs() -> None:
    def refused(opening: Opening) -> None:
        raise StoreError("no MLflow")

    with pytest.raises(StoreError):
        opened(record=refused)


def test_an_empty_split_is_not_opened() -> None:
    test, openings = opened(PAIRS[PAIRS["split"] == "train"])
    assert test.empty
    assert not openings


def test_counting_is_not_an_opening() -> None:
    assert n_test_pairs(PAIRS) == 2


@pytest.mark.parametrize("said", [{"model": " "}, {"purpose": ""}])
def test_a_look_without_a_name_or_a_reason_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="model and purpose must not be blank"):
        opened(**said)


def test_pairs_without_a_split_are_refused() -> None:
    for act in (opened, n_test_pairs):
        with pytest.raises(FrameError, match="no column split"):
            act(PAIRS[["comparison_id"]])


def test_by_default_an_opening_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rlhf_pipeline"):
        open_test_split(PAIRS, model="rm@1", purpose="accuracy")
    assert "test split opened: rm@1 for accuracy, 2 pairs" in caplog.text


# What may say "test": the names of the splits and the schemas that list them.
NAMES = {
    DOOR,
    "rlhf_pipeline/votes/splits.py",
    "rlhf_pipeline/frames.py",
    "rlhf_pipeline/datasets/preference.py",
    "rlhf_pipeline/datasets/comparisons.py",
}
# Lines that say it and take no pair: made-up splits, heads of tables, votes (not pairs) that a
# ceiling is counted from or that are left out, and rows that are looked for only to refuse them.
HARMLESS = {
    "benchmarks/bench_real.py": ["gold_ceiling(fitted.votes["],
    "rlhf_pipeline/drift/reference.py": ['wrong = pairs.loc[pairs["split"] != "calib"'],
    # "test" is a kind of message about an alert
    "rlhf_pipeline/alerts/channels.py": ['message.kind == "test"'],
    "rlhf_pipeline/alerts/messages.py": ['build_message(None, "test"'],
    "rlhf_pipeline/monitoring.py": ["MessageKind = Literal["],
    # the prompts alone: no vote is read
    "rlhf_pipeline/evaluation_sets.py": ['held = pairs[pairs["split"] == "test"]'],
    "rlhf_pipeline/retraining/strategies/base.py": [
        'leaked = checked[checked["split"] != "train"]'
    ],
    "rlhf_pipeline/retraining/selection.py": ['leaked = frame[frame["split"] != "train"]'],
    "rlhf_pipeline/votes/annotator_model.py": ['in_test = shown.loc[splits_of(shown) == "test"'],
}
IN_A_QUERY = re.compile(
    r"""split\s*(==\s*\\?["']test|!=\s*\\?["'](train|calib)|(not )?in\s*[\[(].*["']test)"""
)
OTHERS = ("train", "calib")


def is_test(node: ast.expr) -> bool:
    """The name of the test split, written out or by the constant of its module."""
    named = (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )
    return (isinstance(node, ast.Constant) and node.value == "test") or named == "TEST"


def names_others(node: ast.expr) -> bool:
    """The train or the calib split, or a list of them: whoever is in neither is a test pair."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(names_others(one) for one in node.elts)
    return isinstance(node, ast.Constant) and node.value in OTHERS


def takes_test(source: str) -> Iterator[int]:
    """Lines that could pick test rows: by their split's name (compared with, handed on as an
    argument, listed, looked up) or by leaving out the other splits.

    Leaving test pairs out (`!=`) is what everybody may do.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            both = [node.left, *node.comparators]
            is_left_out = any(isinstance(op, ast.NotEq | ast.NotIn) for op in node.ops)
            if (
                any(names_others(part) for part in both)
                if is_left_out
                else any(is_test(part) for part in both)
            ):
                yield node.lineno
        elif isinstance(node, ast.Call):
            yield from _called(node)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from (part.lineno for part in node.elts if is_test(part))
        elif is_another_way(node):
            yield getattr(node, "lineno", 1)


def is_another_way(node: ast.AST) -> bool:
    """By inversion, by looking up, by importing the constant, or in the words of a query."""
    match node:
        case ast.UnaryOp(op=ast.Invert(), operand=left_out):
            return leaves_others_out(left_out)
        case ast.Subscript(slice=key):
            return is_test(key)
        case ast.ImportFrom(names=names):
            return any(alias.name == "TEST" for alias in names)
        case ast.Constant(value=str(words)):
            return IN_A_QUERY.search(words) is not None
    return False


def _called(node: ast.Call) -> Iterator[int]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    given = [*node.args, *(k.value for k in node.keywords)]
    if name == "ne":  # of test it leaves test pairs out, of another split it may take them
        yield from (part.lineno for part in given if names_others(part))
    else:
        yield from (part.lineno for part in given if is_test(part))


def leaves_others_out(node: ast.expr) -> bool:
    """`~` of this takes whoever is in neither of the splits that it names."""
    if isinstance(node, ast.Compare):
        return all(isinstance(op, ast.Eq | ast.In) for op in node.ops) and any(
            names_others(one) for one in (node.left, *node.comparators)
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"isin", "eq"}
    ):
        return any(names_others(one) for one in node.args)
    return False


@pytest.mark.parametrize(
    "line",
    [
        'pairs[pairs["split"] == "test"]',
        "pairs[pairs.split.isin(['test'])]",
        '_split(pairs, "test")',
        'rows_of(split="test")',
        '[pairs[pairs["split"] == s] for s in ("calib", "test")]',
        'by_split["test"]',
        """pairs.query("split == 'test'")""",
        'pairs[pairs["split"].eq("test")]',
        'pairs[pairs["split"] == TEST]',
        'pairs[pairs["split"] == test_split.TEST]',
        "_split(pairs, TEST)",
        "from rlhf_pipeline.votes.splits import TEST as split",
        'certain[certain["split"] != "train"]',
        'pairs[pairs["split"] != "calib"]',
        'pairs[~pairs["split"].isin(["train", "calib"])]',
        'pairs[~(pairs["split"] == "train")]',
        'pairs[pairs["split"].ne("train")]',
        '[p for p in pairs if p.split not in ("train", "calib")]',
        """pairs.query("split != 'train'")""",
        'pairs[~pairs["split"].eq("calib")]',
    ],
)
def test_the_search_below_finds_every_way_in(line: str) -> None:
    assert list(takes_test(line))


@pytest.mark.parametrize(
    "line",
    [
        '{"test": 1}',
        'pairs[pairs["split"] != "test"]',
        'pairs[pairs["split"].ne("test")]',
        'pairs[pairs["split"].isin(["train", "calib"])]',
        'pairs[pairs["split"] == "train"]',
        "[split for split in SPLITS if split != TEST]",
        "report.test",
        'x = "tested"',
        "'the test split'",
        """pairs.query("split == 'train'")""",
        'open_test_split(pairs, model="m")',
    ],
)
def test_and_nothing_else(line: str) -> None:
    assert not list(takes_test(line))


def learning_code() -> list[Path]:
    """The library, the application and the benchmarks."""
    folders = (
        "rlhf_pipeline",
        "assets",
        "sensors",
        "jobs",
        "resources",
        "demo",
        "replay",
        "benchmarks",
    )
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def test_nobody_takes_test_pairs_past_the_door() -> None:
    """`rlhf_pipeline.votes.open_test_split` records each look."""
    offenders = []
    for path in learning_code():
        here = path.relative_to(ROOT).as_posix()
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        harmless = HARMLESS.get(here, ())
        found = (
            []
            if here in NAMES
            else [
                n
                for n in takes_test(source)
                if not any(words in lines[n - 1] for words in harmless)
            ]
        )
        offenders += [f"{here}:{line}" for line in found]
    assert offenders == []
