"""How long `rlhf triggers replay` takes over 90 days, and what it finds. Prints one table.

    python benchmarks/bench_triggers.py [--days 90] [--votes 1000]

The history is simulated: one vote per comparison as it is cast, a new champion every week, errors
in 20 % of votes, in 40 % on the three days after the change in the middle.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import LimitTable  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.cli.init import prepare  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402
from rlhf_pipeline.drift.detection import ErrorStream, detect  # noqa: E402
from rlhf_pipeline.frames import COMPARISONS, PREDICTIONS, check_frame  # noqa: E402
from rlhf_pipeline.records import NewVote, Promotion  # noqa: E402
from rlhf_pipeline.retraining.triggers import decide  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT_S = 60
CHANGES = ("", "confirmations=3", "ddm_drift_level=4", "detectors=[hddm_a]")


class SimulatedClock:
    """The time of the simulated day."""

    def __init__(self) -> None:
        self.at = FIRST

    def now(self) -> datetime:
        return self.at


def make_comparisons(day: str, n: int, model: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Comparisons of a day, and predictions that always prefer `a`."""
    ids = [f"{day}/{i}" for i in range(n)]
    shared = {"day": day, "comparison_id": ids}
    comparisons = pd.DataFrame(
        dict.fromkeys(COMPARISONS.columns)
        | shared
        | {
            "prompt_id": ids,
            "prompt": "why?",
            "completion_a_id": [f"{each}/a" for each in ids],
            "completion_b_id": [f"{each}/b" for each in ids],
            "completion_a": "because",
            "completion_b": "who cares",
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            "category": "factual",
            "position": range(n),
            "seed": 0,
        }
    )
    predictions = pd.DataFrame(
        shared
        | {
            "reward_model": model,
            "calibrator": "none",
            "data_hash": "bench",
            "features_hash": "bench",
            "score_a": 1.0,
            "score_b": 0.0,
            "p_raw": 0.73,
            "p_calibrated": 0.73,
            "predicted_at": FIRST,
        }
    )
    return check_frame(comparisons, COMPARISONS), check_frame(predictions, PREDICTIONS)


def make_history(store: Store, n_days: int, n_votes: int) -> None:
    """Days of votes, detection and decisions, as the loop makes them."""
    clock = SimulatedClock()
    store.database.clock = clock
    rng = np.random.default_rng(0)
    changed = range(n_days // 2, n_days // 2 + 3)
    label = "none"
    for i in range(n_days):
        clock.at = FIRST + timedelta(days=i, hours=8)
        day = clock.at.date().isoformat()
        if i % 7 == 0:
            promotion = Promotion(
                model_name="demo.reward_model",
                version=i // 7 + 1,
                previous_version=i // 7 or None,
                data_seq=i * n_votes,
                reason="weekly refit",
                actor="bench",
                promoted_at=clock.at,
            )
            store.promotions.record(promotion)
            label = promotion.label
        comparisons, predictions = make_comparisons(day, n_votes, label)
        store.comparisons.publish(comparisons, predictions, published_at=clock.at)
        wrong = rng.random(n_votes) < (0.4 if i in changed else 0.2)
        votes = [
            NewVote(
                comparison_id=f"{day}/{j}",
                annotator_id=f"annotator-{j % 30}",
                annotator_kind="human",
                choice="b" if wrong[j] else "a",
                voted_at=clock.at,
                origin="api",
                idempotency_key=f"{day}/{j}",
            )
            for j in range(n_votes)
        ]
        for start in range(0, n_votes, 50):
            clock.at += timedelta(minutes=20 * 50 / n_votes)
            store.votes.cast_many(votes[start : start + 50])
        found = detect(
            ErrorStream(store.detectors.errors_after(label)),
            store.detectors.states(label),
            model_version=label,
        )
        store.detectors.record_scan(found.events, label, found.states)
        made = store.decisions.decide(decide, now=clock.at, champion=label)
        if made is not None and made.action == "fire":
            clock.at += timedelta(hours=1)
            store.decisions.mark_finished(made.stored_id, succeeded=True)


def replay(home: Path, change: str) -> tuple[float, dict[str, object]]:
    """Seconds of the command, and what it printed."""
    command = [sys.executable, "-c", "from rlhf_pipeline.cli import main; main()"]
    options = ["--set", change] if change else []
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "triggers", "replay", "--json", *options],
        env=os.environ | {"RLHF_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - started, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--votes", type=int, default=1000, help="a day")
    given = parser.parse_args()
    size = f"{given.days} days, {given.days * given.votes:,} votes"
    table = LimitTable()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        workspace = Workspace(Settings(home=home))
        prepare(workspace)
        started = time.perf_counter()
        with workspace.store as store:
            make_history(store, given.days, given.votes)
        table.print_row(size, "made in", f"{time.perf_counter() - started:.0f} s")
        for change in CHANGES:
            seconds, found = replay(home, change)
            where = f"--set {change}" if change else "current settings"
            table.print_row(
                where, "replay", f"{seconds:.1f} s", f"{LIMIT_S} s", passed=seconds <= LIMIT_S
            )
            same, n = found["n_reproduced"], found["n_stored"]
            table.print_row(where, "reproduced", f"{same} of {n}", "all", passed=same == n > 0)
            fires = [
                f"{timeline['name']}: {timeline['score']['n_fires']}"
                for timeline in found["timelines"]
            ]
            table.print_row(where, "fires", ", ".join(fires))
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
