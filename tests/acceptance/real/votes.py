"""The real votes beside the checkout, imported as their users would; none of them lies in it.

`../shared/data/README.md` says where they are from. Where the folder is absent, the tests are
skipped.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.acceptance.home import Home
from tests.once import build_once

DATA = Path(__file__).parents[4] / "shared" / "data"
TIMEOUT_S = 3000  # a busy machine needs ten times what a quiet one does
DEBATES = "convarg"  # the source whose votes are dated by the second


def read(name: str) -> pd.DataFrame:
    """`pairs` or `votes`, as published."""
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"needs {path}: the real votes are no part of this repository")
    return pd.read_parquet(path)


def import_all(folder: Path) -> None:
    """Both files into a new home, with what was printed, and its training data."""
    folder.mkdir(parents=True)
    home = Home(folder / "home")
    pairs, votes = (DATA / f"{name}.parquet" for name in ("pairs", "votes"))
    printed = home.take(pairs, "--keep-others", "--project", "real", timeout_s=TIMEOUT_S)
    printed += home.take(votes, timeout_s=TIMEOUT_S)
    printed += home.run("votes", "prepare", timeout_s=TIMEOUT_S)
    (folder / "printed.txt").write_text(printed, encoding="utf-8")


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of all real votes and what its import printed."""
    read("votes")  # skips where they are absent
    return build_once(tmp_path_factory, "real", import_all)


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def training_data(home: Path) -> Path:
    """What `rlhf votes prepare` writes where it is not told otherwise."""
    return home / "data" / "vote_predictor_training_data.jsonl"
