"""Sessions in which the gate asks people about a candidate: what was frozen, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection, RowMapping, func, select

from rlhf_pipeline.core.api_types.project import PairPrediction
from rlhf_pipeline.core.records import AnnotatorKind, GateDecision, Record
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import gate_sessions, votes

State = Literal["open", "held", "decided", "void"]
RUNNING: tuple[State, ...] = ("open", "held")
ACTIVE_FOR = timedelta(days=28)  # whoever was dealt a card and voted in it counts as active


class GatePrompt(Record):
    """A frozen prompt with both texts, and the judge's probability that a person prefers the
    candidate's, scored before the first vote.
    """

    prompt_id: str
    prompt: str
    category: str
    completion_candidate: str
    completion_champion: str
    probability: float = Field(ge=0, le=1)
    prediction: PairPrediction | None = Field(
        default=None,
        description="of the champion reward model, a being the candidate's text; stated for the "
        "comparisons of the prompt, so that their votes measure its calibration",
    )


class GateTerms(Record):
    """What a session was opened with: the decision so far, and how people are asked."""

    decision: GateDecision = Field(description="every check but the win rate")
    seed: int
    n_annotators: int = Field(ge=1, description="active ones; a prompt is drawn again for others")
    max_votes: int
    smallest_effect: float
    min_win_rate: float
    hold_after_days: float
    reason: str = Field(default="", description="why it is void")


class GateSession(Record):
    """One session. `n_wanted` judgements were asked so far, of each annotator at most `most_share`
    of them.
    """

    session_id: int
    candidate: str
    champion: str
    state: State
    n_wanted: int
    most_share: float
    opened_at: datetime
    asked_at: datetime = Field(description="when the last batch was offered")
    closed_at: datetime | None
    terms: GateTerms

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING


class GateSessions(Repository):
    """At most one is running."""

    def open(
        self, terms: GateTerms, prompts: Sequence[GatePrompt], *, most_share: float
    ) -> GateSession:
        """A new session that has not asked anybody yet. The running one has to be closed before."""
        now = self._database.clock.now().astimezone(UTC)
        with audited_transaction(self._database) as (connection, ledger):
            row = {
                "session_id": self._database.next_number(connection, gate_sessions.c.session_id),
                "candidate": terms.decision.candidate,
                "champion": terms.decision.champion,
                "state": "open",
                "n_wanted": 0,
                "most_share": most_share,
                "opened_at": now,
                "asked_at": now,
                "closed_at": None,
                "record": json_of(terms, f"The gate session on {terms.decision.candidate}"),
                "prompts": json.dumps(
                    [prompt.model_dump(mode="json") for prompt in prompts], ensure_ascii=False
                ),
            }
            self._database.insert(connection, gate_sessions, [row])
            _link(ledger, row, "gate_session.open")
        return _build(row)

    def running(self) -> GateSession | None:
        return next(iter(self._read(gate_sessions.c.state.in_(RUNNING))), None)

    def latest(self) -> GateSession | None:
        return next(iter(self._read()), None)

    def all(self) -> list[GateSession]:
        """Oldest first."""
        return self._read()[::-1]

    def prompts(self, session_id: int) -> list[GatePrompt]:
        """In the order in which draws number them."""
        query = select(gate_sessions.c.prompts).where(gate_sessions.c.session_id == session_id)
        return [
            GatePrompt(**values)
            for values in json.loads(self._database.fetch_scalar(query) or "[]")
        ]

    def ask(self, session: GateSession, n_wanted: int, most_share: float) -> GateSession | None:
        """Want so many judgements in all; None if another process changed the session first."""
        changes = {"n_wanted": n_wanted, "most_share": most_share, "state": "open"}
        return self._change(session, "gate_session.ask", changes | {"asked_at": self._now()})

    def hold(self, session: GateSession, state: State) -> GateSession | None:
        """Hold it while nobody votes, or open it again. Returns as `ask`."""
        return self._change(session, "gate_session.hold", {"state": state})

    def close(self, session: GateSession, state: State, reason: str = "") -> GateSession | None:
        """End it, as decided or void. Returns as `ask`."""
        terms = session.terms.model_copy(update={"reason": reason})
        changes = {"state": state, "closed_at": self._now(), "record": json_of(terms, "The terms")}
        return self._change(session, f"gate_session.{state}", changes)

    def count_active_annotators(self) -> int:
        """How many people, or simulated annotators, judged a card within ACTIVE_FOR."""
        since = (self._now() - ACTIVE_FOR).date().isoformat()
        query = select(func.count(votes.c.annotator_id.distinct())).where(
            votes.c.day >= since,
            votes.c.card_id.is_not(None),
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
        )
        return self._database.fetch_scalar(query) or 0

    def _now(self) -> datetime:
        return self._database.clock.now().astimezone(UTC)

    def _read(self, *conditions: Any) -> list[GateSession]:
        """The newest first."""
        columns = [column for column in gate_sessions.c if column.name != "prompts"]
        query = select(*columns).where(*conditions).order_by(gate_sessions.c.session_id.desc())
        return [_build(row) for row in self._database.fetch_mappings(query)]

    def _change(
        self, session: GateSession, action: str, changes: dict[str, Any]
    ) -> GateSession | None:
        this = gate_sessions.c.session_id == session.session_id
        with audited_transaction(self._database) as (connection, ledger):
            unchanged = (
                this,
                gate_sessions.c.state == session.state,
                gate_sessions.c.n_wanted == session.n_wanted,
            )
            update = gate_sessions.update().where(*unchanged).values(changes)
            if not connection.execute(update).rowcount:
                return None
            row = _fetch_row(connection, session.session_id)
            _link(ledger, row, action)
        return _build(row)


def _fetch_row(connection: Connection, session_id: int) -> RowMapping:
    query = select(gate_sessions).where(gate_sessions.c.session_id == session_id)
    return connection.execute(query).mappings().one()


def _link(ledger: Ledger, row: Any, action: str) -> None:
    digest = row_digest(gate_sessions, row)
    ledger.append(actor="pipeline", action=action, object_id=str(row["session_id"]), digest=digest)


def _build(row: Any) -> GateSession:
    names = set(GateSession.model_fields) - {"terms"}
    return GateSession(
        **{name: row[name] for name in names}, terms=GateTerms.from_json(row["record"])
    )
