"""Pairs of stores for one user: they differ only in votes on, and kinds of, comparisons that the
user has not judged.
"""

import json
import shutil
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pandas as pd

from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import AnnotationRules, Choice, NewFeedback, NewVote, Role, VoteDetails
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.card_queue import is_unfinished
from rlhf_pipeline.store.schema import assignments, feedback, slots
from rlhf_pipeline.web.auth import SECRET_FILE
from tests.web.conftest import NOON, comparisons

ANN = "ann"
BOB = "bob"
ROBOT = "robot"
OTHERS = (ANN, BOB, ROBOT)
ORDINARY = [f"c{i:04}" for i in range(12)]
JUDGED, JUDGED_CORRECTION = ORDINARY[:4], "k0000"
SKIPPED = ORDINARY[4]
TAKEN_BACK = ORDINARY[5]
HELD = ORDINARY[6:8]
CORRECTION = "k0001"
UNJUDGED = [*ORDINARY[4:], CORRECTION]
EVERY = [*ORDINARY, JUDGED_CORRECTION, CORRECTION]


@dataclass
class SetClock:
    at: datetime = NOON

    def now(self) -> datetime:
        return self.at


@dataclass(frozen=True)
class Said:
    """A vote of the plan; `takes_slot` is False for the vote on a hidden card."""

    who: str
    comparison_id: str
    choice: str
    strength: int | None
    reason: str
    duration_s: float
    is_swapped: bool | None
    takes_slot: bool


@dataclass(frozen=True)
class Plan:
    """All that happens in a world after the part that both worlds share."""

    votes: list[Said]
    gold: dict[str, str]
    repeat_of: dict[str, str]
    held_kinds: dict[str, str]
    corrected_side: str  # of the correction that the user has not judged


@dataclass
class Base:
    """A home with users, rules and guidelines; worlds are copies of it."""

    home: Path
    user_id: str
    secret: str
    copies: int = field(default=0)

    def world(self, plan: Plan) -> tuple[Settings, Store]:
        self.copies += 1
        home = self.home.parent / f"{self.home.name}-{self.copies}"
        shutil.copytree(self.home, home)
        settings = settings_of(home)
        store = Store.open(settings.store_url, clock=SetClock())
        _play(store, self.user_id, plan)
        return settings, store


def settings_of(home: Path) -> Settings:
    return Settings(
        home=home, organization="org", project="demo", database_url=f"sqlite:///{home / 'store.db'}"
    )


def base(home: Path, migrated: Path, roles: list[Role], kind: str) -> Base:
    home.mkdir()
    shutil.copy(migrated, home / "store.db")
    (home / SECRET_FILE).write_text("one secret for all worlds: cookies are named by it")
    with Store.open(settings_of(home).store_url, clock=SetClock()) as store:
        user = store.users.add(
            email="user@example.org", name="User", roles=roles, kind=kind, actor="test"
        )
        store.users.add(email="cara@example.org", name="Cara", roles=[Role.ANNOTATOR], actor="test")
        secret, _ = store.tokens.issue(
            user.user_id, kind="api", lifetime=timedelta(days=30), actor="test", name="test"
        )
        store.rules.put(
            AnnotationRules(overlap=2, repeat_share=0.2, gold_share=0.2, seed=5),
            after=0,
            actor="test",
        )
        store.guidelines.add("Be fair.", after=0, actor="test")
    return Base(home, user.user_id, secret)


def plans(rng: Random, user_id: str, *, extra: int) -> tuple[Plan, Plan]:
    """Two plans for one user; the second has `extra` votes more on comparisons that the user has
    not judged.
    """
    first = _plan(
        rng, _votes(rng, user_id), {c: rng.choice("ab") for c in JUDGED if rng.random() < 0.5}
    )
    shared = {c: side for c, side in first.gold.items() if c not in UNJUDGED}
    redrawn = [
        said if said.who == user_id or said.comparison_id not in UNJUDGED else _hidden_vote(rng)
        for said in first.votes
    ]
    for _ in range(extra):
        redrawn.insert(rng.randrange(len(redrawn)), _hidden_vote(rng))
    return first, _plan(rng, redrawn, shared)


def _plan(rng: Random, votes: list[Said], gold: dict[str, str]) -> Plan:
    return Plan(
        votes=votes,
        gold=gold | {c: rng.choice("ab") for c in UNJUDGED if rng.random() < 0.5},
        repeat_of={c: rng.choice(JUDGED) for c in UNJUDGED if rng.random() < 0.3},
        held_kinds={c: rng.choice(["normal", "gold"]) for c in HELD},
        corrected_side=rng.choice("ab"),
    )


def _votes(rng: Random, user_id: str) -> list[Said]:
    own = [_vote(rng, user_id, c) for c in [*JUDGED, JUDGED_CORRECTION, TAKEN_BACK]]
    own = [
        replace(said, choice="b" if said.choice == "skip" else said.choice, takes_slot=False)
        for said in own
    ]
    own.append(replace(_vote(rng, user_id, SKIPPED), choice="skip", strength=None))
    shared = [
        _vote(rng, who, c)
        for c in [*JUDGED, JUDGED_CORRECTION]
        for who in OTHERS
        if rng.random() < 0.7
    ]
    every = own + shared + [_hidden_vote(rng) for _ in range(14)]
    rng.shuffle(every)
    return every


def _hidden_vote(rng: Random) -> Said:
    return _vote(rng, rng.choice(OTHERS), rng.choice(UNJUDGED))


def _vote(rng: Random, who: str, comparison_id: str) -> Said:
    choice = rng.choice(["a", "b", "a", "b", "tie", "both_bad", "skip"])
    strength = rng.choice([1, 2, 3, 4, None]) if choice in "ab" else None
    reason = rng.choice(["led by style", "led by facts", ""])
    duration_s = rng.choice([0.01, 3.0, 30.0])
    return Said(
        who,
        comparison_id,
        choice,
        strength,
        reason,
        duration_s,
        rng.choice([True, False, None]),
        rng.random() < 0.5,
    )


def _play(store: Store, user_id: str, plan: Plan) -> None:
    clock = store.database.clock
    assert isinstance(clock, SetClock)
    frame = comparisons(len(ORDINARY))
    corrections = comparisons(2, prefix="k", source="correction")
    corrections["category"] = "correction"
    # The texts of c0000 and c0008, and of others, are the same pair: a vote on one can be a
    # duplicate of a vote on the other.
    for i in range(8, 12):
        frame.loc[i, ["prompt", "completion_a", "completion_b"]] = frame.loc[
            i - 8, ["prompt", "completion_a", "completion_b"]
        ]
    for name, said in (("gold", plan.gold), ("repeat_of", plan.repeat_of)):
        frame[name] = pd.Series([said.get(c) for c in frame["comparison_id"]], dtype="str")
    store.comparisons.publish(frame, published_at=NOON)
    store.comparisons.publish(corrections, published_at=NOON)
    store.assignments.offer(ORDINARY[:10], overlap=2)
    _correct(store, plan)
    for n, held in enumerate(HELD, 1):
        _hold(store, user_id, held, n, plan.held_kinds[held])
    for i, said in enumerate(plan.votes):
        # A vote's own time follows from what it is, so that votes that only one world has move no
        # other's.
        vote = store.votes.cast(_new_vote(said, i))
        if said.who == user_id and said.comparison_id == TAKEN_BACK:
            undone = {
                "choice": Choice.SKIP,
                "strength": None,
                "supersedes": vote.vote_id,
                "details": VoteDetails(flags=("undone",)),
            }
            store.votes.cast(
                _new_vote(said, i).model_copy(
                    update={**undone, "idempotency_key": f"{user_id}/undone"}
                )
            )
        if said.takes_slot and said.choice != "skip":
            _take_slot(store, said.comparison_id)


def _new_vote(said: Said, i: int) -> NewVote:
    return NewVote(
        comparison_id=said.comparison_id,
        annotator_id=said.who,
        annotator_kind="machine" if said.who == ROBOT else "human",
        choice=said.choice,
        strength=said.strength,
        reason=said.reason or None,
        duration_s=said.duration_s,
        is_swapped=said.is_swapped,
        voted_at=NOON
        - timedelta(days=len(said.reason) % 3, seconds=EVERY.index(said.comparison_id)),
        origin="api",
        idempotency_key=f"hidden/{i}"
        if said.who in OTHERS and said.comparison_id in UNJUDGED
        else f"{said.who}/{said.comparison_id}",
    )


def _correct(store: Store, plan: Plan) -> None:
    """Feedback of ann on both corrections; its vote is among the others'."""
    rows = []
    for n, (comparison_id, side) in enumerate(
        ((JUDGED_CORRECTION, "a"), (CORRECTION, plan.corrected_side)), 1
    ):
        texts = store.comparisons.texts([comparison_id])[comparison_id]
        good, bad = (
            (texts.completion_a, texts.completion_b)
            if side == "a"
            else (texts.completion_b, texts.completion_a)
        )
        new = NewFeedback(
            kind="correction", prompt=texts.prompt, completion=bad, correction=good, session_id="s"
        )
        rows.append(
            {
                "feedback_id": n,
                "kind": new.kind,
                "session_id": "s",
                "created_by": ANN,
                "created_at": NOON,
                "record": json.dumps(new.model_dump(exclude_none=True)),
                "comparison_id": comparison_id,
                "vote_id": None,
            }
        )
    with store.database.write_transaction() as connection:
        store.database.insert(connection, feedback, rows)


def _hold(store: Store, user_id: str, comparison_id: str, n: int, kind: str) -> None:
    until = NOON + timedelta(minutes=10)
    card = {
        "assignment_id": f"card{n}",
        "comparison_id": comparison_id,
        "annotator_id": user_id,
        "pass_no": 1,
        "kind": kind,
        "is_swapped": False,
        "n": n,
        "state": "leased",
        "slot_no": 1 if kind == "normal" else None,
        "leased_at": NOON,
        "leased_until": until,
        "settled_at": None,
    }
    with store.database.write_transaction() as connection:
        store.database.insert(connection, assignments, [card])
        if kind == "normal":
            of = slots.c.comparison_id == comparison_id, slots.c.slot_no == 1
            connection.execute(
                slots.update()
                .where(*of)
                .values(state="leased", assignment_id=f"card{n}", leased_until=until)
            )


def _take_slot(store: Store, comparison_id: str) -> None:
    with store.database.write_transaction() as connection:
        of = slots.c.comparison_id == comparison_id, is_unfinished(), slots.c.state == "open"
        free = connection.execute(slots.select().where(*of).order_by(slots.c.slot_no)).first()
        if free is not None:
            this = slots.c.comparison_id == comparison_id, slots.c.slot_no == free.slot_no
            connection.execute(slots.update().where(*this).values(state="done", leased_until=None))
