"""Everything that is promised of learning from votes: annotators, reward models, calibration.
Prints each benchmark's tables, then one verdict.

    python benchmarks/bench_learning.py [--without trainers] [--data ../shared/data]
        [--registry FOLDER]

Runs bench_annotators, bench_calibration, bench_simulated, bench_real and bench_trainers one after
the other, each in a process of its own, for hours rather than minutes: fine-tuning is done with
three seeds. What cannot be measured here (no real votes, no GPU) is said, not passed. `make bench`
runs the same five with all the others, and not this one.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.opening_log import add_registry_option  # noqa: E402

PARTS = ("annotators", "calibration", "simulated", "real", "trainers")
READS_VOTES = ("annotators", "real", "trainers")
VERDICT = "limits: "  # as `Limits.print_summary` begins it
OPENS_TEST = ("calibration", "simulated", "real", "trainers")


def run(part: str, more: list[str]) -> tuple[int, str]:
    """One benchmark, its lines as they come; its exit code, and what its own verdict counts."""
    said = "ended without a verdict"
    command = [sys.executable, "-u", str(ROOT / "benchmarks" / f"bench_{part}.py"), *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            if line.startswith(VERDICT):
                said = line.removeprefix(VERDICT).strip()
    return child.returncode, said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--without", default="", help=f"parts to leave out, with commas: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "data",
        help="folder with pairs.parquet and votes.parquet",
    )
    add_registry_option(parser)
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
        more += ["--registry", str(given.registry)] if part in OPENS_TEST else []
        begun = time.perf_counter()
        code, said = run(part, more)
        rows.append(
            (
                part,
                f"{(time.perf_counter() - begun) / 60:.1f}",
                said if code in (0, 1) else f"exit {code}; {said}",
            )
        )
        if code == 0 and " held" not in said:
            limits.skip(f"bench_{part}: {said}")
        else:
            limits.check(code == 0, f"bench_{part}: {said}")
    print_table("Learning from votes", ("benchmark", "minutes", "limits"), rows)
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
