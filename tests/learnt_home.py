"""A home whose reward model was fitted and calibrated by hand, with `rlhf` alone: what commands and
web predict with.
"""

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store

DAY = "2026-01-02"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
N, PEOPLE = 240, 5
GOOD = (
    "Thank you for asking. It is {}, and here is why.",
    "Certainly! The answer is {}, I am glad to help.",
)
BAD = ("no", "{}? who cares", "stop asking about {}")


@dataclass(frozen=True)
class LearntHome:
    settings: Settings

    def rlhf(self, *arguments: str, input: str | None = None) -> Result:
        """Errors that the library raises come through."""
        environ = {"RLHF_HOME": str(self.settings.home), "COLUMNS": "200"}
        result = CliRunner().invoke(
            app, arguments, env=environ, input=input, catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result

    @property
    def store(self) -> Store:
        return Store.open(
            self.settings.store_url,
        )

    @property
    def weights(self) -> list[Path]:
        return sorted((self.settings.home / "mlflow" / "artifacts").rglob("model.safetensors"))

    def copied(self, home: Path) -> "LearntHome":
        """The same in another place."""
        shutil.copytree(self.settings.home, home)
        return LearntHome(self.settings.model_copy(update={"home": home}))


def comparisons(n: int = N) -> pd.DataFrame:
    """A kind and a curt completion of each prompt, on sides that a coin chose."""
    rng = np.random.default_rng(0)
    kind_is_a = rng.random(n) < 0.5
    kind, curt = (
        [texts[i % len(texts)].format(f"thing {i}") for i in range(n)] for texts in (GOOD, BAD)
    )
    rows = {
        "day": DAY,
        "comparison_id": [f"c{i:04d}" for i in range(n)],
        "prompt_id": [f"p{i}" for i in range(n)],
        "prompt": [f"What is thing {i}?" for i in range(n)],
        "completion_a_id": [f"x{i}" for i in range(n)],
        "completion_b_id": [f"y{i}" for i in range(n)],
        "completion_a": np.where(kind_is_a, kind, curt),
        "completion_b": np.where(kind_is_a, curt, kind),
        "model_version_a": "demo.policy@1",
        "model_version_b": "demo.policy@1",
        "category": "factual",
        "repeat_of": None,
        "position": range(n),
        "seed": 7,
    }
    return check_frame(pd.DataFrame(rows), COMPARISONS)


def votes(frame: pd.DataFrame) -> list[NewVote]:
    """Everybody likes the kind one, mostly; the last annotator does not read."""
    rng = np.random.default_rng(1)
    cast = []
    for i, row in enumerate(frame.itertuples()):
        kind = "a" if str(row.completion_a).startswith(("Thank", "Certainly")) else "b"
        for person in rng.permutation(PEOPLE)[:3]:
            follows = rng.random() < (0.5 if person == PEOPLE - 1 else 0.85)
            choice = kind if follows else {"a": "b", "b": "a"}[kind]
            cast.append(
                NewVote(
                    comparison_id=str(row.comparison_id),
                    annotator_id=f"ann{person}",
                    annotator_kind="human",
                    choice=choice,
                    origin="api",
                    duration_s=float(rng.lognormal(2, 0.4)),
                    stated_confidence=round(float(rng.uniform(0.6, 0.95)), 2),
                    voted_at=NOON + timedelta(seconds=i),
                    idempotency_key=f"{row.comparison_id}/{person}",
                )
            )
    return cast


def voted_home(folder: Path) -> LearntHome:
    """Comparisons and votes, and no model."""
    settings = Settings(home=folder / "home")
    prepare(Workspace(settings))
    home = LearntHome(settings)
    with home.store as store:
        frame = comparisons()
        store.comparisons.publish(frame, published_at=NOON)
        store.votes.cast_many(votes(frame))
    return home


def learnt_home(folder: Path) -> LearntHome:
    """The whole way of a person without Dagster."""
    home = voted_home(folder)
    home.rlhf("votes", "prepare")
    home.rlhf(
        "reward",
        "train",
        "--set",
        "l2_grid=[0.1, 1.0]",
        "--set",
        "context_penalty_grid=[3.0]",
        "--set",
        "n_resamples=200",
    )
    home.rlhf("reward", "calibrate", "--set", "min_pairs=10", "--set", "n_resamples=200")
    return home
