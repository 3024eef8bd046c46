"""How many samples the embedded loop makes in a day on two cores, from prompts to comparisons.

    python benchmarks/bench_samples.py [--samples 2000]

`rlhf run collection` in a home of its own, as an operator starts it, with the embedded policy in
place of a provider. Limits: 10,000 samples a day at that pace, no sample failed or lost.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from benchmarks.measurement import Limits, pin_to_cores  # noqa: E402
from rlhf_pipeline.generate.completions import CompletionParams  # noqa: E402

RLHF = str(Path(sys.executable).with_name("rlhf"))
SAMPLES_A_DAY, DAY_S = 10_000, 86_400


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    n_prompts = options.samples // CompletionParams().k
    limits = Limits()
    with tempfile.TemporaryDirectory() as folder, pin_to_cores(2) as cores:
        environ = os.environ | {"RLHF_HOME": folder}
        subprocess.run([RLHF, "init"], check=True, cwd=ROOT, env=environ)
        collect = [RLHF, "run", "collection", "--set"]
        subprocess.run([*collect, "prompts.n=20"], check=True, cwd=ROOT, env=environ)  # trains it
        began = time.perf_counter()
        subprocess.run([*collect, f"prompts.n={n_prompts}"], check=True, cwd=ROOT, env=environ)
        took_s = time.perf_counter() - began
        newest = sorted(Path(folder, "frames", "completions").rglob("*.parquet"))[-1]
        samples = pd.read_parquet(newest)
    a_day = len(samples) / took_s * DAY_S
    limits.check(
        a_day > SAMPLES_A_DAY,
        f"{len(samples):,} samples in {took_s:.0f} s on {cores}: {a_day:,.0f} a day, more than "
        f"{SAMPLES_A_DAY:,} wanted",
    )
    n_failed = int(samples["error"].notna().sum())
    limits.check(
        n_failed == 0 and len(samples) >= n_prompts * CompletionParams().k,
        f"{len(samples):,} of {n_prompts * CompletionParams().k:,} samples made, {n_failed} failed",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
