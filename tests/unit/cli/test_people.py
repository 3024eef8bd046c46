"""What an operator says about people: users, rules, guidelines, work, routing, the audit chain; and
voting in a terminal.
"""

import json
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, check_frame
from rlhf_pipeline.core.records import AnnotationRules, Choice, NewVote, Role
from rlhf_pipeline.store import Store


def today() -> str:
    """Asked anew: a suite may run past midnight."""
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def rlhf(home):
    """`rlhf(...)` in a home of its own; errors that the library raises come through."""

    def call(*arguments, typed=None):
        environ = {"RLHF_HOME": str(home), "COLUMNS": "200"}
        return (
            CliRunner()
            .invoke(
                app, [str(a) for a in arguments], env=environ, input=typed, catch_exceptions=False
            )
            .output
        )

    return call


@pytest.fixture
def store(home):
    home.mkdir()
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
        yield store


def published(store, n, *, p=None, prefix="c", **more):
    rows = [
        dict.fromkeys(COMPARISONS.columns)
        | {
            "day": today(),
            "comparison_id": f"{prefix}{i}",
            "prompt_id": f"p{i}",
            "prompt": f"ask {i}",
            "completion_a_id": f"x{i}",
            "completion_b_id": f"y{i}",
            "completion_a": f"first {i}",
            "completion_b": f"second {i}",
            "model_version_a": "m@1",
            "model_version_b": "m@1",
            "category": "factual",
            "position": i,
            "seed": 0,
        }
        | more
        for i in range(n)
    ]
    frame = check_frame(pd.DataFrame(rows), COMPARISONS)
    predicted = None
    if p is not None:
        values = {
            "day": today(),
            "comparison_id": frame["comparison_id"],
            "reward_model": "demo.reward_model@1",
            "calibrator": "1",
            "data_hash": "d",
            "features_hash": "f",
            "score_a": 0.0,
            "score_b": 0.0,
            "p_raw": 0.5,
            "p_calibrated": p,
            "predicted_at": datetime.now(UTC),
        }
        predicted = check_frame(pd.DataFrame(values), PREDICTIONS)
    store.comparisons.publish(frame, predicted, published_at=datetime.now(UTC))
    return frame["comparison_id"].tolist()


# --- users
# --------------------------------------------------------------------------------------------------


def test_an_added_user_gets_a_single_use_login_link(rlhf, store):
    output = rlhf("users", "add", "Ann@Example.org", "--name", "Ann")
    user = store.users.with_email("ann@example.org")
    assert (user.name, user.roles) == ("Ann", (Role.ANNOTATOR,))
    secret = re.search(r"/login\?token=(\S+)", output).group(1)
    assert store.tokens.redeem(secret).user_id == user.user_id
    assert store.tokens.redeem(secret) is None


def test_a_user_is_placed_in_a_group_and_taken_out(rlhf, store):
    rlhf("users", "add", "ann@example.org")
    ann = store.users.with_email("ann@example.org").user_id
    assert "is now in group experts" in rlhf("users", "group", "ann@example.org", "experts")
    assert store.annotator_groups.all() == {ann: "experts"}
    assert "experts" in rlhf("users", "list")
    assert "is now in no named group" in rlhf("users", "group", "ann@example.org")
    assert store.annotator_groups.all() == {}


def test_a_token_is_shown_once_and_has_the_given_name(rlhf, store):
    rlhf("users", "add", "bot@example.org", "--service", "--role", "engineer")
    output = rlhf(
        "users",
        "token",
        "bot@example.org",
        "--name",
        "nightly",
        "--scope",
        "metrics.read",
        "--days",
        "3",
    )
    token = store.tokens.find(output.split()[0])
    assert (token.scopes, token.name) == (("metrics.read",), "nightly")
    assert (token.expires_at - token.created_at).days == 3
    with pytest.raises(ConfigurationError, match=r"no permission users\.write"):
        rlhf("users", "token", "bot@example.org", "--scope", "users.write")


# --- work
# --------------------------------------------------------------------------------------------------


# --- the terminal
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(rlhf, store):
    rlhf("users", "add", "ann@example.org")
    return store.users.with_email("ann@example.org").user_id


def cast_by(store, user_id):
    return store.votes.page(annotator_id=user_id)[::-1]


def test_piped_lines_are_votes_with_the_displayed_sides(rlhf, store, ann, tmp_path):
    store.cards.offer(published(store, 8), overlap=1)
    out = tmp_path / "votes.jsonl"
    keys = ["1", "2 it is shorter", "3", "4", "5", "6", "9", "0"]
    output = rlhf(
        "vote", "--annotator", "ann@example.org", "--export", out, typed="\n".join(keys) + "\n"
    )
    assert "8 votes of ann@example.org" in output
    votes = cast_by(store, ann)
    assert [v.origin for v in votes] == ["cli"] * 8
    sides = re.findall(r"── left \(1-4\) ──\n(.*)\n\n── right \(6-9\) ──\n(.*)\n", output)
    texts = store.comparisons.texts([v.comparison_id for v in votes])
    for vote, (left, right), key in zip(votes, sides, keys, strict=True):
        text = texts[vote.comparison_id]
        assert (left, right) == (
            (text.completion_b, text.completion_a)
            if vote.is_swapped
            else (text.completion_a, text.completion_b)
        )
        chosen = {Choice.A: text.completion_a, Choice.B: text.completion_b}.get(vote.choice)
        assert chosen == (left if key[0] in "1234" else right if key[0] in "6789" else None)
    assert [v.strength for v in votes] == [4, 3, 2, 1, None, 1, 4, None]
    assert [v.choice for v in votes][4:8:3] == [Choice.TIE, Choice.BOTH_BAD]
    assert votes[1].reason == "it is shorter"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["choice"] for row in rows] == [v.choice for v in votes]
    assert store.cards.remaining_work().n_done == 8


def test_an_undone_vote_brings_its_card_back(rlhf, store, ann):
    store.cards.offer(published(store, 3), overlap=1)
    output = rlhf("vote", "--annotator", "ann@example.org", typed="u\n1\nu\n9\nq\n")
    assert "nothing to undo" in output
    first, undone, again = cast_by(store, ann)
    assert (undone.supersedes, undone.choice) == (first.vote_id, Choice.SKIP)
    assert (again.card_id, again.supersedes) == (first.card_id, undone.vote_id)
    left = store.cards.remaining_work()
    assert (left.n_done, left.n_leased) == (1, 0), "the card on the table is given back"


def test_the_checks_are_those_of_the_page(rlhf, store, ann):
    store.rules.put(AnnotationRules(requires_reason=True), after=0, actor="test")
    store.cards.offer(published(store, 1), overlap=1)
    output = rlhf("vote", "--annotator", "ann@example.org", typed="1\n")
    assert "not done: reason is missing" in output
    assert store.votes.count() == 0
    rlhf("vote", "--annotator", "ann@example.org", typed="1 because\n")
    assert store.votes.count() == 1


def test_a_user_without_the_permission_cannot_vote(rlhf, store):
    rlhf("users", "add", "aud@example.org", "--role", "auditor")
    for email, named in (
        ("nobody@example.org", "rlhf users add"),
        ("aud@example.org", r"No role of .* may vote"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            rlhf("vote", "--annotator", email, typed="")


# --- the audit chain
# --------------------------------------------------------------------------------------------------


def test_chain_is_verified_and_exported(rlhf, store, tmp_path):
    published(store, 2)
    assert "1 link, chain intact" in rlhf("audit", "verify")
    out = tmp_path / "audit.jsonl"
    assert rlhf("audit", "export", "--out", out).startswith("1 link in ")
    link = json.loads(out.read_text())
    assert (link["seq"], link["action"], link["hash"]) == (
        1,
        "comparisons.publish",
        store.audit.head()[1],
    )


def tamper(home: Path, *statements: str) -> None:
    """As somebody with the file and no scruples."""
    with sqlite3.connect(home / "store.db") as connection:
        triggers = [
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        ]
        for name in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_the_documented_script_verifies_an_archive_and_finds_changes(rlhf, store, home, tmp_path):
    """What docs/guides/backup.md says to run where there is no database."""
    text = (Path(__file__).parents[3] / "docs" / "guides" / "backup.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(import hashlib, json\n.*?)```", text, re.DOTALL).group(1)
    published(store, 3)
    for name in ("Ann", "Zoë"):
        rlhf(
            "users",
            "add",
            f"{name.encode('ascii', 'ignore').decode().lower()}@example.org",
            "--name",
            name,
            "--role",
            "annotator",
        )
    rlhf("audit", "export", "--out", tmp_path / "audit.jsonl")
    (tmp_path / "earlier.jsonl").write_bytes((tmp_path / "audit.jsonl").read_bytes())

    def run():
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    whole = run()
    assert (whole.returncode, whole.stdout) == (0, f"{store.audit.verify()} links hold\n")
    lines = (tmp_path / "audit.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "audit.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    assert "the chain is not the one of the earlier archive" in run().stderr
    changed = lines[1].replace('"actor":', '"actor": "somebody", "was":', 1)
    assert changed != lines[1]
    (tmp_path / "audit.jsonl").write_text(
        "".join([lines[0], changed, *lines[2:]]), encoding="utf-8"
    )
    assert "was changed" in run().stderr


@pytest.mark.parametrize("what", ["votes", "tuples", "comparisons"])
def test_no_export_names_a_person(rlhf, store, tmp_path, what):
    """People of the web app are known to files by their ids alone."""
    prepare(Workspace(Settings(home=store.database.path.parent)))
    ids = published(store, 2)
    ann = store.users.add(
        email="ann.secretly@example.org",
        name="Ann Verysecret",
        roles=[Role.ANNOTATOR],
        actor="test",
    )
    details = {
        "annotator_kind": "human",
        "choice": "a",
        "strength": 2,
        "reason": "clear",
        "voted_at": datetime.now(UTC),
        "origin": "page",
    }
    for c in ids:
        store.votes.cast(
            NewVote(comparison_id=c, annotator_id=ann.user_id, idempotency_key=c, **details)
        )
    rlhf("export", what, "--out", tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert ids[0] in text
    assert "secretly" not in text
    assert "Verysecret" not in text
    assert what != "votes" or ann.user_id in text
