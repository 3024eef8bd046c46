"""What a day costs within a range: 30 and 90 days as one run for collection and one for feedback,
beside a run for each day.

    python benchmarks/bench_backfill.py [--days 30 90] [--singly 10] [--profile STAGE]

Days are light (template backend, 6 prompts, 12 comparisons with up to five simulated votes each),
so that what is left is what a day costs whatever its size. Every side starts from the same home:
one day with a reward model. Limits: a day of the longest range costs at most 1.3 times one of the
shortest, and at most two thirds of a day that is run by itself (embeddings and the day's drift page
cost the same either way), both in seconds of CPU, which say the same on a busy machine. Voting is
not measured. `--profile drift_report` prints where a stage of the shortest range spends its time.
"""

import argparse
import cProfile
import logging
import os
import pstats
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from datetime import date, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()

import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.cli.init import initialise  # noqa: E402
from rlhf_pipeline.policy import PretrainingParams, pretrain  # noqa: E402
from rlhf_pipeline.policy.corpus import CorpusParams  # noqa: E402

GROWTH, SHARE_OF_SINGLE = 1.3, 2 / 3
STAGES = (
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
)
LIGHT = {
    "prompts": {"n": 6},
    "completions": {"max_new_tokens": 12},
    "comparisons": {"pairs_per_prompt": 2},
}
FIRST = {
    "prompts": {"n": 60},
    "completions": {"max_new_tokens": 12},
    "comparisons": {"pairs_per_prompt": 6},
}
# Nobody asks it anything: the template backend answers. But a home has a policy.
POLICY = PretrainingParams(
    corpus=CorpusParams(n_texts=500),
    n_vocabulary=384,
    hidden=32,
    layers=1,
    intermediate=64,
    steps=20,
    batch_size=8,
)
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


class Side:
    """A copy of the home, its Dagster and its clock."""

    def __init__(self, home: Path, start: date) -> None:
        import dagster as dg

        from definitions import definitions_for

        self.settings = Settings(
            home=home,
            start_day=start,
            annotators="simulated",
            scenario="steady",
            completion_backend="template",
            policy=str(home / "small"),
        )
        self.workspace = Workspace(self.settings)
        self.definitions = definitions_for(self.settings)
        self.instance = dg.DagsterInstance.ephemeral(tempdir=str(home / "runs"))
        self.seconds: Counter[str] = Counter()

    def day(self, n: int) -> str:
        return (self.settings.start_day + timedelta(days=n)).isoformat()

    def run(
        self,
        job: str,
        first: int | None = None,
        last: int | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        arguments: dict[str, Any] = {
            "run_config": {
                "ops": {k: {"config": v} for k, v in (config or {}).items()},
                "loggers": QUIET,
            }
        }
        if first is not None and last is not None and last > first:
            arguments["tags"] = {RANGE_START: self.day(first), RANGE_END: self.day(last)}
        elif first is not None:
            arguments["partition_key"] = self.day(first)
        start, cpu = time.perf_counter(), time.process_time()
        result = self.definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance, **arguments
        )
        self.seconds[job] += time.perf_counter() - start
        self.seconds["cpu"] += time.process_time() - cpu
        for event in result.all_events:
            if event.event_type_value == "STEP_SUCCESS":
                self.seconds[event.step_key] += event.step_success_data.duration_ms / 1000

    def vote(self, first: int, last: int) -> None:
        annotators = self.workspace_annotators()
        store, files = self.workspace.store, self.workspace.files
        prompts = files.read_days("prompts", files.days("prompts"))
        references = {
            p: None if pd.isna(r) else r
            for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
        }
        for n in range(first, last + 1):
            store.votes.cast_many(
                annotators(store.comparisons.for_days([self.day(n)]), references, self.day(n))
            )

    def workspace_annotators(self) -> Any:
        from resources import resources_for

        return resources_for(self.settings)["annotators"]

    def close(self) -> None:
        self.workspace.store.close()
        self.instance.dispose()


QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}


def grown(home: Path, start: date) -> None:
    """A home with one day of votes and a reward model, from which every side goes on."""
    pretrain(home / "small", POLICY)
    side = Side(home, start)
    initialise(side.workspace)
    side.run("collection", 0, config=FIRST)
    side.vote(0, 0)
    side.run("feedback", 0)
    side.run("learning", config={"calibration": {"min_pairs": 20}})
    side.close()


def measured(
    origin: Path, start: date, n_days: int, *, singly: bool, profile: str | None = None
) -> Counter[str]:
    """Seconds of `n_days` days by job and by stage, after a day that pays for imports."""
    home = origin.with_name(f"{'single' if singly else 'range'}-{n_days}")
    shutil.copytree(origin, home, ignore=shutil.ignore_patterns("runs"))
    side = Side(home, start)
    for job in ("collection", "feedback"):
        side.run(job, 1, config=LIGHT if job == "collection" else None)
        if job == "collection":
            side.vote(1, 1)
    side.seconds.clear()
    first, last = 2, n_days + 1
    days = [(n, n) for n in range(first, last + 1)] if singly else [(first, last)]
    profiler = cProfile.Profile() if profile else None
    with profiler or nullcontext():
        for begin, end in days:
            side.run("collection", begin, end, config=LIGHT)
    side.vote(first, last)
    with profiler or nullcontext():
        for begin, end in days:
            side.run("feedback", begin, end)
    side.close()
    shutil.rmtree(home)
    if profiler:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(
            profile if profile != "all" else 60
        )
    return side.seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--days", type=int, nargs="+", default=[30, 90], help="lengths of the ranges"
    )
    parser.add_argument("--singly", type=int, default=10, help="days that are run one by one")
    parser.add_argument(
        "--profile",
        help="print where the shortest range spends its time: a pattern of names, or `all`",
    )
    given = parser.parse_args()
    lengths = sorted(set(given.days))
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    # days of the past, whichever clock
    start = date.today() - timedelta(days=max(lengths) + 5)  # noqa: DTZ011
    os.environ["RLHF_START_DAY"] = start.isoformat()  # partitions are part of the definitions
    with tempfile.TemporaryDirectory() as folder:
        origin = Path(folder) / "origin"
        grown(origin, start)
        sides = {
            f"{given.singly} days, one by one": (
                given.singly,
                measured(origin, start, given.singly, singly=True),
            )
        }
        for n in lengths:
            profile = given.profile if n == lengths[0] else None
            sides[f"{n} days, one run"] = (
                n,
                measured(origin, start, n, singly=False, profile=profile),
            )
    each = {
        name: {key: seconds / n for key, seconds in found.items()}
        for name, (n, found) in sides.items()
    }
    print("\nSeconds a day\n")
    print("| stage | " + " | ".join(each) + " |\n|---|" + "---|" * len(each))
    for key in (*STAGES, "collection", "feedback"):
        shown = f"**{key}, the whole run**" if key in ("collection", "feedback") else key
        print(
            f"| {shown} | " + " | ".join(f"{seconds[key]:.3f}" for seconds in each.values()) + " |"
        )
    totals = [seconds["collection"] + seconds["feedback"] for seconds in each.values()]
    print("| **a day** | " + " | ".join(f"{total:.3f}" for total in totals) + " |")
    cpu = [seconds["cpu"] for seconds in each.values()]
    print(
        "| **the same in seconds of CPU** | "
        + " | ".join(f"{seconds:.3f}" for seconds in cpu)
        + " |\n"
    )
    single = cpu[0]
    short = cpu[1]
    long = cpu[-1]
    limits = Limits()
    if len(lengths) > 1:
        limits.check(
            long <= GROWTH * short,
            f"a day of {lengths[-1]} costs {long / short:.2f} times one of {lengths[0]}, limit "
            f"{GROWTH}",
        )
    else:
        limits.skip(f"what a day costs in a longer range, limit {GROWTH}: --days names one length")
    share = max(cpu[1:]) / single
    limits.check(
        share <= SHARE_OF_SINGLE,
        f"a day within a range costs {share:.2f} of one that is run by itself, limit "
        f"{SHARE_OF_SINGLE}",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
