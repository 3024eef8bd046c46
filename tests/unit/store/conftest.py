"""A fresh store per test, and small frames to fill it with."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import text

from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, check_frame
from rlhf_pipeline.core.records import Card, DriftEvent, NewVote, VoteDetails
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import APPEND_ONLY

DAY = "2026-01-01"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class SetClock:
    """Stands still until it is moved."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def tick(self, **by: float) -> None:
        self.at += timedelta(**by)


@pytest.fixture
def clock(store: Store) -> SetClock:
    clock = SetClock()
    store.database.clock = clock
    return clock


def tamper(store: Store, *statements: str) -> None:
    """Change rows as somebody with the file and no respect for triggers would."""
    with store.database.write_transaction() as connection:
        if store.database.is_sqlite:
            triggers = (
                connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
                .scalars()
                .all()
            )
            disarm = [f"DROP TRIGGER {name}" for name in triggers]
        else:
            disarm = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in APPEND_ONLY]
        for statement in (*disarm, *statements):
            connection.execute(text(statement))


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store without tables, on SQLite and on Postgres."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'state' / 'store.db'}"
    fixture = "migrated_postgres_url" if "store" in request.fixturenames else "postgres_url"
    database_url: str = request.getfixturevalue(fixture)
    return database_url


@pytest.fixture
def store(url: str, migrated: Path) -> Iterator[Store]:
    with Store.open(url) as store:
        if store.database.path is not None:
            shutil.copy(migrated, store.database.path)
        yield store


@pytest.fixture
def fresh_store(tmp_path: Path, migrated: Path) -> Callable[[], Store]:
    """Opens one more store, each time without rows, on SQLite."""

    def open_() -> Store:
        path = Path(tempfile.mkdtemp(dir=tmp_path)) / "store.db"
        shutil.copy(migrated, path)
        return Store.open(f"sqlite:///{path}")

    return open_


@pytest.fixture
def make_comparisons() -> Callable[..., pd.DataFrame]:
    def make(
        n: int = 3, *, day: str = DAY, prefix: str = "c", repeat_of: str | None = None
    ) -> pd.DataFrame:
        rows = [
            {
                "day": day,
                "comparison_id": f"{prefix}{i}",
                "prompt_id": f"p{i}",
                "prompt": f"prompt {i}",
                "completion_a_id": f"x{i}",
                "completion_b_id": f"y{i}",
                "completion_a": "text x",
                "completion_b": "text y — ü",
                "model_version_a": "demo.policy@1",
                "model_version_b": "demo.policy@1",
                "category": "factual",
                "repeat_of": repeat_of,
                "position": i,
                "seed": 7,
            }
            for i in range(n)
        ]
        return check_frame(pd.DataFrame(rows, columns=list(COMPARISONS.columns)), COMPARISONS)

    return make


@pytest.fixture
def make_predictions() -> Callable[..., pd.DataFrame]:
    def make(
        comparisons: pd.DataFrame,
        p: float | list[float] = 0.7,
        reward_model: str = "demo.reward_model@1",
    ) -> pd.DataFrame:
        frame = pd.DataFrame(
            {
                "day": comparisons["day"],
                "comparison_id": comparisons["comparison_id"],
                "reward_model": reward_model,
                "calibrator": "1",
                "data_hash": "d",
                "features_hash": "f",
                "score_a": 1.0,
                "score_b": 0.5,
                "p_raw": 0.8,
                "p_calibrated": p,
                "predicted_at": NOON,
            }
        )
        return check_frame(frame, PREDICTIONS)

    return make


@pytest.fixture
def make_vote() -> Callable[..., NewVote]:
    """A vote of annotator `ann` on comparison c0; its key follows from what is given."""

    def make(
        comparison_id: str = "c0", annotator_id: str = "ann", choice: str = "a", **more: Any
    ) -> NewVote:
        values = {
            "annotator_kind": "simulated",
            "voted_at": NOON + timedelta(minutes=1),
            "origin": "simulation",
            "idempotency_key": f"{comparison_id}/{annotator_id}",
        }
        return NewVote(
            comparison_id=comparison_id,
            annotator_id=annotator_id,
            choice=choice,
            **{**values, **more},
        )

    return make


def vote_on(card: Card, choice: str = "a", **more: Any) -> NewVote:
    """A person's vote on a card; its key follows from what is given."""
    values = {
        "annotator_kind": "human",
        "voted_at": NOON,
        "idempotency_key": f"{card.card_id}/{more.get('supersedes')}/{choice}",
    }
    return NewVote(
        comparison_id=card.comparison_id,
        annotator_id=card.annotator_id,
        choice=choice,
        origin="page",
        card_id=card.card_id,
        is_swapped=card.is_swapped,
        **{**values, **more},
    )


def undo_of(card: Card, vote_id: str, **more: Any) -> NewVote:
    return vote_on(card, "skip", supersedes=vote_id, details=VoteDetails(flags=("undone",)), **more)


@pytest.fixture
def make_event() -> Callable[..., DriftEvent]:
    def make(seq: int = 10, *, detector: str = "ddm", **more: Any) -> DriftEvent:
        values = {
            "kind": "drift",
            "model_version": "demo.reward_model@1",
            "params_hash": "ph",
            "stream": "errors",
            "day": DAY,
            "evidence": {"rate": 0.4},
            "detected_at": NOON,
        }
        return DriftEvent(detector=detector, seq=seq, **{**values, **more})

    return make
