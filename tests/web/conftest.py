"""A real server on loopback over a fresh store, and people who may or may not do things there."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pandas as pd
import pytest
from argon2 import PasswordHasher

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import AnnotationRules, Role, User, utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.server import WebServer

DAY = "2026-01-02"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
# What is read is read anew: nothing is told as it was a moment ago.
UNCACHED = CacheTimes(
    token_s=0,
    terms_s=0,
    work_s=0,
    champion_s=0,
    figures_s=0,
)
MODELS = ("acme-chat-7b@3", "zeta_policy.v2@9")  # no annotator ever reads these


class ShiftedClock:
    """The real time and what a test adds to it."""

    def __init__(self) -> None:
        self.shift = timedelta()

    def now(self) -> datetime:
        return utc_now() + self.shift


@dataclass
class Web:
    """The app as its users meet it: over HTTP."""

    store: Store
    settings: Settings
    url: str
    clock: ShiftedClock
    clients: list[httpx.Client] = field(default_factory=list)

    def add(self, *roles: Role | str, email: str | None = None, **more: str) -> User:
        email = email or f"{'-'.join(roles) or 'nobody'}{self.store.users.count()}@example.org"
        return self.store.users.add(
            email=email,
            name=email.partition("@")[0],
            roles=[Role(role) for role in roles],
            actor="test",
            **more,
        )

    def client(
        self,
        *roles: Role | str,
        user: User | None = None,
        scopes: list[str] | None = None,
        lasts: float = 30 * 86_400,
    ) -> httpx.Client:
        """A program with a token of a user with these roles; `client.user` is that user."""
        user = user or self.add(*roles)
        secret, _ = self.store.tokens.issue(
            user.user_id,
            kind="api",
            lifetime=timedelta(seconds=lasts),
            actor="test",
            scopes=scopes,
            name="test",
        )
        client = self._connect({"Authorization": f"Bearer {secret}"})
        client.user = user  # type: ignore[attr-defined]
        return client

    def browser(self, user: User) -> httpx.Client:
        """A browser in which the user logged in by a link."""
        client = self._connect({"Origin": self.url})
        secret, _ = self.store.tokens.issue(
            user.user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
        )
        assert client.post("/auth/redeem", json={"token": secret}).status_code == 204
        return client

    def auth_hash(self, password: str) -> str:
        """As the app keeps it, made faster."""
        return PasswordHasher(time_cost=1, memory_cost=8 * 1024, parallelism=1).hash(password)

    def anonymous(self) -> httpx.Client:
        return self._connect({})

    def _connect(self, headers: dict[str, str]) -> httpx.Client:
        # Without TLS: reading the certificates would take longer than most tests.
        client = httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=60, verify=False
        )
        self.clients.append(client)
        return client

    def publish(
        self, n: int = 5, *, offer: bool = True, overlap: int = 1, prefix: str = "c", **more: object
    ) -> list[str]:
        frame = comparisons(n, prefix=prefix, **more)
        self.store.comparisons.publish(frame, published_at=NOON)
        ids = list(frame["comparison_id"])
        if offer:
            self.store.cards.offer(ids, overlap=overlap)
        return ids

    def change(self, admin: httpx.Client, user_id: str, **changes: object) -> httpx.Response:
        """Edit a user."""
        return admin.patch(f"/users/{user_id}", json=changes)

    def rule(self, **changes: object) -> AnnotationRules:
        version, rules = self.store.rules.latest()
        new = AnnotationRules.model_validate(rules.model_dump() | changes)
        self.store.rules.put(new, after=version, actor="test")
        return new


def comparisons(n: int, *, prefix: str = "c", day: str = DAY, **more: object) -> pd.DataFrame:
    rows = [
        {
            "day": day,
            "comparison_id": f"{prefix}{i:04}",
            "prompt_id": f"p{prefix}{i}",
            "prompt": f"prompt {prefix}{i}",
            "completion_a_id": f"x{prefix}{i}",
            "completion_b_id": f"y{prefix}{i}",
            "completion_a": f"text A of {prefix}{i}",
            "completion_b": f"text B of {prefix}{i} — ü",
            "model_version_a": MODELS[0],
            "model_version_b": MODELS[1],
            "category": "factual",
            "repeat_of": None,
            "position": i,
            "seed": 7,
            **more,
        }
        for i in range(n)
    ]
    return check_frame(pd.DataFrame(rows), COMPARISONS)


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a migrated store."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    database_url: str = request.getfixturevalue("migrated_postgres_url")
    return database_url


@pytest.fixture
def settings(url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, project="demo", database_url=url)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def open_store(url: str, migrated: Path, clock: ShiftedClock) -> Iterator[Callable[..., Store]]:
    """Opens the database."""
    opened: list[Store] = []

    def open_() -> Store:
        store = Store.open(url, clock=clock)
        if store.database.path is not None and not store.database.path.exists():
            shutil.copy(migrated, store.database.path)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def cache_times() -> CacheTimes:
    return UNCACHED


@pytest.fixture
def web(
    settings: Settings,
    open_store: Callable[[], Store],
    clock: ShiftedClock,
    cache_times: CacheTimes,
) -> Iterator[Web]:
    store = open_store()
    with WebServer(create_app(settings, store, has_pages=False, cache_times=cache_times)) as server:
        web = Web(store, settings, server.url, clock)
        yield web
        for client in web.clients:
            client.close()


@pytest.fixture
def paged(web: Web) -> Iterator[Web]:
    """The same project with its pages."""
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, web.settings, server.url, web.clock)
