"""On 2016-02-11 other debates replaced the earlier ones: a real drift, found within 300 votes."""

import json
import re
from typing import Any

import pandas as pd
import pytest

from tests.acceptance.home import Home
from tests.acceptance.real.votes import DEBATES, TIMEOUT_S, read

pytestmark = pytest.mark.timeout(3600)

BREAK = "2016-02-11"
MOST_VOTES = 300


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home in which the debates' votes are replayed up to the evening of the break."""
    folder = tmp_path_factory.mktemp("replayed")
    pairs, votes = read("pairs"), read("votes")
    votes = votes[votes["pair_id"].isin(pairs.loc[pairs["source"] == DEBATES, "pair_id"])]
    votes = votes[votes["submitted_at"] < pd.Timestamp(BREAK) + pd.Timedelta(days=1)]
    votes.to_parquet(folder / "votes.parquet", index=False)
    pairs = pairs[pairs["pair_id"].isin(votes["pair_id"])]
    pairs.to_parquet(folder / "pairs.parquet", index=False)
    home = Home(folder / "home")
    home.take(folder / "pairs.parquet", "--keep-others", "--project", "real")
    home.run("import", "preferences", folder / "votes.parquet", "--yes", timeout_s=TIMEOUT_S)
    return home


@pytest.fixture(scope="module")
def first_vote(replayed: Home) -> int:
    """How many votes were cast before the break; votes are numbered from 1."""
    days = [row["voted_at"][:10] for row in replayed.export("votes")]
    return sum(day < BREAK for day in days) + 1


@pytest.fixture(scope="module")
def fired(replayed: Home) -> list[dict[str, Any]]:
    decisions = json.loads(replayed.run("triggers", "list", "--json"))
    return [decision for decision in decisions if decision["action"] == "fire"]


def test_the_break_fires_once_and_on_its_day(replayed: Home, fired: list[dict[str, Any]]) -> None:
    assert [decision["decided_at"][:10] for decision in fired] == [BREAK]
    report = pd.read_parquet(replayed.path / "frames" / "drift_report" / f"{BREAK}.parquet")
    assert report.set_index("space").loc["overall", "verdict"] == "drift"


def test_the_break_is_found_within_300_votes(fired: list[dict[str, Any]], first_vote: int) -> None:
    """The first detector that reports it confirms it alone."""
    [first] = re.findall(r"between votes (\d+) and", " ".join(fired[0]["reasons"]))
    assert first_vote <= int(first) <= first_vote + MOST_VOTES
