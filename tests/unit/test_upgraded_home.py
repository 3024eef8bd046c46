"""A home of tables version 0010 after an upgrade: every digest verifies, every record is read, work
goes on.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from rlhf_pipeline.artefacts import RECORDS
from rlhf_pipeline.cli.init import rewrite_votes_frames
from rlhf_pipeline.drift.windows import Window
from rlhf_pipeline.frames import frame_hash
from rlhf_pipeline.metrics.vote_sums import count_new_votes
from rlhf_pipeline.records import AnnotatorKind, Choice, NewVote, content_hash, folder_hash, utc_now
from rlhf_pipeline.retraining.explanation import find_differences
from rlhf_pipeline.store import migrations
from rlhf_pipeline.store.anchors import FILE, read_anchors, verify_with_anchors
from rlhf_pipeline.votes.counting import counting, drop_machine_votes
from rlhf_pipeline.votes.sums import VERSION
from tests.upgraded_home import UpgradedHome


def test_upgraded_store_has_the_schema_of_a_fresh_one(
    upgraded_home: UpgradedHome, migrated: Path
) -> None:
    """Columns in their order, constraints, indexes, triggers and the planner's statistics."""
    upgraded = upgraded_home.store.database
    assert migrations.current_revision(upgraded) == migrations.HEAD
    with closing(sqlite3.connect(migrated)) as fresh:
        expected = _schema_of(fresh)
    with closing(sqlite3.connect(str(upgraded.path))) as connection:
        assert _schema_of(connection) == expected
    assert len(expected) > 150


def _schema_of(connection: sqlite3.Connection) -> dict[str, object]:
    """By name of what it defines; a definition whatever lines and order it is written in."""
    schema: dict[str, object] = {}
    defined = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    for kind, name, sql in defined:
        schema[f"{kind} {name}"] = sorted(re.findall(r"\w+|[^\w\s\"]", sql or ""))
        if kind == "table":
            schema[f"columns of {name}"] = connection.execute(
                f"PRAGMA table_info({name})"
            ).fetchall()
        if kind == "index":
            schema[f"columns of {name}"] = connection.execute(
                f"PRAGMA index_info({name})"
            ).fetchall()
    schema["statistics"] = set(
        connection.execute("SELECT * FROM sqlite_stat1 WHERE tbl <> 'alembic_version'")
    )
    return schema


def test_upgraded_audit_chain_verifies_with_its_anchors(upgraded_home: UpgradedHome) -> None:
    """Every vote, feedback, guideline and rule beside its link; see Audit.verify."""
    settings, audit = upgraded_home.settings, upgraded_home.store.audit
    anchors = read_anchors(settings.home / FILE, settings.organization, settings.project)
    assert len(anchors) == len(upgraded_home.facts["days"])
    assert verify_with_anchors(audit, anchors) >= upgraded_home.facts["audit"]["n_links"]
    seq, digest = upgraded_home.facts["audit"]["head"]
    assert audit.hash_at(seq) == digest


def test_upgraded_days_hold_the_same_votes(upgraded_home: UpgradedHome) -> None:
    store, facts = upgraded_home.store, upgraded_home.facts
    counted = counting(store.votes.log())
    for day, fact in facts["days"].items():
        ids = counted.loc[counted["day"] == day, "vote_id"].tolist()
        assert (len(ids), content_hash(ids)) == (fact["n"], fact["sha256"])
    assert (store.votes.count(), store.comparisons.count()) == (
        facts["votes"],
        facts["comparisons"],
    )


def test_votes_sent_again_after_an_upgrade_are_known(upgraded_home: UpgradedHome) -> None:
    """Their bodies are hashed as they were, or each would be refused as another vote under its
    key.
    """
    store = upgraded_home.store
    seen = [store.votes.get(vote_id) for vote_id in store.votes.log()["vote_id"]]
    again = store.votes.cast_all(
        NewVote.model_validate(vote.model_dump(include=set(NewVote.model_fields))) for vote in seen
    )
    assert (again.n_new, again.n_known) == (0, upgraded_home.facts["votes"])


def test_upgraded_frames_hash_the_same(upgraded_home: UpgradedHome) -> None:
    expected = upgraded_home.facts["frames"]
    assert {
        name: frame_hash(upgraded_home.files.read_frame(*name.split("/"))) for name in expected
    } == expected


def test_registered_files_have_the_hashes_of_their_tags(upgraded_home: UpgradedHome) -> None:
    """Read past MLflow, whose runs hold the absolute path at which the home was made."""
    mlflow = upgraded_home.settings.home / "mlflow"
    wanted = (
        "SELECT v.name, v.version, v.source, t.value FROM model_versions v JOIN model_version_tags "
        "t USING (name, version) WHERE t.key = 'content_hash'"
    )
    with closing(sqlite3.connect(mlflow / "mlflow.db")) as connection:
        versions = connection.execute(wanted).fetchall()
    assert {name for name, *_ in versions} == {"demo.policy", "demo.reward_model"}
    for name, version, source, digest in versions:
        run_id, _, path = source.removeprefix("runs:/").partition("/")
        assert folder_hash(mlflow / "artifacts" / "demo" / run_id / "artifacts" / path) == digest, (
            f"{name}@{version}"
        )


def test_every_stored_decision_is_reproduced(upgraded_home: UpgradedHome) -> None:
    decisions = upgraded_home.store.decisions.all()
    assert [find_differences(decision) for decision in decisions] == [[], []]


def test_every_stored_record_is_read(upgraded_home: UpgradedHome) -> None:
    store, files = upgraded_home.store, upgraded_home.files
    assert [files.read_record(stage, kind) for stage, kind in RECORDS.items()]
    found = {kind: store.promotions.champion(f"demo.{kind}") for kind in ("policy", "reward_model")}
    assert {kind: one.version for kind, one in found.items() if one} == upgraded_home.facts[
        "champions"
    ]
    assert {decision.action for decision in store.decisions.all()} == {"fire", "hold"}
    assert {entry.kind for entry in store.feedback.page()} == {
        "thumbs",
        "rating",
        "detailed",
        "correction",
    }
    assert store.rules.latest()[0] == len(store.rules.history()) == len(store.guidelines.all()) == 2
    assert len(store.users.all()) == 4
    assert store.calibrations.log()
    assert store.gates.all()
    assert store.events.for_model("demo.reward_model@1")
    for folder in (upgraded_home.settings.models / "reference").iterdir():
        assert Window.load(folder)


def test_votes_of_an_upgraded_home_are_summed(upgraded_home: UpgradedHome) -> None:
    store = upgraded_home.store
    assert count_new_votes(store) == 0
    _, (row,) = store.vote_sums.read(VERSION, ["choice.skip"])
    assert row.n == len(drop_machine_votes(counting(store.votes.log())))


def test_an_upgraded_home_keeps_working(upgraded_home: UpgradedHome) -> None:
    """Cards left by the version before are dealt, judged and linked into its chain."""
    store = upgraded_home.store
    (bob,) = [user for user in store.users.all() if user.email == "bob@example.org"]
    card = store.assignments.deal(bob.user_id, 1, store.rules.latest()[1])[0]
    vote = store.votes.cast(
        NewVote(
            comparison_id=card.comparison_id,
            annotator_id=bob.user_id,
            annotator_kind=AnnotatorKind.HUMAN,
            choice=Choice.A,
            origin="page",
            voted_at=utc_now(),
            idempotency_key="after the upgrade",
            assignment_id=card.assignment_id,
            is_swapped=card.is_swapped,
        )
    )
    assert vote.seq == upgraded_home.facts["votes"] + 1
    assert store.audit.verify() > upgraded_home.facts["audit"]["n_links"]


def test_votes_frames_of_an_earlier_version_are_rewritten_once(
    upgraded_home: UpgradedHome,
) -> None:
    store, files = upgraded_home.store, upgraded_home.files
    days = files.days("votes")
    before = {day: files.read_frame("votes", day) for day in days}
    assert rewrite_votes_frames(store, files) == len(days) > 0
    n_more = 0
    for day in days:
        made = files.read_frame("votes", day)
        assert made.equals(store.votes.log([day]))
        n_more += len(made) - len(before[day])
    assert n_more > 0, "some votes were superseded"
    assert rewrite_votes_frames(store, files) == 0


def test_votes_that_wait_for_their_day_go_on_waiting(upgraded_home: UpgradedHome) -> None:
    store, files = upgraded_home.store, upgraded_home.files
    day = files.days("votes")[0]
    frame = files.read_frame("votes", day)
    waiting = int(frame["seq"].iloc[-3])
    files.write_frame("votes", frame[frame["seq"] < waiting], day)
    rewrite_votes_frames(store, files)
    assert files.read_frame("votes", day)["seq"].max() < waiting


def test_a_frame_with_votes_missing_from_the_store_is_kept(
    upgraded_home: UpgradedHome,
) -> None:
    store, files = upgraded_home.store, upgraded_home.files
    day = files.days("votes")[0]
    frame = files.read_frame("votes", day)
    frame.loc[0, "vote_id"] = "lost by the store"
    files.write_frame("votes", frame, day)
    rewrite_votes_frames(store, files)
    assert files.read_frame("votes", day).equals(frame)
