"""An owner's project from `rlhf init` to its own reward model and a gated candidate.

    python benchmarks/bench_own_project.py [--days 7]

Own prompts (examples/prompts.jsonl), an own tiny policy folder, parameters in rlhf.yaml, and votes
by CSV, day after day, with a change of taste; every step is a command. Limit: 480 s of machine time
to the first champion reward model. A retraining must start by itself, on the project's own
evaluation set, and reach the gate.
"""

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from benchmarks.measurement import Limits  # noqa: E402
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()

from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.policy import PretrainingParams, pretrain  # noqa: E402
from rlhf_pipeline.policy.corpus import CorpusParams  # noqa: E402

SECONDS_TO_REWARD_MODEL = 480
RLHF = Path(sys.executable).parent / "rlhf"
SETTINGS = """
project: own
start_day: {start}
prompt_source: dataset
prompts_file: {prompts}
policy: {policy}
min_new_pairs: 150
loop:
  prompts: {{n: 60}}
  completions: {{max_new_tokens: 24}}
  comparisons: {{pairs_per_prompt: 3}}
  retraining_trigger: {{min_new_votes: 100}}
  evaluation: {{min_prompts: 20}}
"""
TINY = PretrainingParams(
    corpus=CorpusParams(n_texts=1500),
    n_vocabulary=512,
    hidden=48,
    layers=1,
    intermediate=96,
    steps=90,
    batch_size=16,
)


def run(folder: Path, *words: str) -> None:
    environ = os.environ | {"RLHF_HOME": str(folder / "home")}
    done = subprocess.run(
        [RLHF, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"rlhf {' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def write_votes(folder: Path, day: date, *, prefers_longer: bool) -> None:
    """Two annotators vote on each comparison of a day; a tenth of their votes are slips."""
    exported = folder / "home" / "exports" / "comparisons.jsonl"
    rows = [row for row in map(json.loads, exported.open()) if row["day"] == str(day)]
    draws, morning = random.Random(str(day)), datetime.combine(day, clock(9), UTC)
    with (folder / "votes.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["comparison_id", "annotator_id", "choice", "voted_at"])
        for row in rows:
            lengths = len(row["completion_a"]), len(row["completion_b"])
            for annotator in ("ann", "bob"):
                choice = "a" if (lengths[0] > lengths[1]) == prefers_longer else "b"
                if draws.random() < 0.1:
                    choice = "b" if choice == "a" else "a"
                if lengths[0] == lengths[1]:
                    choice = "tie"
                at = morning + timedelta(seconds=20 * row["position"] + draws.randint(0, 15))
                out.writerow([row["comparison_id"], annotator, choice, at.isoformat()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=7, help="days with votes, at least 6")
    n_days, limits = parser.parse_args().days, Limits()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pretrain(folder / "policy", TINY)
        first = datetime.now(UTC).date() - timedelta(days=n_days)
        (folder / "rlhf.yaml").write_text(
            SETTINGS.format(
                start=first, prompts=ROOT / "examples" / "prompts.jsonl", policy=folder / "policy"
            )
        )
        started, to_reward_model = time.perf_counter(), math.nan
        run(folder, "init")
        settings = Settings.read({"RLHF_HOME": str(folder / "home")}, folder)
        workspace = Workspace(settings)
        for index in range(n_days):
            day = first + timedelta(days=index)
            run(folder, "run", "collection", "--day", str(day))
            run(folder, "export", "comparisons")
            write_votes(folder, day, prefers_longer=index < n_days // 2 + 1)
            run(folder, "import", "votes", "votes.csv")
            run(folder, "loop", "--once")
            champion = workspace.store.promotions.champion(settings.reward_model)
            if champion and math.isnan(to_reward_model):
                to_reward_model = time.perf_counter() - started
            print(f"{day}: {champion.label if champion else 'no reward model yet'}", flush=True)
        seconds = time.perf_counter() - started
        fired = [d for d in workspace.store.decisions.all() if d.action == "fire" and not d.actor]
        gates = workspace.store.gates.all()
    print(f"\n{n_days} days in {seconds:.0f} s\n")
    limits.check(
        to_reward_model <= SECONDS_TO_REWARD_MODEL,
        f"first champion reward model {to_reward_model:.0f} s after rlhf init began, limit "
        f"{SECONDS_TO_REWARD_MODEL} s",
    )
    limits.check(len(fired) > 0, f"{len(fired)} retrainings started by the trigger itself")
    own = [g for g in gates if g.evaluation and g.evaluation.evaluation_set == 1]
    limits.check(
        len(own) > 0,
        f"{len(own)} candidates judged on the project's own {own[0].evaluation.n_prompts} prompts"
        if own and own[0].evaluation
        else "no candidate was judged",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
