"""Fills in what new golden entries expect: `PYTHONPATH=. python tests/unit/golden/add.py`.

Write an entry with `about` and `input` alone into the file of its noun, then run this. An entry
that expects something is never touched: it stands for bytes in people's homes, and where the code
disagrees with it, the code is wrong.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.unit.golden.digests import DIGESTS, as_json

FOLDER = Path(__file__).parent


def fill(
    entries: Mapping[str, list[dict[str, Any]]], digests: Mapping[str, Callable[[Any], Any]]
) -> list[str]:
    """Compute what entries without `expected` must give; the ones that were filled."""
    new = [
        (name, case) for name, cases in entries.items() for case in cases if "expected" not in case
    ]
    for name, case in new:
        case["expected"] = as_json(digests[name](case["input"]))
    return [f"{name}, {case['about']}" for name, case in new]


def main() -> None:
    for noun, digests in DIGESTS.items():
        path = FOLDER / f"{noun}.json"
        entries = json.loads(path.read_text(encoding="utf-8"))
        for filled in fill(entries, digests):
            print(f"{noun}: {filled}: added")
        path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
