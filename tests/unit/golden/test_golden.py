"""What is hashed or stored keeps its bytes: each golden entry is recomputed from its input."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.golden.digests import DIGESTS, as_json

FOLDER = Path(__file__).parent
GOLDEN = {
    noun: json.loads((FOLDER / f"{noun}.json").read_text(encoding="utf-8")) for noun in DIGESTS
}
CASES = [
    (noun, name, case)
    for noun, entries in GOLDEN.items()
    for name, cases in entries.items()
    for case in cases
]


@pytest.mark.parametrize(
    ("noun", "name", "case"),
    CASES,
    ids=[f"{noun}-{name}-{case['about']}" for noun, name, case in CASES],
)
def test_persisted_bytes_are_what_they_were(noun: str, name: str, case: dict[str, Any]) -> None:
    found = as_json(DIGESTS[noun][name](case["input"]))
    assert found == case["expected"], (
        f"Persisted bytes changed ({noun}.json, {name!r}, {case['about']!r}): an existing home "
        "would no longer verify, or would no longer find what it stored. Restore the old bytes, or "
        "replace `expected` where the change is meant."
    )


@pytest.mark.parametrize("noun", DIGESTS)
def test_every_digest_has_a_golden_entry(noun: str) -> None:
    assert set(GOLDEN[noun]) == set(DIGESTS[noun])
    assert all(GOLDEN[noun].values())


def test_every_golden_file_is_read() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DIGESTS)
