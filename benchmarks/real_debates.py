"""convarg as fine-tuned models learn it, and what is chosen on its train and calib debates, left
out in turn: labels, recipes, ensembles.

Knows trainings (`trainer_runs`) and the real votes; the one way to a test pair is
`ConvargData.open_test`, on record.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.bench_real import CONVARG, FILES, RLHF
from benchmarks.measurement import print_table
from benchmarks.opening_log import OpeningLog
from benchmarks.trainer_runs import TrainingRun, TrainingSpec, load_or_run
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.config import Settings
from rlhf_pipeline.frames import COMPARISONS, concat
from rlhf_pipeline.reward_model import (
    PRESETS,
    EmbeddingRewardModel,
    TransformerRewardModel,
    load_reward_model,
    reward_model_params,
)
from rlhf_pipeline.reward_model.base import margins_of
from rlhf_pipeline.reward_model.losses import join_soft_labels
from rlhf_pipeline.votes import (
    PairParams,
    gold_ceiling,
    gold_pairs,
    interval_of_mean,
    joint_model,
    open_test_split,
    preference_pairs,
)
from rlhf_pipeline.votes.counting import counting

Floats = npt.NDArray[np.float64]

FOLDS = 3  # of three or four debates each
INFINITE_S = 1e9  # a training that has learnt from the calib debates is not judged on them
# A training that is to be held to the limit takes no longer: what fine-tuning was seen to need when
# the limit was set.
AT_MOST_CPU_S = 240.0
# What training takes; `--part debates` compares other recipes, without a test pair.
RECIPE: dict[str, Any] = {
    name: PRESETS["best"][name]
    for name in ("steps", "texts_per_batch", "texts_per_prompt", "frozen_layers", "learning_rate")
}
SOFT = "shares of votes"
ALL = "shares of votes, all pairs"
MAJORITY = "majority as if certain"
ANNOTATORS = "the annotator model's labels"
KNOWN, CERTAIN = "known right choice with the votes' shares", "known right choice as if certain"
LABELS: dict[str, dict[str, Any]] = {
    SOFT: {"label": "votes", "loss": "soft"},
    ALL: {"label": "votes", "loss": "soft"},
    ANNOTATORS: {"label": "annotators", "loss": "soft"},
    MAJORITY: {"label": "majority", "loss": "bradley_terry"},
    KNOWN: {"label": "votes", "loss": "soft"},
    CERTAIN: {"label": "majority", "loss": "bradley_terry"},
}
# Models whose score is the mean of others', of the same seed: what differs is what they learnt.
MIXED = "one of each of the votes' labels"
MEMBERS: dict[str, tuple[str, ...]] = {MIXED: (SOFT, ALL, ANNOTATORS, MAJORITY)}
# A head on the encoder as it is, beside the seeds of what learnt the same: it sees sentences and
# length, and errs elsewhere.
HEAD = f"{ALL}, head on the frozen encoder"
WITH_HEAD = f"{ALL}, mean of the seeds' and the head's scores"
# By name: what is learnt, and what differs from the recipe.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {label: (label, {}) for label in LABELS} | {
    "160 steps": (SOFT, {"steps": 160}),
    f"{ALL}, 160 steps": (ALL, {"steps": 160}),
    f"{ALL}, one prompt a batch, nothing frozen, 160 steps": (
        ALL,
        {"steps": 160, "texts_per_prompt": 12, "frozen_layers": 0},
    ),
    "nothing frozen": (SOFT, {"frozen_layers": 0}),
    "half of the layers frozen": (SOFT, {"frozen_layers": 3}),
    "one prompt a batch": (SOFT, {"texts_per_prompt": 12}),
    "half the learning rate": (SOFT, {"learning_rate": 5e-5}),
    "head by a probe": (SOFT, {"start_from_probe": True}),
}


class ConvargData:
    """convarg's comparisons and votes, and files of pairs to train and to judge on. The test pairs
    come through one door, on record.
    """

    def __init__(self, data: Path, runs: Path, looks: OpeningLog) -> None:
        self.looks = looks
        home = runs / "home"
        store = (
            Workspace(Settings(home=home, project="real")).store
            if (home / "imported").exists()
            else _import_convarg(data, home)
        )
        comparisons = concat(store.comparisons.stream(), COMPARISONS)
        self.comparisons = comparisons[comparisons["source"] == CONVARG].reset_index(drop=True)
        self.votes = counting(
            store.votes.log(comparison_ids=self.comparisons["comparison_id"].tolist())
        )
        self.gold = gold_pairs(self.comparisons)
        self.folder = runs
        train = label_pairs(self.comparisons, self.votes, SOFT)
        self.one_vote = self.save_pairs(
            "one-vote", train[train["split"] == "train"].assign(n_votes=1, agreement=1.0, n_ties=0)
        )
        self.calib = self.save_pairs("calib", self.gold[self.gold["split"] == "calib"])
        self._train: dict[str, str] = {}

    def save_pairs(self, name: str, pairs: pd.DataFrame) -> str:
        path = self.folder / f"{name}.parquet"
        pairs.reset_index(drop=True).to_parquet(path)
        return str(path)

    def train_pairs(self, label: str) -> str:
        """What each of LABELS learns from. The annotator model knows the votes of the train split
        alone.
        """
        if label not in self._train:
            of_train = self.comparisons[self.comparisons["split"] == "train"]
            self._train[label] = self.save_pairs(
                f"train-{list(LABELS).index(label)}", label_pairs(of_train, self.votes, label)
            )
        return self._train[label]

    def open_test(self, model: str, purpose: str) -> pd.DataFrame:
        """The test pairs, for this model; the same for every one."""
        return open_test_split(self.gold, model=model, purpose=purpose, record=self.looks.record)

    @property
    def ceiling(self) -> str:
        """How often one vote on the test debates is the known right choice, with its interval:
        beside every accuracy on these.
        """
        of_test = self.comparisons.loc[self.comparisons["split"] == "test", "comparison_id"]
        return str(
            gold_ceiling(self.votes[self.votes["comparison_id"].isin(of_test)], self.comparisons)
        )


def _import_convarg(data: Path, home: Path) -> Any:
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
            command,
            env=os.environ | {"RLHF_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"rlhf import {kind} failed:\n{done.stdout}{done.stderr}")
    (home / "imported").touch()
    return Workspace(Settings(home=home, project="real")).store


def label_pairs(comparisons: pd.DataFrame, votes: pd.DataFrame, label: str) -> pd.DataFrame:
    """The pairs to learn from by a label: those with a majority, with a known right choice, or all,
    evenly split ones and ties as halves.

    What the annotator model says of them rests on the votes on these comparisons alone.
    """
    mine = votes[votes["comparison_id"].isin(comparisons["comparison_id"])]
    sided = preference_pairs(mine, comparisons)
    if label in (SOFT, MAJORITY):
        return sided
    if label in (KNOWN, CERTAIN):
        return gold_pairs(comparisons, sided)
    voted = preference_pairs(
        mine, comparisons, PairParams(keep_even_splits=True, keep_only_ties=True)
    )
    return (
        join_soft_labels(voted, joint_model(mine, comparisons).labels)
        if label == ANNOTATORS
        else voted
    )


class MeanModel:
    """Fitted models whose mean is the score: what `n_members` fits, put together from single
    runs.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = models

    @property
    def weights_hash(self) -> str:
        return "+".join(model.weights_hash[:12] for model in self.models)

    def score(self, prompts: Any, completions: Any, *, progress: Any = None) -> Floats:
        return np.mean([model.score(prompts, completions) for model in self.models], axis=0)


def load_run(one: TrainingRun) -> TransformerRewardModel:
    model = load_reward_model(Path(one.folder))
    assert isinstance(model, TransformerRewardModel)
    return model


def format_range(values: Sequence[float], digits: int = 3) -> str:
    return f"{np.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


@dataclass(frozen=True)
class HeldOutMargins:
    """The pairs of the ten debates that hold no test pair, and what models of the other debates
    said of each.

    `margins` are (seeds, pairs) toward the right choice, `cpu_s` the seconds of one model, both by
    name.
    """

    judged: pd.DataFrame
    debate: "pd.Series[str]"
    margins: dict[str, Floats]
    cpu_s: dict[str, float]

    @property
    def groups(self) -> npt.NDArray[np.object_]:
        return self.judged["comparison_id"].map(self.debate).to_numpy(dtype=object)


def fit_head_on(pairs: str, label: str) -> tuple[EmbeddingRewardModel, float]:
    """A head on the frozen encoder that learnt these pairs, and its CPU seconds, those of embedding
    every text with them.
    """
    began = time.process_time()
    model = EmbeddingRewardModel(reward_model_params(**LABELS[label]).kind_params()).fit(
        pd.read_parquet(pairs)
    )
    return model, time.process_time() - began


def predict_held_out(
    real: ConvargData, seeds: int, variants: dict[str, tuple[str, dict[str, Any]]]
) -> HeldOutMargins:
    """FOLDS parts of the debates in turn. A debate's own votes teach nothing about it: the
    annotator model is fitted without them too.

    Where ALL is among the variants, HEAD has one row of margins, and BESIDE its mean with those of
    all seeds.
    """
    comparisons = real.comparisons[real.comparisons["split"] != "test"]
    debate = comparisons.set_index("comparison_id")["split_group"]
    fold = {name: i % FOLDS for i, name in enumerate(sorted(debate.unique()))}
    gold = real.gold[real.gold["split"] != "test"]
    part = gold["comparison_id"].map(debate).map(fold).to_numpy()
    specs: dict[tuple[str, int, int], TrainingSpec] = {}
    for k in range(FOLDS):
        inside = comparisons[comparisons["split_group"].map(fold) != k]
        held_out = real.save_pairs(f"debates-held-out-{k}", gold[part == k])
        used = dict.fromkeys(label for label, _ in variants.values())
        number = list(LABELS).index  # whoever asks for fewer labels finds the same trainings
        train = {
            label: real.save_pairs(
                f"debates-train-{k}-{number(label)}", label_pairs(inside, real.votes, label)
            )
            for label in used
        }
        for name, (label, changes) in variants.items():
            for seed in range(seeds):
                specs[name, seed, k] = TrainingSpec(
                    RECIPE | LABELS[label] | changes | {"seed": seed}, train[label], held_out
                )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = dict(
            zip(
                specs,
                pool.map(lambda spec: load_or_run(spec, real.folder), specs.values()),
                strict=True,
            )
        )
    margins = {name: np.full((seeds, len(gold)), np.nan) for name in variants}
    cpu_s = dict.fromkeys(variants, 0.0)
    for (name, seed, k), one in runs.items():
        margins[name][seed, part == k] = margins_of(load_run(one), gold[part == k])
        cpu_s[name] += one.cpu_s / seeds / FOLDS
    if ALL in variants:
        margins[HEAD], cpu_s[HEAD] = np.full((1, len(gold)), np.nan), 0.0
        for k in range(FOLDS):
            head, spent_s = fit_head_on(
                next(spec.train for (name, _, of), spec in specs.items() if (name, of) == (ALL, k)),
                ALL,
            )
            margins[HEAD][0, part == k] = margins_of(head, gold[part == k])
            cpu_s[HEAD] += spent_s / FOLDS
        margins[WITH_HEAD] = np.concatenate([margins[ALL], margins[HEAD]]).mean(
            axis=0, keepdims=True
        )
        cpu_s[WITH_HEAD] = seeds * cpu_s[ALL] + cpu_s[HEAD]
    return HeldOutMargins(gold, debate, margins, cpu_s)


def save_all_ten(real: ConvargData, label: str) -> str:
    """The pairs of all debates that hold no test pair, by a kind of labels. The annotator model
    knows their votes alone.
    """
    of_ten = real.comparisons[real.comparisons["split"] != "test"]
    return real.save_pairs(
        f"ten-{list(LABELS).index(label)}", label_pairs(of_ten, real.votes, label)
    )


def train_on_all_ten(real: ConvargData, seeds: int, label: str) -> list[TrainingRun]:
    """By seed, what learnt a kind of labels from all ten."""
    pairs = save_all_ten(real, label)
    specs = [
        TrainingSpec(
            RECIPE | LABELS[label] | {"seed": seed}, pairs, real.calib, every_cpu_s=INFINITE_S
        )
        for seed in range(seeds)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda spec: load_or_run(spec, real.folder), specs))


def compare_variants(real: ConvargData, seeds: int, n_variants: int) -> None:
    """Of the first `n_variants`, and of means of them."""
    variants = dict(list(VARIANTS.items())[:n_variants])
    found = predict_held_out(real, seeds, variants)
    gold = found.judged
    groups = found.groups
    margins = found.margins
    cpu_s = found.cpu_s
    for name, members in MEMBERS.items():
        if set(members) <= set(variants):
            margins[name] = np.mean([margins[member] for member in members], axis=0)
            cpu_s[name] = sum(cpu_s[member] for member in members)
    if seeds > 1:
        for name in [name for name, of in margins.items() if len(of) > 1]:
            margins[f"{name}, mean of the {seeds} seeds' scores"] = margins[name].mean(
                axis=0, keepdims=True
            )
            cpu_s[f"{name}, mean of the {seeds} seeds' scores"] = seeds * cpu_s[name]
    # of the seeds, for each pair
    right = {name: (of > 0).mean(axis=0) for name, of in margins.items()}
    beside = right[next(iter(variants))]
    rows: list[tuple[object, ...]] = [
        (
            name,
            interval_of_mean(right[name], groups=groups),
            format_range([float((one > 0).mean()) for one in of]) if len(of) > 1 else "",
            ""
            if right[name] is beside
            else interval_of_mean(100 * (right[name] - beside), groups=groups),
            f"{np.logaddexp(0, -of).mean():.3f}",
            f"{cpu_s[name]:.0f}",
        )
        for name, of in margins.items()
    ]
    longer = np.sign(gold["chosen"].str.len() - gold["rejected"].str.len())
    rows.append(
        ("longer wins", interval_of_mean(0.5 + 0.5 * longer, groups=groups), "", "", "", "")
    )
    mine = real.votes[real.votes["comparison_id"].isin(gold["comparison_id"])]
    rows.append(("one vote: the ceiling", gold_ceiling(mine, real.comparisons), "", "", "", ""))
    print_table(
        f"Train and calib debates, {FOLDS} parts left out in turn, {len(gold)} pairs (95 % over "
        f"{len(np.unique(groups))} debates), mean of {seeds} seeds",
        (
            "training",
            "accuracy (its ceiling below)",
            "by seed",
            "points beside the first",
            "log loss",
            "CPU s of one",
        ),
        rows,
    )
    affordable = [name for name in right if cpu_s[name] <= AT_MOST_CPU_S]
    print(
        f"\nChosen by these debates, of what takes {AT_MOST_CPU_S:.0f} CPU s at most: "
        f"{max(affordable, key=lambda name: right[name].mean())}"
    )
