"""What Dagster costs: the stages of a day and of a retraining as assets, against the same library
calls in a plain script.

    python benchmarks/bench_loop.py [--prompts 120] [--runs 3]

Both sides run in this process, in turns, on days of one temporary project: Great Expectations
checks, MLflow runs and files in both. Limits: 0.8 s an asset, 15 % where the stages take a minute
or more, definitions loaded within 2.5 s. Reads the embedded policy from RLHF_HOME (default var/)
where `rlhf init` has left one, else trains it first (a minute).
"""

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()

import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits  # noqa: E402
from benchmarks.plain_loop import LoopTimes, PlainScript  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.cli.init import initialise  # noqa: E402
from rlhf_pipeline.prompts import PromptParams  # noqa: E402

LIGHT_PROMPTS = 30
PROMPTS_TO_START = 250  # enough votes on the first day for a reward model and its calibration
SECONDS_PER_ASSET = 0.8
SHARE = 0.15
A_MINUTE = 60.0
SECONDS_TO_LOAD = 2.5
FIRST_DAY = date(2026, 1, 1)
STAGES = {
    "collection": ("prompts", "completions", "comparisons"),
    "feedback": ("votes", "reflection_log", "drift_report"),
    "retraining": (
        "preference_pairs",
        "annotator_model",
        "reward_model",
        "calibration",
        "retraining_set",
        "candidate_model",
        "evaluation",
        "gate",
    ),
}
SERIES = {
    "light": ("collection", "feedback"),
    "full": ("collection", "feedback", "retraining"),
    "collected": ("collection",),
}


class Bench:
    """One temporary project; `dagster` and `plain` each work on a day of their own."""

    def __init__(self, home: Path) -> None:
        import dagster as dg

        from definitions import definitions_for
        from resources import resources_for

        full = Settings(home=home, annotators="simulated", scenario="steady")
        self.workspace = Workspace(full)
        initialise(self.workspace)
        self.annotators = resources_for(full)["annotators"]
        # In the light series nothing takes long, so that what is left is the orchestration.
        self.settings = {
            "full": full,
            "light": full.model_copy(update={"completion_backend": "template"}),
        }
        self.definitions = {
            name: definitions_for(settings) for name, settings in self.settings.items()
        }
        self.definitions["collected"] = self.definitions["full"]
        self.instance = dg.DagsterInstance.get()
        self.n_days = 0

    def next_day(self) -> str:
        self.n_days += 1
        return (FIRST_DAY + timedelta(days=self.n_days - 1)).isoformat()

    def vote(self, day: str) -> None:
        """Not measured: it is neither an asset nor orchestrated by one."""
        files, store = self.workspace.files, self.workspace.store
        prompts = files.read_days("prompts", files.days("prompts"))
        references = {
            p: None if pd.isna(r) else r
            for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)
        }
        store.votes.cast_many(self.annotators(store.comparisons.for_days([day]), references, day))

    def dagster(self, series: str, n_prompts: int) -> LoopTimes:
        day, timed = self.next_day(), LoopTimes()
        for job in SERIES[series]:
            config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            if job == "collection":
                config["ops"] = {"prompts": {"config": {"n": n_prompts}}}
            partition = {} if job == "retraining" else {"partition_key": day}
            self._clear_candidates()
            with timed.time_job(job):
                found = self.definitions[series].resolve_job_def(job)
                result = found.execute_in_process(
                    instance=self.instance, run_config=config, **partition
                )
            for event in result.all_events:
                if event.event_type_value == "STEP_SUCCESS":
                    timed.stages[event.step_key] = event.step_success_data.duration_ms / 1000
            if job == "collection":
                self.vote(day)
        return timed

    def plain(self, series: str, n_prompts: int) -> LoopTimes:
        w, day = self.workspace, self.next_day()
        script = PlainScript(
            self.settings[series],
            w.store,
            w.registry,
            w.champions,
            w.files,
            PromptParams(n=n_prompts),
        )
        for job in SERIES[series]:
            self._clear_candidates()
            with script.timed.time_job(job):
                getattr(script, f"run_{job}")(day)
            if job == "collection":
                self.vote(day)
        return script.timed

    def _clear_candidates(self) -> None:
        """A finished training of the same data is not repeated: both sides must train."""
        shutil.rmtree(self.workspace.settings.models / "candidates", ignore_errors=True)


def measured(bench: Bench, series: str, n_prompts: int, runs: int) -> dict[str, list[LoopTimes]]:
    """`runs` passes of each side in turns; who goes first alternates, because data grows by the
    day.
    """
    found: dict[str, list[LoopTimes]] = {"plain": [], "dagster": []}
    for n in range(runs):
        for side in ("dagster", "plain") if n % 2 else ("plain", "dagster"):
            found[side].append(getattr(bench, side)(series, n_prompts))
        print(
            f"{series}, run {n + 1}: "
            + ", ".join(f"{side} {sum(t[-1].jobs.values()):.1f} s" for side, t in found.items()),
            flush=True,
        )
    return found


def rows(series: str, found: dict[str, list[LoopTimes]]) -> tuple[float, float]:
    """Prints the rows of a series; returns overhead per asset and as a share of the plain
    script.
    """
    n_assets = sum(len(STAGES[job]) for job in SERIES[series])
    both = [found["plain"], found["dagster"]]
    for stage in (stage for job in SERIES[series] for stage in STAGES[job]):
        print(
            f"| {series} | {stage} | "
            + cells(*(median(t.stages[stage] for t in side) for side in both))
        )
    totals = [median(sum(t.jobs.values()) for t in side) for side in both]
    print(f"| {series} | **{n_assets} assets and their runs** | " + cells(*totals))
    print(
        f"| {series} | the same in seconds of CPU | "
        + cells(*(median(t.cpu for t in side) for side in both))
    )
    return (totals[1] - totals[0]) / n_assets, (totals[1] - totals[0]) / totals[0]


def cells(plain: float, dagster: float) -> str:
    return (
        f"{plain:.2f} | {dagster:.2f} | {dagster - plain:+.2f} | {(dagster - plain) / plain:+.0%} |"
    )


def load_seconds() -> float:
    """Median of three fresh processes that import the definitions."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import definitions"], cwd=ROOT, check=True)
        found.append(time.perf_counter() - start)
    return median(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=120,
        help="prompts a day of the full series; more makes its stages longer",
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="measured runs of each side in each series"
    )
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    loaded = load_seconds()
    trained = Settings.read(folder=ROOT).cache / "embedded_policy"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if trained.exists():
            shutil.copytree(trained, home / "cache" / "embedded_policy")
        os.environ |= {"RLHF_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
        (home / "dagster").mkdir(parents=True)
        bench = Bench(home)
        # imports, and a first reward model for what follows
        bench.dagster("full", PROMPTS_TO_START)
        bench.plain("light", LIGHT_PROMPTS)
        bench.dagster("light", LIGHT_PROMPTS)
        light, full = (
            measured(bench, s, n, given.runs)
            for s, n in (("light", LIGHT_PROMPTS), ("full", given.prompts))
        )
        print(f"\nSeconds, medians of {given.runs} runs of each side in turns\n")
        print("| series | asset | plain | Dagster | overhead | % |\n|---|---|---|---|---|---|")
        each, _ = rows("light", light)
        _, share = rows("full", full)
        bench.instance.dispose()
    seconds = median(sum(t.jobs.values()) for t in full["plain"])
    print()
    limits = Limits()
    limits.check(
        each <= SECONDS_PER_ASSET,
        f"{each:.2f} s an asset in the light series, limit {SECONDS_PER_ASSET} s",
    )
    if seconds >= A_MINUTE:
        limits.check(
            share <= SHARE, f"{share:.1%} of {seconds:.0f} s in the full series, limit {SHARE:.0%}"
        )
    else:
        limits.skip(
            f"the share of the full series, limit {SHARE:.0%}: it takes {seconds:.0f} s, less than "
            "a minute. Raise --prompts"
        )
    limits.check(
        loaded <= SECONDS_TO_LOAD,
        f"definitions load in {loaded:.2f} s, limit {SECONDS_TO_LOAD} s (fresh process, median of "
        "3)",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
