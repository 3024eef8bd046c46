"""Real votes: accuracy beside its ceiling, calibration and time, on data that nobody here made.

    python benchmarks/bench_real.py [--data ../shared/data]

Needs pairs.parquet and votes.parquet in --data; where they are absent it says so and stops. From
raw files to a calibrated model it works as a user would: `rlhf import`, then the library. Training
pairs carry the side of the known right choice where there is one, with the votes' shares, else the
majority's; identical and repeated pairs are left out. Test pairs are judged by the known right
choice alone.
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

from rlhf_pipeline.core.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()
# Threads that wait actively take the cores from whoever else wants them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pandas as pd  # noqa: E402

from benchmarks.gold import gold_ceiling, gold_pairs  # noqa: E402
from benchmarks.measurement import Limits, StageTimes, pin_to_cores, print_table  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.core.frames import COMPARISONS, PREFERENCE_PAIRS, concat  # noqa: E402
from rlhf_pipeline.core.intervals import BootstrapParams  # noqa: E402
from rlhf_pipeline.core.records import CalibrationMetrics, Interval  # noqa: E402
from rlhf_pipeline.feedback.votes import (  # noqa: E402
    PairParams,
    make_pairs,
    noise_ceiling_or_repeats,
    select_test_pairs,
)
from rlhf_pipeline.feedback.votes.counting import counting_votes  # noqa: E402
from rlhf_pipeline.learn.calibration import CalibrationContext, calibrate, fit_calibrator  # noqa: E402
from rlhf_pipeline.learn.reward_model import (  # noqa: E402
    EmbeddingCache,
    EmbeddingRewardModel,
    Encoder,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.evaluation import (  # noqa: E402
    accuracy_on,
    margins_of,
)
from rlhf_pipeline.learn.reward_model.report import TestAccuracy  # noqa: E402

CONVARG = "convarg"
FILES = {"comparisons": "pairs.parquet", "votes": "votes.parquet"}
RLHF = str(Path(sys.executable).with_name("rlhf"))
BAR_ACCURACY = 0.80
BAR_ECE = 0.05
BAR_COLD = 15 * 60
BAR_WARM = 60
CORES = 2


@dataclass
class FittedProject:
    """What raw files became. `pairs` hold the test split, which `judge` opens."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    pairs: pd.DataFrame
    model: EmbeddingRewardModel

    @property
    def source(self) -> dict[str, str]:
        return dict(zip(self.comparisons["comparison_id"], self.comparisons["source"], strict=True))

    def select_source(self, source: str, pairs: pd.DataFrame) -> pd.DataFrame:
        return pairs[pairs["comparison_id"].map(self.source) == source].reset_index(drop=True)


def from_raw_files(data: Path, home: Path, cache: Path, spent: StageTimes) -> FittedProject:
    """Import both files into a new home, then pairs, reward model and calibrator; embeddings come
    from `cache`, or go there.
    """
    with spent.stage("import"):
        environ = os.environ | {"RLHF_HOME": str(home)}
        for kind in ("comparisons", "votes"):
            command = [
                RLHF,
                "import",
                "preferences",
                str((data / FILES[kind]).absolute()),
                *("--yes", "--no-replay", "--keep-others"),
                "--project",
                "real",
            ]
            done = subprocess.run(
                command, env=environ, cwd=home.parent, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"rlhf import of {kind} failed:\n{done.stdout}{done.stderr}")
            print(
                f"rlhf import of {kind}: {done.stdout.strip().replace(chr(10), '; ')}", flush=True
            )
    with spent.stage("frames and pairs"):
        store = Workspace(Settings(home=home, project="real")).store
        comparisons = concat(store.comparisons.stream(), COMPARISONS)
        votes = counting_votes(
            store.votes.log(comparison_ids=comparisons["comparison_id"].tolist())
        )
        pairs = labelled(comparisons, votes)
    with spent.stage("embed and fit"):
        params = reward_model_params()
        model = EmbeddingRewardModel(params.kind_params(), Encoder(cache=EmbeddingCache(cache)))
        model.fit(pairs[pairs["split"] == "train"].reset_index(drop=True))
    with spent.stage("calibrate"):
        fitted = FittedProject(comparisons, votes, pairs, model)
        calib = fitted.select_source(CONVARG, pairs)
        fit_calibrator(calib[calib["split"] == "calib"], model)
    return fitted


def labelled(comparisons: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Training pairs by gold with the votes' shares, or by majority where there is no gold; calib
    and test pairs by gold alone.
    """
    voted = make_pairs(votes, comparisons)[0]
    with_gold, certain = gold_pairs(comparisons, voted), gold_pairs(comparisons)
    without_gold = voted[
        voted["comparison_id"].isin(comparisons.loc[comparisons["gold"].isna(), "comparison_id"])
    ]
    train = concat(
        [frame[frame["split"] == "train"] for frame in (with_gold, without_gold)], PREFERENCE_PAIRS
    )
    return concat(
        [train, certain[~certain["comparison_id"].isin(train["comparison_id"])]], PREFERENCE_PAIRS
    )


def timed(data: Path, folder: Path, limits: Limits) -> FittedProject:
    """The whole way twice, on two cores: with a fresh cache folder, then with what that left."""
    spent = {name: StageTimes() for name in ("cold", "warm")}
    with pin_to_cores(CORES) as cores:
        fitted = {
            name: from_raw_files(data, folder / name, folder / "embeddings", spent[name])
            for name in spent
        }
    rows = [
        (stage, *(f"{value:.1f}" for name in spent for value in spent[name].stages[stage]))
        for stage in spent["cold"].stages
    ]
    rows.append(("**all**", *(f"**{value:.1f}**" for name in spent for value in spent[name].total)))
    print_table(
        "From raw files to a calibrated model, seconds",
        ("stage", "cold: wall", "CPU", "warm: wall", "CPU"),
        rows,
    )
    pairs, model = fitted["cold"].pairs, fitted["cold"].model
    n_train = int((pairs["split"] == "train").sum())
    n_texts = len(pd.concat([pairs["chosen"], pairs["rejected"]]).unique())
    assert model.weights_hash == fitted["warm"].model.weights_hash, (
        "the same files gave another model"
    )
    print(f"\n{n_train} training pairs, {n_texts} distinct completions.")
    for name, limit in (("cold", BAR_COLD), ("warm", BAR_WARM)):
        wall, cpu = spent[name].total
        limits.check(
            wall < limit,
            f"{name} cache: {wall:.0f} s of wall time ({cpu:.0f} s of CPU, {cores}, load "
            f"{os.getloadavg()[0]:.1f}), limit {limit} s",
        )
    return fitted["cold"]


def judge(fitted: FittedProject, limits: Limits) -> None:
    """Accuracy by source beside what one vote of a person reaches."""
    test = select_test_pairs(fitted.pairs)
    ceilings = _gold_ceilings(fitted)
    rows: list[tuple[object, ...]] = []
    for name in test["comparison_id"].map(fitted.source).value_counts().index:
        pairs = fitted.select_source(str(name), test)
        measured = measure_accuracy(fitted, pairs, ceilings.get(str(name)))
        rows.append(
            (
                name,
                measured.n,
                pairs["prompt_id"].nunique(),
                measured.accuracy,
                measured.ceiling or "-",
                measured.longer_wins,
                f"{measured.log_loss.value:.3f}",
            )
        )
        if name == CONVARG:
            limits.check(
                measured.accuracy.value >= BAR_ACCURACY,
                f"convarg test accuracy {measured.accuracy.value:.3f}, at least {BAR_ACCURACY} "
                f"wanted; its ceiling {measured.ceiling}",
            )
    print_table(
        "Test pairs by source: right side of the known choice (95 % by bootstrap over prompts)",
        ("source", "pairs", "prompts", "accuracy", "ceiling: one vote", "longer wins", "log loss"),
        rows,
    )
    print("\nconvarg has 4 test prompts (two debates, two sides each): read its interval as rough.")
    _judge_calibration(fitted, limits)


def measure_accuracy(
    fitted: FittedProject, test: pd.DataFrame, ceiling: Interval | None
) -> TestAccuracy:
    """The model on opened test pairs of one source, beside their ceiling."""
    return accuracy_on(
        test,
        margins_of(fitted.model, test),
        BootstrapParams(),
        ceiling=ceiling,
    )


def _gold_ceilings(fitted: FittedProject) -> dict[str, Interval]:
    """How often one vote on a test pair is the known right choice, by source; only where people's
    votes are known.
    """
    split = fitted.votes["comparison_id"].map(
        fitted.comparisons.set_index("comparison_id")["split"]
    )
    source = fitted.votes["comparison_id"].map(fitted.source)
    ceilings = {
        name: gold_ceiling(fitted.votes[(split == "test") & (source == name)], fitted.comparisons)
        for name in sorted(source.unique())
    }
    return {name: ceiling for name, ceiling in ceilings.items() if ceiling is not None}


def _judge_calibration(fitted: FittedProject, limits: Limits) -> None:
    """Of two things: that the known right choice is a, which the table of accuracy asks; and that
    one vote is for a, as in the loop, to which the limit is held.
    """
    gold = fitted.select_source(CONVARG, fitted.pairs)
    voted = make_pairs(fitted.votes, fitted.comparisons, PairParams(keep_even_splits=True))[0]
    single = fitted.select_source(CONVARG, voted)
    ids = fitted.comparisons.loc[fitted.comparisons["source"] == CONVARG, "comparison_id"]
    votes = fitted.votes[fitted.votes["comparison_id"].isin(ids)]
    for target, pairs, ceiling in (
        ("the known right choice", gold, gold_ceiling(votes, fitted.comparisons)),
        ("one vote", single, noise_ceiling_or_repeats(votes)),
    ):
        _, report = calibrate(
            pairs,
            fitted.model,
            reward_model_label=f"gold, P({target}): {fitted.model.weights_hash}",
            data_hash="",
            votes=CalibrationContext(ceiling),
        )
        _print_measures(target, report.method, report.raw, report.calibrated, ceiling)
        if target == "one vote":
            error = report.calibrated.ece
            limits.check(
                error is not None and error.value <= BAR_ECE,
                f"P({target}), calibrated on the calib debates' votes as the pipeline does: ECE "
                f"{error}, at most {BAR_ECE} wanted",
            )


def _print_measures(
    what: str,
    method: str,
    raw: CalibrationMetrics,
    mended: CalibrationMetrics,
    ceiling: Interval | None,
) -> None:
    rows = [
        (f"accuracy; its noise ceiling {ceiling}", raw.accuracy, mended.accuracy),
        ("Mean gap of the bins", raw.binned_gap, mended.binned_gap),
        ("ECE", raw.ece, mended.ece),
        ("Brier score", raw.brier, mended.brier),
        ("log loss", raw.log_loss, mended.log_loss),
        ("calibration slope", raw.slope, mended.slope),
    ]
    title = f"Calibration on convarg's test debates, {raw.n} pairs, P({what}) (95 % over prompts)"
    print_table(title, ("measure", "raw", f"calibrated: {method}"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "data",
        help="folder with pairs.parquet and votes.parquet",
    )
    options = parser.parse_args()
    limits = Limits()
    warnings.filterwarnings("ignore")
    missing = [name for name in FILES.values() if not (options.data / name).exists()]
    if missing:
        limits.skip(
            "time and accuracy on real votes, beside their ceilings: "
            f"{options.data} lacks {' and '.join(missing)}. The real data is no part of this "
            "repository; name its folder with --data"
        )
        return limits.print_summary()
    with tempfile.TemporaryDirectory() as folder:
        judge(timed(options.data, Path(folder), limits), limits)
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
