"""Real votes: accuracy, calibration, time and drift on data that nobody here made. Prints tables; draws the drift timeline.

    python benchmarks/bench_real.py [--data ../shared/data] [--out FOLDER] [--only table,days,choices]

Needs pairs.parquet and votes.parquet in --data; where they are absent it says so and stops.
From raw files to a calibrated model it works as a user would: `rlhf import`, then the library. Everything is chosen on the
train and calib splits; the test split is opened at the end, once, by `open_test`, which says what it opened. Training pairs
carry the side of the known right choice where there is one, with the votes' shares, else the majority's; identical and
repeated pairs are left out. Test pairs are judged by the known right choice alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()
# Threads that wait actively take the cores from whoever else wants them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measuring import Limits, Spent, table  # noqa: E402
from benchmarks.real_weeks import days  # noqa: E402
from rlhf_pipeline.calibration import Calibrator, calibrate, calibration_slope, fit_calibrator, reliability_diagram  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.frames import COMPARISONS, PREFERENCE_PAIRS, concat  # noqa: E402
from rlhf_pipeline.records import Interval  # noqa: E402
from rlhf_pipeline.reward_model import (  # noqa: E402
    EmbeddingCache,
    EmbeddingRewardModel,
    Encoder,
    RewardModelParams,
    accuracy_by_group,
    preference_probability,
)
from rlhf_pipeline.reward_model.training import margins_of  # noqa: E402
from rlhf_pipeline.votes import PairParams, gold_ceiling, gold_pairs, interval_of_mean, noise_ceiling, preference_pairs  # noqa: E402

CONVARG = "convarg"
FILES = {"comparisons": "pairs.parquet", "votes": "votes.parquet"}
RLHF = str(Path(sys.executable).with_name("rlhf"))
SECTIONS = {"table", "days", "choices"}
BAR_ACCURACY, BAR_COLD, BAR_WARM = 0.80, 15 * 60, 60


@dataclass
class Fitted:
    """What raw files became. `pairs` hold the test split; nothing but `open_test` looks at it."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    pairs: pd.DataFrame
    model: EmbeddingRewardModel
    calibrator: Calibrator
    candidates: dict[str, float]

    @property
    def source(self) -> dict[str, str]:
        return dict(zip(self.comparisons["comparison_id"], self.comparisons["source"], strict=True))

    def of(self, source: str, pairs: pd.DataFrame) -> pd.DataFrame:
        return pairs[pairs["comparison_id"].map(self.source) == source].reset_index(drop=True)


def from_raw_files(data: Path, home: Path, cache: Path, spent: Spent) -> Fitted:
    """Import both files into a new home, then pairs, reward model and calibrator; embeddings come from `cache`, or go there."""
    with spent.stage("import"):
        environ = os.environ | {"RLHF_HOME": str(home)}
        for kind, more in (("comparisons", []), ("votes", ["--no-replay"])):
            command = [RLHF, "import", kind, str((data / FILES[kind]).absolute()), "--project", "real", *more]
            done = subprocess.run(command, env=environ, cwd=home.parent, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"rlhf import {kind} failed:\n{done.stdout}{done.stderr}")
            print(f"rlhf import {kind}: {done.stdout.strip().replace(chr(10), '; ')}", flush=True)
    with spent.stage("frames and pairs"):
        store = Workspace(Settings(home=home, project="real")).store
        comparisons = concat(store.comparisons.stream(), COMPARISONS)
        votes = store.votes.on(comparisons["comparison_id"].tolist())
        pairs = labelled(comparisons, votes)
    with spent.stage("embed and fit"):
        params = RewardModelParams()
        model = EmbeddingRewardModel(params.embedding(), Encoder(cache=EmbeddingCache(cache)))
        model.fit(pairs[pairs["split"] == "train"].reset_index(drop=True))
    with spent.stage("calibrate"):
        calib = of_source(CONVARG, comparisons, pairs)
        calibrator, candidates = fit_calibrator(calib[calib["split"] == "calib"], model)
    return Fitted(comparisons, votes, pairs, model, calibrator, candidates)


def labelled(comparisons: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Training pairs by gold with the votes' shares, or by majority where there is no gold; calib and test pairs by gold alone."""
    voted = preference_pairs(votes, comparisons)
    train, certain = gold_pairs(comparisons, voted), gold_pairs(comparisons)
    without_gold = voted[voted["comparison_id"].isin(comparisons.loc[comparisons["gold"].isna(), "comparison_id"])]
    parts = [train[train["split"] == "train"], without_gold[without_gold["split"] == "train"], certain[certain["split"] != "train"]]
    return concat(parts, PREFERENCE_PAIRS)


def of_source(source: str, comparisons: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    ids = comparisons.loc[comparisons["source"] == source, "comparison_id"]
    return pairs[pairs["comparison_id"].isin(ids)].reset_index(drop=True)


def timed(data: Path, folder: Path, limits: Limits) -> Fitted:
    """The whole way twice: with a fresh cache folder, then with what that left."""
    spent = {name: Spent() for name in ("cold", "warm")}
    fitted = {name: from_raw_files(data, folder / name, folder / "embeddings", spent[name]) for name in spent}
    rows = [(stage, *(f"{value:.1f}" for name in spent for value in spent[name].stages[stage])) for stage in spent["cold"].stages]
    rows.append(("**all**", *(f"**{value:.1f}**" for name in spent for value in spent[name].total)))
    table("From raw files to a calibrated model, seconds", ("stage", "cold: wall", "CPU", "warm: wall", "CPU"), rows)
    pairs, model = fitted["cold"].pairs, fitted["cold"].model
    n_train, n_texts = int((pairs["split"] == "train").sum()), len(pd.concat([pairs["chosen"], pairs["rejected"]]).unique())
    assert model.weights_hash == fitted["warm"].model.weights_hash, "the same files gave another model"
    print(f"\n{n_train} training pairs, {n_texts} distinct completions, {model.encoder.n_truncated} texts cut to the encoder's window.")
    print(
        f"L2 {model.l2_:g}, context penalty {model.context_penalty_:g}: least cross-validated log loss within train. Both runs gave the same model."
    )
    print("Calibrator by cross-validation on convarg's calib debates: " + _losses(fitted["cold"].candidates))
    for name, limit in (("cold", BAR_COLD), ("warm", BAR_WARM)):
        wall, cpu = spent[name].total
        limits.judge(
            wall < limit,
            f"{name} cache: {wall:.0f} s of wall time ({cpu:.0f} s of CPU, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}), limit {limit} s",
        )
    return fitted["cold"]


def _losses(candidates: dict[str, float]) -> str:
    return ", ".join(f"{name} {loss:.4f}" for name, loss in sorted(candidates.items(), key=lambda item: item[1]))


def open_test(fitted: Fitted, out: Path, limits: Limits) -> None:
    """The one place where test pairs are looked at: accuracy by source, ceilings, calibration on convarg's test debates."""
    test = fitted.pairs[fitted.pairs["split"] == "test"]
    debates = fitted.of(CONVARG, test)
    n_prompts, n_debates = test["prompt_id"].nunique(), debates["prompt_id"].nunique()
    print(
        f"\nOpened once: {len(test)} test pairs of {n_prompts} prompts, of them {len(debates)} of {n_debates} convarg prompts (two debates)."
    )
    found = accuracy_by_group(fitted.model, fitted.pairs, fitted.source)
    rows: list[tuple[object, ...]] = []
    for name, on in found.items():
        prompts = fitted.of(name, test)["prompt_id"].nunique()
        remark = "below chance" if on.accuracy.high < 0.5 else "near chance" if on.accuracy.low <= 0.5 else ""
        rows.append((name, on.n, prompts, on.accuracy, on.longer_wins, f"{on.log_loss.value:.3f}", remark))
    table(
        "Test pairs by source: right side of the known choice (95 % by bootstrap over prompts)",
        ("source", "pairs", "prompts", "accuracy", "longer wins", "log loss", ""), rows,
    )  # fmt: skip
    _ceilings(fitted)
    _calibration(fitted, out)
    accuracy = found[CONVARG].accuracy
    print(
        "\nconvarg has 4 test prompts (two debates, two sides each): its bootstrap over prompts draws from 4, so read its interval as rough."
    )
    right = (margins_of(fitted.model, debates) > 0).astype(float)
    print(f"The same accuracy with an interval over pairs, as if each stood alone: {interval_of_mean(right)}")
    by_prompt = pd.Series(right).groupby(debates["prompt"].to_numpy()).agg(["mean", "size"])
    print("By test prompt: " + ", ".join(f"{row['mean']:.3f} of {row['size']:.0f}" for _, row in by_prompt.iterrows()))
    limits.judge(
        accuracy.value >= BAR_ACCURACY,
        f"convarg test accuracy {accuracy.value:.3f}, at least {BAR_ACCURACY} wanted; longer wins {found[CONVARG].longer_wins.value:.3f}",
    )


def _ceilings(fitted: Fitted) -> None:
    ids = {name: group["comparison_id"] for name, group in fitted.comparisons.groupby("source")}
    split = fitted.comparisons.set_index("comparison_id")["split"]
    rows: list[tuple[object, ...]] = []
    for name, mine in ids.items():
        for part in ("all", "test") if name == CONVARG else ("all",):
            votes = fitted.votes[
                fitted.votes["comparison_id"].isin(mine) & ((part == "all") | (fitted.votes["comparison_id"].map(split) == part))
            ]
            against_others, against_gold = noise_ceiling(votes), gold_ceiling(votes, fitted.comparisons)
            if against_others:
                rows.append((name, part, against_others, against_others.n, against_gold, against_gold.n if against_gold else 0))
    table(
        "What people reach: one vote for a or b against the majority of the other votes, and against the known right choice",
        ("source", "split", "one vote against the others", "votes", "one vote against gold: beside accuracy", "votes"), rows,
    )  # fmt: skip


def _calibration(fitted: Fitted, out: Path) -> None:
    """Of two things: that the known right choice is a, which the table of accuracy asks; and that one vote is for a, as in the loop."""
    gold = fitted.of(CONVARG, fitted.pairs)
    single = fitted.of(CONVARG, preference_pairs(fitted.votes, fitted.comparisons, PairParams(keep_even_splits=True)))
    ids = fitted.comparisons.loc[fitted.comparisons["source"] == CONVARG, "comparison_id"]
    votes = fitted.votes[fitted.votes["comparison_id"].isin(ids)]
    for asked, pairs, ceiling in (
        ("the known right choice", gold, gold_ceiling(votes, fitted.comparisons)),
        ("one vote", single, noise_ceiling(votes)),
    ):
        calibrator, report = calibrate(pairs, fitted.model, reward_model_label="frozen MiniLM", data_hash="", noise_ceiling=ceiling)
        if pairs is gold:
            assert calibrator.to_json() == fitted.calibrator.to_json(), "the calibrator was chosen before the test was opened"
        measures = ("accuracy", "ece_equal_mass", "ece_equal_width", "brier", "log_loss")
        rows = [(name.replace("_", " "), getattr(report.raw, name), getattr(report.calibrated, name)) for name in measures]
        slopes = [_slope(fitted.model, by, pairs[pairs["split"] == "test"]) for by in (None, calibrator)]
        table(
            f"Calibration on convarg's test debates, P({asked}), {report.raw.n} pairs: raw, and by what the calib debates chose (95 % over prompts)",
            ("measure", "raw", f"calibrated: {report.method}"),
            [*rows, ("calibration slope", *slopes)],
        )
        print("\nCross-validated log loss on the calib debates: " + _losses(report.candidates))
        (out / f"reliability_{asked.replace(' ', '_')}.png").write_bytes(reliability_diagram(report))


def _slope(model: EmbeddingRewardModel, calibrator: Calibrator | None, test: pd.DataFrame) -> Interval:
    margins = margins_of(model, test)
    p = preference_probability(margins) if calibrator is None else calibrator.transform(margins)
    return calibration_slope(p, test["agreement"], weights=test["n_votes"].astype(float), groups=test["prompt_id"].to_numpy())


def choices(fitted: Fitted) -> None:
    """Cross-validation over the train debates, one left out at a time: what labels and features would have done. No test pair."""
    voted = preference_pairs(fitted.votes, fitted.comparisons)
    certain = gold_pairs(fitted.comparisons)
    debate = fitted.comparisons.set_index("comparison_id")["split_group"]
    judged = fitted.of(CONVARG, certain[certain["split"] == "train"])
    hard = concat(
        [
            certain[certain["split"] == "train"],
            fitted.pairs[fitted.pairs["split"].eq("train") & ~fitted.pairs["comparison_id"].isin(certain["comparison_id"])],
        ],
        PREFERENCE_PAIRS,
    )
    votes_first = concat(
        [voted[voted["split"] == "train"], certain[certain["split"].eq("train") & ~certain["comparison_id"].isin(voted["comparison_id"])]],
        PREFERENCE_PAIRS,
    )
    variants: dict[str, tuple[pd.DataFrame, RewardModelParams]] = {
        "gold with the votes' shares (used)": (fitted.pairs[fitted.pairs["split"] == "train"], RewardModelParams()),
        "the same, one context penalty of 3": (fitted.pairs[fitted.pairs["split"] == "train"], RewardModelParams(context_penalty_grid=[3.0])),
        "gold as if certain": (hard, RewardModelParams(label="majority")),
        "majority of votes, gold only without votes": (votes_first, RewardModelParams()),
    }  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for name, (pairs, params) in variants.items():
        margins = np.full(len(judged), np.nan)
        for left_out in sorted(judged["comparison_id"].map(debate).unique()):
            inside = (pairs["comparison_id"].map(debate) != left_out).to_numpy()
            outside = (judged["comparison_id"].map(debate) == left_out).to_numpy()
            model = EmbeddingRewardModel(params.embedding(), fitted.model.encoder).fit(pairs[inside].reset_index(drop=True))
            margins[outside] = margins_of(model, judged[outside])
        groups = judged["comparison_id"].map(debate).to_numpy()
        rows.append((name, interval_of_mean(margins > 0, groups=groups), interval_of_mean(np.logaddexp(0, -margins), groups=groups)))
    longer = np.sign(judged["chosen"].str.len() - judged["rejected"].str.len())
    rows.append(("longer wins", interval_of_mean(0.5 + 0.5 * longer, groups=judged["comparison_id"].map(debate).to_numpy()), "-"))
    table(
        "Within convarg's train debates, one left out at a time (95 % over the 8 debates)",
        ("training labels", "accuracy", "log loss"),
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder with pairs.parquet and votes.parquet")
    parser.add_argument("--out", type=Path, default=None, help="folder for the pictures; default a temporary one that stays")
    parser.add_argument("--only", default="table,days", help="sections: table, days, choices (cross-validation within train; minutes more)")
    given = parser.parse_args()
    sections, limits = set(given.only.split(",")), Limits()
    if unknown := sections - SECTIONS:
        parser.error(f"--only: {', '.join(sorted(unknown))} is no section; there are {', '.join(sorted(SECTIONS))}")
    warnings.filterwarnings("ignore")
    missing = [name for name in FILES.values() if not (given.data / name).exists()]
    if missing:
        lacking = f"{given.data} lacks {' and '.join(missing)}. The real data is no part of this repository; name its folder with --data"
        limits.skip(f"time and accuracy on real votes: {lacking}")
        return limits.told()
    out = given.out or Path(tempfile.mkdtemp(prefix="bench_real_"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fitted = timed(given.data, Path(folder), limits)
        if "choices" in sections:
            choices(fitted)
        # The days come last: nothing they say of the test debates can have shaped the model that is judged on them.
        if "table" in sections:
            open_test(fitted, out, limits)
        else:
            limits.skip(f"convarg test accuracy, at least {BAR_ACCURACY} wanted: --only leaves the table out")
        if "days" in sections:
            comparisons = fitted.comparisons[fitted.comparisons["source"] == CONVARG]
            votes = fitted.votes[fitted.votes["comparison_id"].isin(comparisons["comparison_id"])]
            days(comparisons, votes, fitted.model.encoder, out)
    return limits.told()


if __name__ == "__main__":
    sys.exit(main())
