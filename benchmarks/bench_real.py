"""Real votes: accuracy, calibration, time and drift on data that nobody here made. Prints tables; draws the drift timeline.

    python benchmarks/bench_real.py [--data ../shared/data] [--out FOLDER] [--cache FOLDER] [--only time,table,days,choices]

Needs pairs.parquet and votes.parquet in --data; where they are absent it says so and stops.
From raw files to a calibrated model it works as a user would: `rlhf import`, then the library. Everything is chosen on the
train and calib splits, by `choices`: one debate left out at a time, since new debates are the real test. The test split is opened at
the end, by `open_test`, which tells every opening. Training pairs carry the side of the known right choice where there is one, with
the votes' shares, else the majority's; identical and repeated pairs are left out. Test pairs are judged by the known right choice
alone. The annotator model of the soft labels never sees a vote on a test pair.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

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
from rlhf_pipeline.reward_model.labels import with_soft_labels  # noqa: E402
from rlhf_pipeline.reward_model.length import length_effect, length_of  # noqa: E402
from rlhf_pipeline.reward_model.training import margins_of  # noqa: E402
from rlhf_pipeline.votes import (  # noqa: E402
    Opening,
    PairParams,
    gold_ceiling,
    gold_pairs,
    interval_of_mean,
    joint_model,
    noise_ceiling,
    open_test_split,
    preference_pairs,
)

CONVARG = "convarg"
FILES = {"comparisons": "pairs.parquet", "votes": "votes.parquet"}
RLHF = str(Path(sys.executable).with_name("rlhf"))
SECTIONS = {"time", "table", "days", "choices"}
BAR_ACCURACY, BAR_COLD, BAR_WARM = 0.80, 15 * 60, 60
# What is learnt from each training pair, as the tables name it.
USED, MAJORITY, SOFT = (
    "known right choice with the votes' shares (used)",
    "majority of votes as if certain",
    "annotator model's soft labels",
)
ENSEMBLE, HIDDEN = "used, ensemble of 5", "used, with a hidden layer"


@dataclass
class Fitted:
    """What raw files became. `pairs` hold the test split; nothing but `open_test` looks at it. `labels` are the annotator model's."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    pairs: pd.DataFrame
    labels: pd.DataFrame
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
    with spent.stage("annotator model"):
        seen = comparisons.loc[comparisons["split"] != "test", "comparison_id"]
        labels = joint_model(votes[votes["comparison_id"].isin(seen)], comparisons).labels
    with spent.stage("embed and fit"):
        params = RewardModelParams()
        model = EmbeddingRewardModel(params.embedding(), Encoder(cache=EmbeddingCache(cache)))
        model.fit(pairs[pairs["split"] == "train"].reset_index(drop=True))
    with spent.stage("calibrate"):
        calib = of_source(CONVARG, comparisons, pairs)
        calibrator, candidates = fit_calibrator(calib[calib["split"] == "calib"], model)
    return Fitted(comparisons, votes, pairs, labels, model, calibrator, candidates)


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
    """The one place where test pairs are looked at: accuracy by source and by what was learnt, ceilings, calibration on convarg's test debates."""
    test = open_test_split(fitted.pairs, model=fitted.model.weights_hash, purpose="benchmark of real votes")
    debates = fitted.of(CONVARG, test)
    n_prompts, n_debates = test["prompt_id"].nunique(), debates["prompt_id"].nunique()
    print(
        f"\nOpened once: {len(test)} test pairs of {n_prompts} prompts, of them {len(debates)} of {n_debates} convarg prompts (two debates)."
    )
    opened: list[Opening] = []
    found = accuracy_by_group(fitted.model, fitted.pairs, fitted.source, ceilings=_gold_ceilings(fitted), record=opened.append)
    rows: list[tuple[object, ...]] = []
    for name, on in found.items():
        prompts = fitted.of(name, test)["prompt_id"].nunique()
        remark = "below chance" if on.accuracy.high < 0.5 else "near chance" if on.accuracy.low <= 0.5 else ""
        rows.append((name, on.n, prompts, on.accuracy, on.ceiling or "-", on.longer_wins, f"{on.log_loss.value:.3f}", remark))
    table(
        "Test pairs by source: right side of the known choice (95 % by bootstrap over prompts)",
        ("source", "pairs", "prompts", "accuracy", "ceiling: one vote", "longer wins", "log loss", ""), rows,
    )  # fmt: skip
    _other_models(fitted, limits, opened)
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


def _gold_ceilings(fitted: Fitted) -> dict[str, Interval]:
    """How often one vote on a test pair is the known right choice, by source; only where people's votes are known."""
    split = fitted.votes["comparison_id"].map(fitted.comparisons.set_index("comparison_id")["split"])
    source = fitted.votes["comparison_id"].map(fitted.source)
    found = {name: gold_ceiling(fitted.votes[(split == "test") & (source == name)], fitted.comparisons) for name in sorted(source.unique())}
    return {name: ceiling for name, ceiling in found.items() if ceiling is not None}


def _other_models(fitted: Fitted, limits: Limits, opened: list[Opening]) -> None:
    """The same test debates by what else could have been learnt. Nothing is chosen by this table: `choices` did that."""
    ceiling, rows, accuracy = _gold_ceilings(fitted), [], {}
    for name, (pairs, params) in variants(fitted, {"train"}).items():
        model = Remembering(params.embedding(), fitted.model.encoder).fit(pairs)
        on = accuracy_by_group(model, fitted.pairs, fitted.source, ceilings=ceiling, record=opened.append)[CONVARG]
        accuracy[name] = on.accuracy.value
        rows.append((name, on.accuracy, on.ceiling, f"{on.log_loss.value:.3f}"))
    table(
        "Convarg's test debates by what was learnt (nothing was chosen by it)",
        ("what is learnt", "accuracy", "ceiling: one vote", "log loss"),
        rows,
    )
    limits.judge(
        accuracy[SOFT] >= accuracy[MAJORITY],
        f"test debates: soft labels {accuracy[SOFT]:.3f}, majority {accuracy[MAJORITY]:.3f}; at least as good wanted",
    )
    print("\nOpenings of the test split: " + "; ".join(f"{o.model[:12]} for {o.purpose}, {o.n_pairs} pairs" for o in opened))


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
        test = open_test_split(pairs, model=fitted.model.weights_hash, purpose="calibration slope")
        slopes = [_slope(fitted.model, by, test) for by in (None, calibrator)]
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


class Remembering(EmbeddingRewardModel):
    """Asks for what it sees of a completion once: cross-validation would ask for the same a hundred times."""

    seen: ClassVar[dict[tuple[str, str], np.ndarray]] = {}

    def features(self, prompts: Sequence[str], completions: Sequence[str], **more: Any) -> np.ndarray:
        keys = list(zip(prompts, completions, strict=True))
        new = [key for key in dict.fromkeys(keys) if key not in self.seen]
        if new:
            self.seen.update(zip(new, super().features([p for p, _ in new], [c for _, c in new], **more), strict=True))
        return np.stack([self.seen[key] for key in keys])


def variants(fitted: Fitted, splits: set[str]) -> dict[str, tuple[pd.DataFrame, RewardModelParams]]:
    """Training pairs of those splits by what is learnt from each, and how. A pair without votes is learnt as its known right choice."""

    def of_splits(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["split"].isin(splits)]

    def completed(frame: pd.DataFrame) -> pd.DataFrame:
        return concat([frame, certain[~certain["comparison_id"].isin(frame["comparison_id"])]], PREFERENCE_PAIRS)

    def soft(frame: pd.DataFrame) -> pd.DataFrame:
        joined = with_soft_labels(frame, fitted.labels)
        return joined.assign(soft_label=joined["soft_label"].fillna(joined["agreement"]))

    tied = PairParams(keep_even_splits=True, keep_only_ties=True)
    voted = of_splits(preference_pairs(fitted.votes, fitted.comparisons))
    with_ties = of_splits(preference_pairs(fitted.votes, fitted.comparisons, tied))
    certain = of_splits(gold_pairs(fitted.comparisons))
    gold = of_splits(gold_pairs(fitted.comparisons, voted))
    used = concat([gold, voted[~voted["comparison_id"].isin(gold["comparison_id"])]], PREFERENCE_PAIRS)
    return {
        USED: (used, RewardModelParams()),
        MAJORITY: (completed(voted), RewardModelParams(label="majority")),
        "votes' shares": (completed(voted), RewardModelParams()),
        SOFT: (soft(completed(voted)), RewardModelParams(label="annotators")),
        "annotator model's soft labels, ties kept": (soft(completed(with_ties)), RewardModelParams(label="annotators")),
        "votes' shares, ties by Davidson": (completed(with_ties), RewardModelParams(loss="davidson")),
        ENSEMBLE: (used, RewardModelParams(n_members=5)),
        HIDDEN: (used, RewardModelParams(head="mlp")),
        "used, length taken out": (used, RewardModelParams(debias_length=True)),
    }


def choices(fitted: Fitted, limits: Limits) -> None:
    """Cross-validation over the train and calib debates, one left out at a time: what labels and heads would have done. No test pair.

    The two penalties are chosen once for each row, by cross-validation over the prompts of all these debates.
    """
    certain = gold_pairs(fitted.comparisons)
    debate = fitted.comparisons.set_index("comparison_id")["split_group"]
    judged = fitted.of(CONVARG, certain[certain["split"].isin(["train", "calib"])])
    of_judged = judged["comparison_id"].map(debate).to_numpy()
    gaps, turned = length_of(judged["chosen"]) - length_of(judged["rejected"]), (judged["chosen_side"] == "b").to_numpy()
    rows: list[tuple[object, ...]] = []
    accuracy: dict[str, float] = {}
    for name, (pairs, params) in variants(fitted, {"train", "calib"}).items():
        margins, of_pair = np.full(len(judged), np.nan), pairs["comparison_id"].map(debate).to_numpy()
        own = params.embedding()
        whole = Remembering(own.model_copy(update={"head": "linear", "n_members": 1}), fitted.model.encoder).fit(pairs)
        own = own.model_copy(update={"l2_grid": [whole.l2_], "context_penalty_grid": [whole.context_penalty_]})
        for left_out in np.unique(of_judged):
            model = Remembering(own, fitted.model.encoder)
            model.fit(pairs[of_pair != left_out].reset_index(drop=True))
            margins[of_judged == left_out] = margins_of(model, judged[of_judged == left_out])
        by_debate = pd.Series(margins > 0).groupby(of_judged).mean()
        accuracy[name] = float((margins > 0).mean())
        effect = length_effect(margins, gaps, turned, 0.0, is_debiased=False)
        rows.append(
            (
                name, interval_of_mean(margins > 0, groups=of_judged), f"{by_debate.min():.3f}–{by_debate.max():.3f}",
                interval_of_mean(np.logaddexp(0, -margins), groups=of_judged), f"{effect.correlation_before:.2f}", f"{own.l2_grid[0]:g}",
            )
        )  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    longer = 0.5 + 0.5 * np.sign(gaps)
    by_debate = pd.Series(longer).groupby(of_judged).mean()
    rows.append(
        ("longer wins", interval_of_mean(longer, groups=of_judged), f"{by_debate.min():.3f}–{by_debate.max():.3f}", "-", "1.00", "-")
    )
    votes = fitted.votes[fitted.votes["comparison_id"].isin(judged["comparison_id"])]
    rows.append(("one person's vote: the ceiling beside it", gold_ceiling(votes, fitted.comparisons), "-", "-", "-", "-"))
    n = len(np.unique(of_judged))
    table(
        f"Convarg's {n} train and calib debates, one left out at a time (95 % over debates); {len(judged)} pairs judged by the known right choice",
        ("what is learnt", "accuracy", "by debate", "log loss", "correlation of margin and length gap", "L2"), rows,
    )  # fmt: skip
    limits.judge(
        accuracy[SOFT] >= accuracy[MAJORITY],
        f"new debates: soft labels {accuracy[SOFT]:.3f}, majority {accuracy[MAJORITY]:.3f}; at least as good wanted",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder with pairs.parquet and votes.parquet")
    parser.add_argument("--out", type=Path, default=None, help="folder for the pictures; default a temporary one that stays")
    parser.add_argument("--cache", type=Path, default=None, help="folder of embeddings kept between runs, where time is not measured")
    parser.add_argument(
        "--only", default="time,table,days,choices", help="sections: time, table, days, choices (one debate left out at a time)"
    )
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
        if "time" in sections:
            fitted = timed(given.data, Path(folder), limits)
        else:
            fitted = from_raw_files(given.data, Path(folder) / "home", given.cache or Path(folder) / "embeddings", Spent())
            limits.skip("time: --only leaves it out")
        if "choices" in sections:
            choices(fitted, limits)
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
