"""A web app with people and work for the browser: in this process, on loopback, on a store of its
own. Knows no page.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import AnnotationRules, Role, User, Vote, utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED

PROMPT = (
    "Explain to a curious ten-year-old why the sky is blue, in at most four sentences. Item {i}."
)
LEFT = """# Why the sky is blue

Sunlight looks white, but it is a **mix of all colours**.

1. Light meets tiny bits of air.
2. *Blue* light is scattered most, because its waves are short.
3. So blue reaches your eyes from everywhere.

| colour | wave | scattered |
|---|---|---|
| red | long | little |
| blue | short | much |

```python
def sky(colour: str) -> bool:
    return colour == "blue"  # {i}
```
"""
RIGHT = """The sky is blue because the ocean is blue and the air works like a mirror. \
You can see it best on a sunny day at the beach.

> Many people believe this.

When the sun sets the mirror tilts and everything turns red. \
See [the story](https://example.org/sky) for more \\*details\\*. ({i})
"""
# Names of models, as no annotator may meet them anywhere.
MODELS = ("acme-secret-9b@3", "globex-hidden-70b@7")


@dataclass
class People:
    """One project's web app: its address and its store."""

    url: str
    store: Store
    settings: Settings
    links: dict[str, str] = field(default_factory=dict)

    def add(self, email: str, *roles: Role, name: str = "") -> User:
        return self.store.users.add(
            email=email, name=name, roles=roles or (Role.ANNOTATOR,), actor="test"
        )

    def login_link(self, user: User) -> str:
        secret, _ = self.store.tokens.issue(
            user.user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
        )
        return f"{self.url}/login?token={secret}"

    def rules(self, **values: object) -> None:
        version, known = self.store.rules.latest()
        self.store.rules.put(
            AnnotationRules(**{**known.model_dump(), **values}), after=version, actor="test"
        )

    def publish(
        self,
        texts: Sequence[tuple[str, str, str]],
        *,
        offered: bool = True,
        overlap: int = 1,
        prefix: str = "c",
    ) -> list[str]:
        """Comparisons of (prompt, a, b)."""
        n = len(texts)
        prompts, a, b = (list(column) for column in zip(*texts, strict=True))
        ids = [f"{prefix}{i:04d}" for i in range(n)]
        rows = {
            "day": utc_now().date().isoformat(),
            "comparison_id": ids,
            "prompt_id": [f"{prefix}p{i}" for i in range(n)],
            "prompt": prompts,
            "completion_a_id": [f"{prefix}a{i}" for i in range(n)],
            "completion_b_id": [f"{prefix}b{i}" for i in range(n)],
            "completion_a": a,
            "completion_b": b,
            "model_version_a": MODELS[0],
            "model_version_b": MODELS[1],
            "category": "factual",
            "repeat_of": None,
            "position": range(n),
            "seed": 7,
        }
        self.store.comparisons.publish(
            check_frame(pd.DataFrame(rows), COMPARISONS), published_at=utc_now()
        )
        if offered:
            self.store.cards.offer(ids, overlap=overlap)
        return ids

    def furnish(self, n: int, **more: object) -> list[str]:
        return self.publish(
            [(PROMPT.format(i=i), LEFT.format(i=i), RIGHT.format(i=i)) for i in range(n)], **more
        )  # type: ignore[arg-type]

    def votes(self, user: User) -> list[Vote]:
        """Every row of one person, oldest first."""
        votes = self.store.votes.page(annotator_id=user.user_id, limit=1000)
        return list(reversed(votes))


@contextmanager
def people(home: Path, migrated: Path, **more: Any) -> Iterator[People]:
    """On a copy of the migrated store, below `home`, with more settings."""
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(migrated, home / "store.db")
    start_day = utc_now().date() - timedelta(days=60)
    settings = Settings(home=home, project="sky", start_day=start_day, **more)
    with (
        Store.open(settings.store_url) as store,
        WebServer(create_app(settings, store, cache_times=UNCACHED)) as server,
    ):
        yield People(server.url, store, settings.model_copy(update={"web_url": server.url}))
