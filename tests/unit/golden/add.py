"""Fills in what new golden entries expect: `PYTHONPATH=. python tests/unit/golden/add.py`.

Write an entry with `about` and `input` alone into the file of its noun, then run this. An entry that expects something is never
touched: it stands for bytes in people's homes, and where the code disagrees with it, the code is wrong.
"""

import json
from pathlib import Path

from tests.unit.golden.digests import DIGESTS, as_json

FOLDER = Path(__file__).parent


def main() -> None:
    for noun, digests in DIGESTS.items():
        path = FOLDER / f"{noun}.json"
        entries = json.loads(path.read_text(encoding="utf-8"))
        for name, cases in entries.items():
            for case in cases:
                if "expected" not in case:
                    case["expected"] = as_json(digests[name](case["input"]))
                    print(f"{noun}: {name}, {case['about']}: added")
        path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
