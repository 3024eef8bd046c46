"""What an import keeps of the real votes equals what plain pandas finds in their files."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.acceptance.home import Home, Server, rows
from tests.acceptance.real.votes import read, read_lines, training_data

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def home(imported: Path) -> Home:
    return Home(imported / "home")


@pytest.fixture(scope="module")
def comparisons(home: Home) -> pd.DataFrame:
    return pd.DataFrame(home.export("comparisons"))


@pytest.fixture(scope="module")
def tally() -> pd.DataFrame:
    """Counts of a, b and tie by pair: the last vote of each annotator on a pair that is neither
    identical nor a repetition.
    """
    pairs, votes = read("pairs"), read("votes")
    votes = votes.drop_duplicates(["pair_id", "annotator_id"], keep="last")
    votes = votes[~votes["pair_id"].isin(pairs.loc[is_flagged(pairs), "pair_id"])]
    return votes.groupby("pair_id")["choice"].value_counts().unstack(fill_value=0)


def is_flagged(pairs: pd.DataFrame) -> "pd.Series[bool]":
    """Pairs with the same text on both sides, and further ones of the same two texts."""
    a, b = pairs["response_a"], pairs["response_b"]
    texts = pd.DataFrame(
        {"prompt": pairs["prompt"], "x": a.where(a < b, b), "y": b.where(a < b, a)}
    )
    return (a.str.strip() == b.str.strip()) | texts.duplicated()


def test_every_row_is_imported_once(imported: Path, home: Home) -> None:
    printed = (imported / "printed.txt").read_text(encoding="utf-8")
    for name in ("pairs", "votes"):
        n = len(read(name))
        assert f"{n:,} imported, 0 already known, 0 merged, 0 rejected" in printed
    exported = pd.DataFrame(home.export("votes"))
    votes = read("votes")
    assert len(exported) == len(votes)
    assert exported["choice"].value_counts().to_dict() == votes["choice"].value_counts().to_dict()
    by_pair = exported["source_pair_id"].value_counts()
    assert by_pair.to_dict() == votes["pair_id"].value_counts().to_dict()
    assert exported["annotator_id"].nunique() == votes["annotator_id"].nunique()


def test_dated_votes_keep_their_order(home: Home) -> None:
    dated = [row["voted_at"] for row in home.export("votes") if row["voted_at"]]
    assert len(dated) == read("votes")["submitted_at"].notna().sum()
    assert dated == sorted(dated)


def test_flagged_comparisons_are_those_of_pandas(comparisons: pd.DataFrame) -> None:
    pairs = read("pairs")
    assert len(comparisons) == len(pairs)
    flagged = comparisons.loc[comparisons["flag"] != "", "source_pair_id"]
    assert set(flagged) == set(pairs.loc[is_flagged(pairs), "pair_id"])


def test_pairs_are_the_majorities_of_pandas(
    home: Home, comparisons: pd.DataFrame, tally: pd.DataFrame
) -> None:
    lines = pd.DataFrame(read_lines(training_data(home.path)))
    names = comparisons.set_index("comparison_id")["source_pair_id"]
    pairs = lines.set_index(lines["comparison_id"].map(names)).sort_index()
    expected = tally[tally["a"] != tally["b"]].sort_index()
    n_votes, n_most = expected[["a", "b"]].sum(axis=1), expected[["a", "b"]].max(axis=1)
    assert pairs.index.equals(expected.index)
    assert (
        pairs["chosen_side"] == (expected["a"] > expected["b"]).map({True: "a", False: "b"})
    ).all()
    assert (pairs["n_votes"] == n_votes).all()
    assert ((pairs["agreement"] - n_most / n_votes).abs() < 1e-9).all()
    assert (pairs["n_ties"] == expected["tie"]).all()


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Server]:
    server = Server(home)
    server.start()
    yield server
    server.close()


def test_consensus_is_the_majority_of_pandas(
    server: Server, comparisons: pd.DataFrame, tally: pd.DataFrame
) -> None:
    frame = pd.DataFrame(rows(server.admin, "consensus", method="majority", limit=200))
    names = comparisons.set_index("comparison_id")["source_pair_id"]
    frame = frame.set_index(frame["comparison_id"].map(names)).sort_index()
    frame = frame[frame.index.isin(tally.index)]
    counts = frame[["n_a", "n_b", "n_ties"]].set_axis(["a", "b", "tie"], axis=1)
    assert counts.index.equals(tally.index)
    assert (counts == tally[["a", "b", "tie"]]).all(axis=None)
    most = tally.max(axis=1)
    clear = tally[tally.eq(most, axis=0).sum(axis=1) == 1]
    assert (frame.loc[clear.index, "choice"] == clear.idxmax(axis=1)).all()
    assert ((frame["share"] - most / tally.sum(axis=1)).abs() < 1e-9).all()
