"""What to choose: accuracy of `--preset best` and of the default on debates that were left out.

    python benchmarks/bench_preset.py [--data ../shared/data]

The ten train and calib debates of convarg in three parts, each predicted by models of the others,
on pairs with a majority of votes, and the CPU seconds of one fit. Where pairs.parquet is absent it
says so and stops.
"""

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402

silence_telemetry()

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import print_table  # noqa: E402
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame  # noqa: E402
from rlhf_pipeline.learn.reward_model import (  # noqa: E402
    Encoder,
    build_reward_model,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.evaluation import length_gaps, margins_of, wins  # noqa: E402

PARTS = 3


def read_pairs(data: Path) -> pd.DataFrame:
    """Pairs of the debates that settings may be chosen by, with the part of their debate."""
    rows = pd.read_parquet(data / "pairs.parquet")
    rows = rows[(rows["source"] == "convarg") & (rows["split"] != "test")]
    rows = rows[
        rows[["votes_a", "votes_b"]].any(axis=1) & (rows["response_a"] != rows["response_b"])
    ]
    n_votes = rows["votes_a"] + rows["votes_b"]
    is_a = (rows["votes_a"] >= rows["votes_b"]).to_numpy()
    pairs = pd.DataFrame(
        {
            "day": "2016-01-01",
            "comparison_id": rows["pair_id"],
            "prompt_id": rows["topic"],
            "prompt": rows["prompt"],
            "chosen": np.where(is_a, rows["response_a"], rows["response_b"]),
            "rejected": np.where(is_a, rows["response_b"], rows["response_a"]),
            "margin": 1.0,
            "agreement": rows[["votes_a", "votes_b"]].max(axis=1) / n_votes,
            "n_votes": n_votes,
            "n_ties": rows["votes_tie"],
            "chosen_side": np.where(is_a, "a", "b"),
            "annotator_kind": "human",
            "category": "argument",
            "split": "train",
            "max_seq": np.arange(1, len(rows) + 1),
        }
    )
    return check_frame(pairs.reset_index(drop=True), PREFERENCE_PAIRS).assign(
        part=pd.factorize(rows["group"], sort=True)[0] % PARTS
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    data = parser.parse_args().data
    if not (data / "pairs.parquet").exists():
        print(f"skipped: no pairs.parquet in {data}")
        return
    pairs = read_pairs(data)
    right, seconds = defaultdict(list), defaultdict(float)
    for part in range(PARTS):
        inside = pairs["part"] == part
        train = pairs[~inside].drop(columns="part").reset_index(drop=True)
        test = pairs[inside & (pairs["agreement"] > 0.5)]
        right["longer text"].append(wins(length_gaps(test)))
        for name, preset in (("default", ""), ("--preset best", "best")):
            began = time.process_time()
            model = build_reward_model(reward_model_params(preset=preset), Encoder()).fit(train)
            seconds[name] += (time.process_time() - began) / PARTS
            right[name].append(wins(margins_of(model, test)))
    print_table(
        f"{len(pairs)} pairs",
        ("model", "accuracy", "CPU s of a fit"),
        [
            (name, f"{np.concatenate(each).mean():.3f}", f"{seconds[name]:.0f}")
            for name, each in right.items()
        ],
    )


if __name__ == "__main__":
    main()
