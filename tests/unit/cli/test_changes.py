"""`rlhf changes`: changes of taste recorded, shown and retracted by hand, and used by every fit."""

import json
from pathlib import Path

import pytest

from tests.learnt_home import LearntHome


@pytest.fixture
def home(voted: LearntHome, tmp_path: Path) -> LearntHome:
    return voted.copied(tmp_path / "home")


def test_change_is_added_listed_and_retracted(home: LearntHome) -> None:
    assert (
        home.rlhf("changes", "list").output
        == "No change of taste is recorded: every vote counts alike.\n"
    )
    output = home.rlhf(
        "changes", "add", "100", "--cause", "new guidelines", "--category", "factual"
    ).output
    assert (
        output == "change 1: votes before 100 count less in category factual from the next fit on\n"
    )
    home.rlhf("changes", "add", "200", "--cause", "new people")
    output = home.rlhf("changes", "retract", "2", "--reason", "false alarm").output
    assert (
        output
        == "change 2 is retracted: votes before 200 count in full again from the next fit on\n"
    )
    first, second = json.loads(home.rlhf("changes", "list", "--json").output)
    assert (first["change_seq"], first["category"], first["cause"], first["retracted_at"]) == (
        100,
        "factual",
        "new guidelines",
        None,
    )
    assert (second["category"], second["retracted_by"], second["retraction_reason"]) == (
        None,
        "rlhf changes",
        "false alarm",
    )
    table = home.rlhf("changes", "list").output
    assert "category factual" in table
    assert "false alarm" in table
