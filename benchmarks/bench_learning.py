"""Everything that is promised of learning from votes: annotators, reward models, calibration. Prints each benchmark's tables, then one verdict.

    python benchmarks/bench_learning.py [--without trainers] [--data ../shared/data]

Runs bench_annotators, bench_calibration, bench_simulated, bench_real and bench_trainers one after the other, each in a process of its own,
for hours rather than minutes: fine-tuning is done with three seeds. What cannot be measured here (no real votes, no GPU) is said, not passed.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.measuring import Limits, table  # noqa: E402

PARTS = ("annotators", "calibration", "simulated", "real", "trainers")
READS_VOTES = ("annotators", "real", "trainers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", default="", help=f"parts to leave out, with commas: {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder with pairs.parquet and votes.parquet")
    given = parser.parse_args()
    left_out = {name for name in given.without.split(",") if name}
    if left_out - set(PARTS):
        parser.error(f"--without {given.without}: there are {', '.join(PARTS)}")
    limits, rows = Limits(), []
    for part in PARTS:
        if part in left_out:
            limits.skip(f"bench_{part}: left out")
            continue
        print(f"\n# bench_{part}", flush=True)
        more = ["--data", str(given.data)] if part in READS_VOTES else []
        begun = time.perf_counter()
        code = subprocess.run([sys.executable, str(ROOT / "benchmarks" / f"bench_{part}.py"), *more], cwd=ROOT, check=False).returncode
        rows.append((part, f"{(time.perf_counter() - begun) / 60:.1f}", "held" if code == 0 else f"exit {code}: its last lines say which"))
        limits.judge(code == 0, f"bench_{part}")
    table("Learning from votes", ("benchmark", "minutes", "limits"), rows)
    return limits.told()


if __name__ == "__main__":
    sys.exit(main())
