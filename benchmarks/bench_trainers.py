"""Fine-tuned reward models: how good, at what cost, how fast they score; and whether two processes
learn what one does. Prints tables.

    python benchmarks/bench_trainers.py [--part quality,refit,cost,scoring,gloo,cuda,debates]
        [--data ../shared/data] [--runs FOLDER] [--registry FOLDER] [--seeds 3] [--variants 10]

quality   convarg's test debates, opened once for each model when all are trained: accuracy against
          the known right choice and debiased ECE, by seed and as a mean of the seeds, by kinds of
          labels: those that `debates` chose, and soft and majority labels of the same pairs, those
          with a majority. Learnt from the eight train debates, the calibrator fitted on the two
          calib debates.
cost      CPU seconds until the calib debates are predicted with THRESHOLD accuracy in two
          evaluations in a row, EVERY CPU seconds apart: the shared-text trainer beside TRL's
          defaults, on the same pairs with the same labels, encoder and head, one thread each. Who
          is not there after AT_MOST CPU seconds is stopped: TRL counts as if it had arrived then,
          ours as if it never did.
scoring   texts a CPU second, beside a loop padded to 512 tokens.
gloo      one and two processes on a tiny model: the largest difference of their weights.
refit     what `debates` prefer, learnt anew from all ten debates that hold no test pair: calibrated
          on what models of the other debates said of each (Platt 1999, section 2.2), then the test
          debates, once for each model. By seed, as a mean of the seeds, and of all pairs beside a
          head on the frozen encoder; that mean is held to the limits, with its interval over
          prompts.
debates   not by default: the train and calib debates in FOLDS parts, each predicted by models of
          the others; what CHOSEN is chosen by.
cuda      TRL and ours on a GPU, for a small causal backbone made from configuration.

The real votes are in --data; what needs them is skipped where they are not. A finished training
stays in --runs and is not done again while the code of the reward models is the same. --registry
keeps who opened the test split.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import silence_telemetry  # noqa: E402

silence_telemetry()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.bench_real import FILES  # noqa: E402
from benchmarks.measurement import Limits, print_table  # noqa: E402
from benchmarks.opening_log import OpeningLog, add_registry_option  # noqa: E402
from benchmarks.real_choices import HeldOutDebates  # noqa: E402
from benchmarks.real_debates import (  # noqa: E402
    ALL,
    ANNOTATORS,
    HEAD,
    LABELS,
    MAJORITY,
    MEMBERS,
    RECIPE,
    SOFT,
    VARIANTS,
    WITH_HEAD,
    ConvargData,
    MeanModel,
    compare_variants,
    fit_head_on,
    format_range,
    load_run,
    predict_held_out,
    save_all_ten,
    train_on_all_ten,
)
from benchmarks.trainer_runs import TrainingRun, TrainingSpec, load_or_run  # noqa: E402
from rlhf_pipeline.calibration import (  # noqa: E402
    calibration_metrics,
    ece_debiased,
    fit_calibrator,
)
from rlhf_pipeline.calibration.metrics import share_right  # noqa: E402
from rlhf_pipeline.reward_model import TransformerRewardModel, preference_probability  # noqa: E402
from rlhf_pipeline.reward_model.base import margins_of  # noqa: E402
from rlhf_pipeline.votes import interval_of_mean  # noqa: E402

Floats = npt.NDArray[np.float64]

PARTS = ("quality", "refit", "cost", "scoring", "gloo", "cuda")
ON_VOTES = ("debates", "quality", "refit", "cost", "scoring")
BAR_ACCURACY = 0.84
BAR_ECE = 0.05
BAR_COST = 1 / 3
BAR_SCORING = 4.0
BAR_SAME = 1e-3
BAR_GLOO = 1e-4
# of single models: by `--part debates`, the highest accuracy on debates that were left out, and the
# least log loss
CHOSEN = ANNOTATORS
# Learnt anew from ten debates. Of all that takes 240 CPU s at most left-out debates prefer BESIDE,
# which was named before a test pair was opened for it; before it was asked of them, ALL, the mean
# of three seeds.
REFITTED = (ALL, CHOSEN)
JUDGED = tuple(dict.fromkeys((CHOSEN, SOFT, MAJORITY)))
# Thresholds that were tried: 0.73, as much as preferring the longer text finds on the calib debates
# (0.731), which either trainer had learnt at its first evaluation; 0.76, which neither held twice
# in a row, TRL stopped after 182 CPU s and ours at its end. 0.75 is the highest hundredth that TRL
# was seen to hold there (after 110 s, seed 0, on the known right choices). It was set by the calib
# debates alone.
THRESHOLD = 0.75
EVERY = 6.0
AT_MOST = 120.0
# Both learn the same labels: of each comparison the side that most votes took, as if it were one
# vote. Ours takes one vote for four to one and no certainty; TRL's trainer knows certainties alone.
OURS: dict[str, Any] = RECIPE | {
    "trainer": "shared_text",
    "label": "votes",
    "loss": "soft",
    "smoothing": 1 / 3,
}
# TRL 1.16's and transformers 5.23's defaults: batches of 8 pairs, 3 epochs, 1e-4 falling linearly,
# gradient checkpointing, bfloat16.
TRL: dict[str, Any] = {
    "trainer": "trl",
    "pairs_per_batch": 8,
    "epochs": 3,
    "learning_rate": 1e-4,
    "warmup_share": 0.0,
    "gradient_checkpointing": True,
    "label": "majority",
    "loss": "bradley_terry",
}


def quality(real: ConvargData, seeds: int, limits: Limits) -> None:
    runs: dict[str, list[TrainingRun]] = {}
    members = {name: MEMBERS.get(name, (name,)) for name in JUDGED}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for label in dict.fromkeys(label for of in members.values() for label in of):
            specs = [
                TrainingSpec(
                    RECIPE | LABELS[label] | {"seed": seed},
                    real.train_pairs(label),
                    real.calib,
                    None,
                    30.0,
                )
                for seed in range(seeds)
            ]
            runs[label] = list(pool.map(lambda spec: load_or_run(spec, real.folder), specs))
            print(
                f"trained by {label}: {format_range([one.cpu_s for one in runs[label]], 0)} CPU s",
                flush=True,
            )
    calib = pd.read_parquet(real.calib)
    cpu_s = {
        name: [sum(runs[label][seed].cpu_s for label in of) for seed in range(seeds)]
        for name, of in members.items()
    }
    models: dict[str, list[Any]] = {}
    for name, of in members.items():
        each = [[load_run(runs[label][seed]) for label in of] for seed in range(seeds)]
        models[name] = [one[0] if len(one) == 1 else MeanModel(one) for one in each]
    judged = {
        name: [_calibrated(model, calib) for model in ([*of, MeanModel(of)] if seeds > 1 else of)]
        for name, of in models.items()
    }
    rows: list[tuple[object, ...]] = []
    single: dict[str, list[dict[str, Any]]] = {}
    for name, of in judged.items():
        found = []
        for model, calibrator in of:
            test = real.open_test(f"{name}: {model.weights_hash}", "quality of fine-tuned models")
            found.append(
                _measured(model, calibrator, test)
                | {"calib": float((margins_of(model, calib) > 0).mean())}
            )
        single[name] = found[:seeds]
        rows.append(
            (
                name,
                *(format_range([one[key] for one in single[name]]) for key in MEASURES),
                format_range(cpu_s[name], 0),
            )
        )
        rows += [
            (f"{name}, mean of the {seeds} scores", *(f"{one[key]:.3f}" for key in MEASURES), "")
            for one in found[seeds:]
        ]
    longer = np.sign(test["chosen"].str.len() - test["rejected"].str.len())
    rows.append(("longer wins", f"{(0.5 + 0.5 * longer).mean():.3f}", "", "", "", "", ""))
    rows.append(("one vote: the ceiling", real.ceiling, "", "", "", "", ""))
    pairs = {label: len(pd.read_parquet(real.train_pairs(label))) for label in runs}
    print("\nTraining pairs: " + ", ".join(f"{name} {n:,}" for name, n in pairs.items()))
    print_table(
        f"Fine-tuned MiniLM on convarg's test debates, {len(test)} pairs of "
        f"{test['prompt_id'].nunique()} prompts; {seeds} seeds: median [range]",
        (
            "labels",
            "accuracy (its ceiling below)",
            "debiased ECE, raw",
            "calibrated",
            "log loss, calibrated",
            "calib debates",
            "CPU s of one",
        ),
        rows,
    )
    print(
        "\nOf single models chosen by leaving debates out (`--part debates`), held to no limit "
        f"here but in `--part refit`: {CHOSEN}"
    )
    model, calibrator = judged[CHOSEN][0]
    margins = _sided(test) * margins_of(model, test)
    is_a = (test["chosen_side"] == "a").to_numpy(dtype=np.float64)
    metrics = calibration_metrics(
        calibrator.transform(margins),
        is_a,
        right=share_right(margins, is_a),
        groups=test["prompt_id"].to_numpy(),
    )
    print(
        f"\nSeed 0 of it, with intervals over the 4 test prompts: accuracy {metrics.accuracy}, "
        f"debiased ECE {metrics.ece_debiased}; ceiling {real.ceiling}"
    )
    votes, majority = ([one["accuracy"] for one in single[name]] for name in (SOFT, MAJORITY))
    limits.check(
        np.median(votes) >= np.median(majority),
        f"of the same {pairs[SOFT]:,} pairs: soft labels {format_range(votes)}, majority labels "
        f"{format_range(majority)}; soft at least as good wanted; ceiling {real.ceiling}",
    )


def refit(real: ConvargData, seeds: int, limits: Limits) -> None:
    """Held to the limits is BESIDE."""
    new = predict_held_out(real, seeds, {label: (label, {}) for label in REFITTED})
    rows: list[tuple[object, ...]] = []
    held: dict[str, dict[str, Any]] = {}
    for label in REFITTED:
        runs = train_on_all_ten(real, seeds, label)
        single: list[Any] = [load_run(one) for one in runs]
        cpu_s = sum(one.cpu_s for one in runs)
        means = (
            [
                (
                    f"{label}, mean of the {seeds} scores",
                    MeanModel(single),
                    new.margins[label].mean(axis=0),
                    cpu_s,
                )
            ]
            if seeds > 1
            else []
        )
        if label == ALL:
            head, head_s = fit_head_on(save_all_ten(real, ALL), ALL)
            means += [
                (HEAD, head, new.margins[HEAD][0], head_s),
                (WITH_HEAD, MeanModel([*single, head]), new.margins[WITH_HEAD][0], cpu_s + head_s),
            ]
        models = [
            *((label, *one) for one in zip(single, new.margins[label], strict=True)),
            *(one[:3] for one in means),
        ]
        found = []
        for name, model, of_left_out in models:
            calibrator, _ = HeldOutDebates(new.judged, new.debate).choose_calibrator(of_left_out)
            test = real.open_test(
                f"{name}, ten debates: {model.weights_hash}",
                "quality of fine-tuned models that learnt from ten debates",
            )
            found.append(
                _measured(model, calibrator, test) | {"calib": float((of_left_out > 0).mean())}
            )
            held[name] = found[-1]
        rows.append(
            (
                label,
                *(format_range([one[key] for one in found[:seeds]]) for key in MEASURES),
                format_range([one.cpu_s for one in runs], 0),
            )
        )
        rows += [
            (name, *(f"{one[key]:.3f}" for key in MEASURES), f"{spent:.0f}")
            for (name, _, _, spent), one in zip(means, found[seeds:], strict=True)
        ]
    rows.append(("one vote: the ceiling", real.ceiling, "", "", "", "", ""))
    print_table(
        f"Fine-tuned MiniLM, learnt from ten debates, on convarg's test debates, {len(test)} "
        f"pairs; {seeds} seeds: median [range]",
        (
            "labels",
            "accuracy (its ceiling below)",
            "debiased ECE, raw",
            "calibrated",
            "log loss, calibrated",
            "the ten debates, left out",
            "CPU s",
        ),
        rows,
    )
    one, what = held[WITH_HEAD], f"{WITH_HEAD}, ten debates, {seeds} seeds"
    limits.check(
        one["accuracy"] >= BAR_ACCURACY,
        f"{what}: test accuracy {one['over_prompts']}, at least {BAR_ACCURACY} wanted; ceiling "
        f"{real.ceiling}",
    )
    limits.check(
        one["calibrated"] <= BAR_ECE,
        f"{what}: debiased ECE {one['calibrated']:.3f} after calibration, at most {BAR_ECE} wanted",
    )


MEASURES = ("accuracy", "raw", "calibrated", "log_loss", "calib")


def _calibrated(model: Any, calib: pd.DataFrame) -> tuple[Any, Any]:
    return model, fit_calibrator(calib, model)[0]


def _sided(pairs: pd.DataFrame) -> Floats:
    """Turns chosen - rejected into a - b."""
    return np.where(pairs["chosen_side"] == "a", 1.0, -1.0)


def _measured(model: Any, calibrator: Any, test: pd.DataFrame) -> dict[str, Any]:
    margins, sign = margins_of(model, test), _sided(test)
    is_a = (test["chosen_side"] == "a").to_numpy(dtype=np.float64)
    p = calibrator.transform(sign * margins)
    return {
        "accuracy": float((margins > 0).mean()),
        "over_prompts": interval_of_mean(margins > 0, groups=test["prompt_id"]),
        "raw": ece_debiased(preference_probability(sign * margins), is_a),
        "calibrated": ece_debiased(p, is_a),
        "log_loss": float(-np.log(np.where(is_a == 1, p, 1 - p)).mean()),
    }


def cost(real: ConvargData, seeds: int, limits: Limits) -> None:
    found: dict[str, list[TrainingRun]] = {"shared text": [], "TRL, its defaults": []}
    for seed in range(seeds):
        for name, params in zip(found, (OURS, TRL), strict=True):
            one = load_or_run(
                TrainingSpec(
                    params | {"seed": seed}, real.one_vote, real.calib, THRESHOLD, EVERY, AT_MOST
                ),
                real.folder,
            )
            found[name].append(one)
            last = f"calib {one.curve[-1][1]:.3f}" if one.curve else "never judged"
            print(
                f"seed {seed}, {name}: {one.to_quality_s:.0f} CPU s, reached: {one.reached}, "
                f"{last}, {one.peak_gb:.2f} GB",
                flush=True,
            )

    def on_test(name: str, one: TrainingRun) -> float:
        model = load_run(one)
        test = real.open_test(
            f"{name}, until {THRESHOLD} of calib: {model.weights_hash}",
            "quality reached at that cost",
        )
        return float((margins_of(model, test) > 0).mean())

    rows = [
        (
            name,
            format_range([one.to_quality_s for one in of], 0),
            f"{sum(one.reached for one in of)} of {seeds}",
            format_range([one.curve[-1][1] for one in of]),
            format_range([one.record["n_pairs_seen"] for one in of], 0),
            format_range([one.record["n_texts_encoded"] for one in of], 0),
            format_range([one.peak_gb for one in of], 2),
            format_range([on_test(name, one) for one in of]),
        )
        for name, of in found.items()
    ]
    print_table(
        f"CPU seconds until {THRESHOLD} of the calib pairs are right in two evaluations in a row, "
        f"every {EVERY:.0f} CPU s, stopped after {AT_MOST:.0f}; {seeds} seeds",
        (
            "trainer",
            "CPU s",
            "arrived",
            "calib debates then",
            "pairs learnt from",
            "texts encoded",
            "peak memory, GB",
            f"test accuracy then; ceiling {real.ceiling}",
        ),
        rows,
    )
    ours, theirs = found.values()
    # A run of TRL's that was stopped below the threshold would have taken longer still: the share
    # is an upper bound then. One of ours that never arrived counts as if it took forever.
    n_short = sum(not one.reached for one in theirs)
    bound = (
        f" at most: {n_short} of TRL's {seeds} runs were stopped short of the threshold"
        if n_short
        else ""
    )
    shares = [
        a.to_quality_s / b.to_quality_s if a.reached else np.inf
        for a, b in zip(ours, theirs, strict=True)
    ]
    limits.check(
        np.median(shares) <= BAR_COST,
        f"shared text takes {format_range(shares, 2)} of TRL's CPU seconds, {BAR_COST:.2f} or less "
        f"wanted{bound}",
    )
    memory = [a.peak_gb / b.peak_gb for a, b in zip(ours, theirs, strict=True)]
    limits.check(
        np.median(memory) <= 1,
        f"its peak memory until then is {format_range(memory, 2)} of TRL's, at most 1 wanted",
    )


def scoring(real: ConvargData, seeds: int, limits: Limits) -> None:
    """The package's encoder with a new head; texts drawn from the train and calib debates."""
    import torch

    from rlhf_pipeline.reward_model.network import build_network, pad

    torch.set_num_threads(1)
    pairs = pd.concat([pd.read_parquet(path) for path in (real.train_pairs(SOFT), real.calib)])
    texts = sorted(
        {
            *zip(pairs["prompt"], pairs["chosen"], strict=True),
            *zip(pairs["prompt"], pairs["rejected"], strict=True),
        }
    )
    model = TransformerRewardModel()
    model.networks_ = [build_network(model.encoder.folder, model.params, seed=0)]
    network, reader = model.networks_[0], model.reader
    model.score(["warm"], ["up"])
    rows = []
    ratios = []
    differences = []
    for seed in range(seeds):
        drawn = [
            texts[i] for i in np.random.default_rng(seed).choice(len(texts), 64, replace=False)
        ]
        prompts = [prompt for prompt, _ in drawn]
        completions = [completion for _, completion in drawn]
        started = time.process_time()
        fast = model.score(prompts, completions)
        fast_s = time.process_time() - started
        started = time.process_time()
        slow = np.zeros(len(drawn))
        token_ids, _ = reader.encode([prompt[-600:] for prompt in prompts], completions)
        with torch.inference_mode():
            for at in range(0, len(drawn), 32):
                ids, mask = pad([*token_ids[at : at + 32], [reader.pad_id] * 512], reader.pad_id)
                slow[at : at + 32] = network(ids[:-1], mask[:-1]).logits.squeeze(-1).numpy()
        slow_s = time.process_time() - started
        ratios.append(slow_s / fast_s)
        differences.append(float(np.abs(fast - (slow - model.score_mean_)).max()))
        rows.append(
            (
                seed,
                f"{len(drawn) / fast_s:.1f}",
                f"{len(drawn) / slow_s:.1f}",
                f"{ratios[-1]:.1f}",
                f"{differences[-1]:.1e}",
            )
        )
    print_table(
        "Scoring 64 distinct texts, one thread, float32",
        ("seed", "ours: texts a CPU s", "padded to 512", "ratio", "largest difference"),
        rows,
    )
    limits.check(
        np.median(ratios) >= BAR_SCORING,
        f"scoring is {format_range(ratios, 1)} times as fast, at least {BAR_SCORING:.0f} wanted",
    )
    limits.check(
        max(differences) <= BAR_SAME,
        f"scores differ by {max(differences):.1e} at most, {BAR_SAME} allowed",
    )


def gloo(limits: Limits, seeds: int) -> None:
    from torch.multiprocessing import spawn

    from tests.training.test_trainers import FOUR, flat, free_port, model_on, train_as
    from tests.unit.reward_model.tiny_networks import save_tiny_bert, word_pairs

    rows, largest = [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            bert = save_tiny_bert(Path(folder) / "bert", seed=seed)
            spawn(train_as, args=(2, free_port(), str(bert), f"{folder}/learnt"), nprocs=2)
            two = np.load(f"{folder}/learnt-0.npz")["weights"]
            one = flat(model_on(bert, **FOUR).fit(word_pairs()))
            other = flat(model_on(bert, **FOUR, seed=1).fit(word_pairs()))
        largest.append(float(np.abs(one - two).max()))
        rows.append((seed, len(one), f"{largest[-1]:.1e}", f"{np.abs(one - other).max():.1e}"))
    print_table(
        "One process and two (gloo), the same data",
        (
            "seed",
            "weights",
            "largest difference of a weight",
            "the same with another order of the data",
        ),
        rows,
    )
    limits.check(
        max(largest) <= BAR_GLOO,
        f"two processes' weights are within {max(largest):.1e} of one's, {BAR_GLOO} allowed",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "data",
        help="folder with pairs.parquet and votes.parquet",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=None,
        help="folder of finished trainings; default a temporary one that stays",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--variants",
        type=int,
        default=len(VARIANTS),
        help="debates: only so many of the variants, the first ones",
    )
    add_registry_option(parser)
    given = parser.parse_args()
    parts, limits = given.part.split(","), Limits()
    if unknown := set(parts) - {*PARTS, *ON_VOTES}:
        parser.error(
            f"--part: {', '.join(sorted(unknown))} is none; there are "
            f"{', '.join([*PARTS, 'debates'])}"
        )
    warnings.filterwarnings("ignore")
    on_votes = [part for part in parts if part in ON_VOTES]
    if on_votes and all((given.data / name).exists() for name in FILES.values()):
        runs = given.runs or Path(tempfile.mkdtemp(prefix="bench_trainers_"))
        runs.mkdir(parents=True, exist_ok=True)
        looks = OpeningLog(given.registry)
        real = ConvargData(given.data, runs.absolute(), looks)
        if "debates" in on_votes:
            compare_variants(real, given.seeds, given.variants)
        for part, measure in {
            "quality": quality,
            "refit": refit,
            "cost": cost,
            "scoring": scoring,
        }.items():
            if part in on_votes:
                measure(real, given.seeds, limits)
        looks.print_openings()
    elif on_votes:
        limits.skip(
            f"{', '.join(on_votes)}: {given.data} lacks the real votes, which are no part of this "
            "repository; name their folder with --data"
        )
    if "gloo" in parts:
        gloo(limits, given.seeds)
    if "cuda" in parts:
        from benchmarks.cuda_trainers import measure_cuda

        measure_cuda(limits, given.seeds)
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
