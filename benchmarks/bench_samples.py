"""How much the embedded loop makes in a day on two cores: samples from prompts to comparisons, and
prompts through every stage.

    python benchmarks/bench_samples.py [--samples 2000] [--prompts 200]

The jobs themselves, with Great Expectations, MLflow runs, ledger and files, and the embedded policy
in place of a provider. Each rate is what it would come to in a day or an hour at that pace. Limits:
10,000 samples a day, 50 prompts an hour, no sample failed or lost. Reads the embedded policy from
RLHF_HOME (default var/) where `rlhf init` has left one, else trains it first (a minute).
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

# silences telemetry before anything reports
from benchmarks.bench_loop import STAGES, Bench  # noqa: E402
from benchmarks.measurement import Limits, pin_to_cores, print_table  # noqa: E402
from rlhf_pipeline.completions import CompletionParams  # noqa: E402
from rlhf_pipeline.config import Settings  # noqa: E402

CORES = 2
SAMPLES_A_DAY, PROMPTS_AN_HOUR = 10_000, 50
DAY_S, HOUR_S = 86_400, 3_600


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000, help="completions of one collection")
    parser.add_argument(
        "--prompts",
        type=int,
        default=200,
        help="prompts that go through every stage, retraining and gate included",
    )
    given = parser.parse_args()
    k = CompletionParams().k
    if given.samples % k or given.samples <= 0:
        parser.error(f"--samples {given.samples} is no multiple of the {k} completions of a prompt")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    trained = Settings.read(folder=ROOT).cache / "embedded_policy"
    with tempfile.TemporaryDirectory() as folder, pin_to_cores(CORES) as cores:
        home = Path(folder) / "home"
        if trained.exists():
            shutil.copytree(trained, home / "cache" / "embedded_policy")
        os.environ |= {"RLHF_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
        (home / "dagster").mkdir(parents=True)
        bench = Bench(home)
        whole = bench.dagster("full", given.prompts)
        collected = bench.dagster("collected", given.samples // k)
        day = bench.workspace.files.days("completions")[-1]
        made = bench.workspace.files.read_frame("completions", day)
        pairs = bench.workspace.files.read_frame("comparisons", day)
        bench.instance.dispose()
    rows = [
        (
            series,
            job,
            f"{seconds:.1f}",
            *(f"{timed.stages[stage]:.1f} {stage}" for stage in STAGES[job][:3]),
        )
        for series, timed in (
            (f"{given.prompts} prompts", whole),
            (f"{given.samples:,} samples", collected),
        )
        for job, seconds in timed.jobs.items()
    ]
    print_table(f"Seconds on {cores}", ("what", "job", "seconds", "of them", "", ""), rows)
    samples_a_day = len(made) / sum(collected.jobs.values()) * DAY_S
    prompts_an_hour = given.prompts / sum(whole.jobs.values()) * HOUR_S
    print(
        f"\n{len(made):,} samples became {len(pairs):,} comparisons; "
        f"{int(made['error'].notna().sum())} failed\n"
    )
    limits = Limits()
    limits.check(
        samples_a_day > SAMPLES_A_DAY,
        f"{samples_a_day:,.0f} samples a day from prompts to comparisons, more than "
        f"{SAMPLES_A_DAY:,} wanted",
    )
    limits.check(
        prompts_an_hour > PROMPTS_AN_HOUR,
        f"{prompts_an_hour:,.0f} prompts an hour through every stage, more than {PROMPTS_AN_HOUR} "
        "wanted",
    )
    limits.check(
        len(made) == given.samples and made["error"].isna().all(),
        f"{len(made):,} of {given.samples:,} samples made, {int(made['error'].notna().sum())} "
        "failed",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
