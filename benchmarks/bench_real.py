"""Real votes: accuracy, calibration, time and drift on data that nobody here made. Prints tables;
draws the drift timeline.

    python benchmarks/bench_real.py [--data ../shared/data] [--out FOLDER] [--cache FOLDER]
        [--registry FOLDER] [--only time,table,days,choices]

Needs pairs.parquet and votes.parquet in --data; where they are absent it says so and stops. From
raw files to a calibrated model it works as a user would: `rlhf import`, then the library.
Everything is chosen on the train and calib splits, by `choices`: one debate left out at a time,
since new debates are the real test. The test split is opened by `tables` and by each model of
`days`, once for every model and table; the registry keeps each opening, and they are listed at the
end. Training pairs carry the side of the known right choice where there is one, with the votes'
shares, else the majority's; identical and repeated pairs are left out. Test pairs are judged by the
known right choice alone. The annotator model of the soft labels never sees a vote on a test pair.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()
# Threads that wait actively take the cores from whoever else wants them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, StageTimes, pin_to_cores, print_table  # noqa: E402
from benchmarks.opening_log import OpeningLog, add_registry_option  # noqa: E402
from benchmarks.real_choices import (  # noqa: E402
    CONVARG,
    MAJORITY,
    SOFT,
    USED,
    CachedFeaturesModel,
    FittedProject,
    HeldOutDebates,
    compare_choices,
    make_variants,
)
from benchmarks.real_weeks import run_real_days  # noqa: E402
from rlhf_pipeline.calibration import (  # noqa: E402
    CALIBRATORS,
    VoteFacts,
    calibrate,
    calibration_metrics,
    fit_calibrator,
)
from rlhf_pipeline.calibration.metrics import share_right  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.frames import COMPARISONS, PREFERENCE_PAIRS, concat  # noqa: E402
from rlhf_pipeline.intervals import BootstrapParams  # noqa: E402
from rlhf_pipeline.records import CalibrationMetrics, Interval  # noqa: E402
from rlhf_pipeline.reports.calibration import chart_calibration  # noqa: E402
from rlhf_pipeline.reports.draw import draw_png  # noqa: E402
from rlhf_pipeline.reward_model import (  # noqa: E402
    EmbeddingCache,
    EmbeddingRewardModel,
    Encoder,
    reward_model_params,
)
from rlhf_pipeline.reward_model.evaluation import (  # noqa: E402
    accuracy_on,
    majority_side,
    margins_of,
)
from rlhf_pipeline.reward_model.report import TestAccuracy  # noqa: E402
from rlhf_pipeline.votes import (  # noqa: E402
    PairParams,
    gold_ceiling,
    gold_pairs,
    interval_of_mean,
    noise_ceiling,
    open_test_split,
    preference_pairs,
    training_labels,
)
from rlhf_pipeline.votes.counting import counting  # noqa: E402

FILES = {"comparisons": "pairs.parquet", "votes": "votes.parquet"}
RLHF = str(Path(sys.executable).with_name("rlhf"))
SECTIONS = {"time", "table", "days", "choices"}
BAR_ACCURACY = 0.80
BAR_ECE = 0.05
BAR_COLD = 15 * 60
BAR_WARM = 60
CORES = 2


def from_raw_files(data: Path, home: Path, cache: Path, spent: StageTimes) -> FittedProject:
    """Import both files into a new home, then pairs, reward model and calibrator; embeddings come
    from `cache`, or go there.
    """
    with spent.stage("import"):
        environ = os.environ | {"RLHF_HOME": str(home)}
        for kind, more in (("comparisons", []), ("votes", ["--no-replay"])):
            command = [
                RLHF,
                "import",
                kind,
                str((data / FILES[kind]).absolute()),
                "--project",
                "real",
                *more,
            ]
            done = subprocess.run(
                command, env=environ, cwd=home.parent, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"rlhf import {kind} failed:\n{done.stdout}{done.stderr}")
            print(f"rlhf import {kind}: {done.stdout.strip().replace(chr(10), '; ')}", flush=True)
    with spent.stage("frames and pairs"):
        store = Workspace(Settings(home=home, project="real")).store
        comparisons = concat(store.comparisons.stream(), COMPARISONS)
        votes = counting(store.votes.log(comparison_ids=comparisons["comparison_id"].tolist()))
        pairs = labelled(comparisons, votes)
    with spent.stage("annotator model"):
        labels = training_labels(votes, comparisons)
    with spent.stage("embed and fit"):
        params = reward_model_params()
        model = EmbeddingRewardModel(params.kind_params(), Encoder(cache=EmbeddingCache(cache)))
        model.fit(pairs[pairs["split"] == "train"].reset_index(drop=True))
    with spent.stage("calibrate"):
        calib = of_source(CONVARG, comparisons, pairs)
        calibrator, candidates = fit_calibrator(calib[calib["split"] == "calib"], model)
    return FittedProject(comparisons, votes, pairs, labels, model, calibrator, candidates)


def labelled(comparisons: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Training pairs by gold with the votes' shares, or by majority where there is no gold; calib
    and test pairs by gold alone.
    """
    voted = preference_pairs(votes, comparisons)
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


def of_source(source: str, comparisons: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    ids = comparisons.loc[comparisons["source"] == source, "comparison_id"]
    return pairs[pairs["comparison_id"].isin(ids)].reset_index(drop=True)


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
    print(
        f"\n{n_train} training pairs, {n_texts} distinct completions, {model.encoder.n_truncated} "
        "texts cut to the encoder's window."
    )
    print(
        f"L2 {model.l2_:g}, context penalty {model.context_penalty_:g}: least cross-validated log "
        "loss within train. Both runs gave the same model."
    )
    print(
        "Calibrator by cross-validation on convarg's calib debates: "
        + _losses(fitted["cold"].candidates)
    )
    for name, limit in (("cold", BAR_COLD), ("warm", BAR_WARM)):
        wall, cpu = spent[name].total
        limits.check(
            wall < limit,
            f"{name} cache: {wall:.0f} s of wall time ({cpu:.0f} s of CPU, {cores}, load "
            f"{os.getloadavg()[0]:.1f}), limit {limit} s",
        )
    return fitted["cold"]


def _losses(candidates: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {loss:.4f}" for name, loss in sorted(candidates.items(), key=lambda item: item[1])
    )


def tables(fitted: FittedProject, out: Path, limits: Limits, looks: OpeningLog) -> None:
    """Accuracy by source and by what was learnt, ceilings, calibration: all that looks at test
    pairs, but for the models of `days`.
    """
    test = open_test_split(
        fitted.pairs,
        model=f"{USED}: {fitted.model.weights_hash}",
        purpose="accuracy by source and prompt, real votes",
        record=looks.record,
    )
    debates = fitted.select_source(CONVARG, test)
    n_prompts, n_debates = test["prompt_id"].nunique(), debates["prompt_id"].nunique()
    print(
        f"\nThe test split: {len(test)} pairs of {n_prompts} prompts, of them {len(debates)} of "
        f"{n_debates} convarg prompts (two debates). It is opened once for this table, once for "
        "each of the models below and once for each calibration; the list stands at the end."
    )
    ceilings = _gold_ceilings(fitted)
    by_size = test["comparison_id"].map(fitted.source).value_counts().index
    found = {
        str(name): measure_accuracy(
            fitted, fitted.model, fitted.select_source(name, test), ceilings.get(name)
        )
        for name in by_size
    }
    rows: list[tuple[object, ...]] = []
    for name, on in found.items():
        prompts = fitted.select_source(name, test)["prompt_id"].nunique()
        remark = (
            "below chance"
            if on.accuracy.high < 0.5
            else "near chance"
            if on.accuracy.low <= 0.5
            else ""
        )
        rows.append(
            (
                name,
                on.n,
                prompts,
                on.accuracy,
                on.ceiling or "-",
                on.longer_wins,
                f"{on.log_loss.value:.3f}",
                remark,
            )
        )
    print_table(
        "Test pairs by source: right side of the known choice (95 % by bootstrap over prompts)",
        (
            "source",
            "pairs",
            "prompts",
            "accuracy",
            "ceiling: one vote",
            "longer wins",
            "log loss",
            "",
        ),
        rows,
    )
    accuracy = found[CONVARG].accuracy
    print(
        "\nconvarg has 4 test prompts (two debates, two sides each): its bootstrap over prompts "
        "draws from 4, so read its interval as rough."
    )
    right = (margins_of(fitted.model, debates) > 0).astype(float)
    print(
        "The same accuracy with an interval over pairs, as if each stood alone: "
        f"{interval_of_mean(right)}"
    )
    by_prompt = pd.Series(right).groupby(debates["prompt"].to_numpy()).agg(["mean", "size"])
    print(
        "By test prompt: "
        + ", ".join(f"{row['mean']:.3f} of {row['size']:.0f}" for _, row in by_prompt.iterrows())
    )
    limits.check(
        accuracy.value >= BAR_ACCURACY,
        f"convarg test accuracy {accuracy.value:.3f}, at least {BAR_ACCURACY} wanted; longer wins "
        f"{found[CONVARG].longer_wins.value:.3f}",
    )
    _other_models(fitted, limits, looks, ceilings.get(CONVARG))
    _ceilings(fitted)
    _calibration(fitted, out, limits, looks)


def measure_accuracy(
    fitted: FittedProject, model: EmbeddingRewardModel, test: pd.DataFrame, ceiling: Interval | None
) -> TestAccuracy:
    """The model on opened test pairs of one source, beside their ceiling."""
    mine = fitted.pairs[
        fitted.pairs["comparison_id"]
        .map(fitted.source)
        .isin(test["comparison_id"].map(fitted.source).unique())
    ]
    return accuracy_on(
        test, margins_of(model, test), majority_side(mine), BootstrapParams(), ceiling=ceiling
    )


def _gold_ceilings(fitted: FittedProject) -> dict[str, Interval]:
    """How often one vote on a test pair is the known right choice, by source; only where people's
    votes are known.
    """
    split = fitted.votes["comparison_id"].map(
        fitted.comparisons.set_index("comparison_id")["split"]
    )
    source = fitted.votes["comparison_id"].map(fitted.source)
    found = {
        name: gold_ceiling(fitted.votes[(split == "test") & (source == name)], fitted.comparisons)
        for name in sorted(source.unique())
    }
    return {name: ceiling for name, ceiling in found.items() if ceiling is not None}


def _other_models(
    fitted: FittedProject, limits: Limits, looks: OpeningLog, ceiling: Interval | None
) -> None:
    """The same test debates by what else could have been learnt. Nothing is chosen by this table:
    `choices` did that.
    """
    rows = []
    accuracy = {}
    debates = fitted.select_source(CONVARG, fitted.pairs)
    for name, (pairs, params) in make_variants(fitted, {"train"}).items():
        model = CachedFeaturesModel(params.kind_params(), fitted.model.encoder).fit(pairs)
        test = open_test_split(
            debates,
            model=f"{name}: {model.weights_hash}",
            purpose="accuracy by what was learnt, real votes",
            record=looks.record,
        )
        on = measure_accuracy(fitted, model, test, ceiling)
        accuracy[name] = on.accuracy.value
        rows.append((name, on.accuracy, on.ceiling, f"{on.log_loss.value:.3f}"))
    print_table(
        "Convarg's test debates by what was learnt (nothing was chosen by it)",
        ("what is learnt", "accuracy", "ceiling: one vote", "log loss"),
        rows,
    )
    limits.check(
        accuracy[SOFT] >= accuracy[MAJORITY],
        f"test debates: soft labels {accuracy[SOFT]:.3f}, majority {accuracy[MAJORITY]:.3f}; at "
        "least as good wanted",
    )


def _ceilings(fitted: FittedProject) -> None:
    ids = {name: group["comparison_id"] for name, group in fitted.comparisons.groupby("source")}
    split = fitted.comparisons.set_index("comparison_id")["split"]
    rows: list[tuple[object, ...]] = []
    for name, mine in ids.items():
        for part in ("all", "test") if name == CONVARG else ("all",):
            votes = fitted.votes[
                fitted.votes["comparison_id"].isin(mine)
                & ((part == "all") | (fitted.votes["comparison_id"].map(split) == part))
            ]
            against_others = noise_ceiling(votes)
            against_gold = gold_ceiling(votes, fitted.comparisons)
            if against_others:
                rows.append(
                    (
                        name,
                        part,
                        against_others,
                        against_others.n,
                        against_gold,
                        against_gold.n if against_gold else 0,
                    )
                )
    print_table(
        "What people reach: one vote for a or b against the majority of the other votes, and "
        "against the known right choice",
        (
            "source",
            "split",
            "one vote against the others",
            "votes",
            "one vote against gold: ceiling of accuracy",
            "votes",
        ),
        rows,
    )


def _calibration(fitted: FittedProject, out: Path, limits: Limits, looks: OpeningLog) -> None:
    """Of two things: that the known right choice is a, which the table of accuracy asks; and that
    one vote is for a, as in the loop.

    The limit is held to a calibrator that was chosen by labels of the kind it is judged by. For the
    right choice these are all train and calib debates, each left out once: of the two calib debates
    the choice is none, and that is shown too.
    """
    gold = fitted.select_source(CONVARG, fitted.pairs)
    single = fitted.select_source(
        CONVARG,
        preference_pairs(fitted.votes, fitted.comparisons, PairParams(keep_even_splits=True)),
    )
    ids = fitted.comparisons.loc[fitted.comparisons["source"] == CONVARG, "comparison_id"]
    votes = fitted.votes[fitted.votes["comparison_id"].isin(ids)]
    for asked, pairs, ceiling in (
        ("the known right choice", gold, gold_ceiling(votes, fitted.comparisons)),
        ("one vote", single, noise_ceiling(votes)),
    ):
        calibrator, report = calibrate(
            pairs,
            fitted.model,
            reward_model_label=f"{USED}, P({asked}): {fitted.model.weights_hash}",
            data_hash="",
            votes=VoteFacts(ceiling),
            record=looks.record,
        )
        if pairs is gold:
            assert calibrator.to_json() == fitted.calibrator.to_json(), (
                "the calibrator was chosen before the test was opened"
            )
        raw, mended = report.raw, report.calibrated
        _measures(
            f"P({asked}): raw, and by what the calib debates chose",
            report.method,
            raw,
            mended,
            ceiling,
        )
        print("\nCross-validated log loss on the calib debates: " + _losses(report.candidates))
        (out / f"reliability_{asked.replace(' ', '_')}.png").write_bytes(
            draw_png(chart_calibration(report))
        )
        if pairs is single:
            _judge_ece(
                mended,
                f"P({asked}), calibrated on the calib debates' votes as the pipeline does",
                limits,
            )
        else:
            _on_new_debates(fitted, gold, ceiling, limits, looks)


def _on_new_debates(
    fitted: FittedProject,
    gold: pd.DataFrame,
    ceiling: Interval | None,
    limits: Limits,
    looks: OpeningLog,
) -> None:
    """P(known right choice) by all train and calib debates, each as a new one: what the two calib
    debates cannot tell of it.
    """
    new = HeldOutDebates.from_project(fitted)
    margins, _ = new.predict_margins(fitted, *make_variants(fitted, {"train", "calib"})[USED])
    calibrator, losses = new.choose_calibrator(margins)
    test = open_test_split(
        gold,
        model=f"{USED}, calibrated on new debates: {fitted.model.weights_hash}",
        purpose="calibration report",
        record=looks.record,
    )
    of_test, prompts = margins_of(fitted.model, test), test["prompt_id"].to_numpy()
    stated, known = CALIBRATORS["none"](), np.ones(len(test))
    raw, mended = (
        calibration_metrics(
            by.transform(of_test), known, right=share_right(of_test, known), groups=prompts
        )
        for by in (stated, calibrator)
    )
    unknown = calibration_metrics(
        stated.transform(margins), np.ones(len(margins)), groups=new.debates
    )
    n = len(np.unique(new.debates))
    _measures(
        f"P(the known right choice): raw, and by {n} train and calib debates left out in turn",
        calibrator.name,
        raw,
        mended,
        ceiling,
    )
    print(
        f"\nOn the {n} debates left out, as stated: calibration slope {unknown.slope}, ECE without "
        f"its noise {unknown.ece_debiased}."
    )
    print(f"Log loss on {n} debates, calibrated by the other {n - 1}: " + _losses(losses))
    _judge_ece(
        mended,
        f"P(the known right choice), calibrated on the known right choices of {n} debates left out "
        "in turn",
        limits,
    )


def _measures(
    what: str,
    method: str,
    raw: CalibrationMetrics,
    mended: CalibrationMetrics,
    ceiling: Interval | None,
) -> None:
    rows = [
        (f"accuracy; its noise ceiling {ceiling}", raw.accuracy, mended.accuracy),
        ("ECE, equal mass", raw.ece_equal_mass, mended.ece_equal_mass),
        ("ECE, equal width", raw.ece_equal_width, mended.ece_equal_width),
        ("ECE without its noise", raw.ece_debiased, mended.ece_debiased),
        ("Brier score", raw.brier, mended.brier),
        ("log loss", raw.log_loss, mended.log_loss),
        ("calibration slope", raw.slope, mended.slope),
    ]
    title = f"Calibration on convarg's test debates, {raw.n} pairs, {what} (95 % over prompts)"
    print_table(title, ("measure", "raw", f"calibrated: {method}"), rows)


def _judge_ece(measured: CalibrationMetrics, what: str, limits: Limits) -> None:
    found = measured.ece_debiased
    limits.check(
        found is not None and found.value <= BAR_ECE,
        f"frozen encoder, {what}: ECE without its noise {found}, at most {BAR_ECE} wanted",
    )


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
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="folder for the pictures; default a temporary one that stays",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=None,
        help="folder of embeddings kept between runs, where time is not measured",
    )
    parser.add_argument(
        "--only",
        default="time,table,days,choices",
        help="sections: time, table, days, choices (one debate left out at a time)",
    )
    add_registry_option(parser)
    given = parser.parse_args()
    sections, limits = set(given.only.split(",")), Limits()
    if unknown := sections - SECTIONS:
        parser.error(
            f"--only: {', '.join(sorted(unknown))} is no section; there are "
            f"{', '.join(sorted(SECTIONS))}"
        )
    warnings.filterwarnings("ignore")
    missing = [name for name in FILES.values() if not (given.data / name).exists()]
    if missing:
        lacking = (
            f"{given.data} lacks {' and '.join(missing)}. The real data is no part of this "
            "repository; name its folder with --data"
        )
        limits.skip(f"time and accuracy on real votes, beside their ceilings: {lacking}")
        return limits.print_summary()
    looks = OpeningLog(given.registry)
    out = given.out or Path(tempfile.mkdtemp(prefix="bench_real_"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if "time" in sections:
            fitted = timed(given.data, Path(folder), limits)
        else:
            fitted = from_raw_files(
                given.data,
                Path(folder) / "home",
                given.cache or Path(folder) / "embeddings",
                StageTimes(),
            )
            limits.skip("time: --only leaves it out")
        if "choices" in sections:
            compare_choices(fitted, limits)
        # The days come last: nothing they say of the test debates can have shaped the model that is
        # judged on them.
        if "table" in sections:
            tables(fitted, out, limits, looks)
        else:
            limits.skip("what the test debates say: --only leaves the table out")
        if "days" in sections:
            comparisons = fitted.comparisons[fitted.comparisons["source"] == CONVARG]
            votes = fitted.votes[fitted.votes["comparison_id"].isin(comparisons["comparison_id"])]
            run_real_days(comparisons, votes, fitted.model.encoder, out, looks.record)
    looks.print_openings()
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
