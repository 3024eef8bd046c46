"""Does the gate refuse planted bad candidates by a named check, and promote good ones?

    python benchmarks/bench_candidates.py [--seeds 20] [--kinds longer collapsed]

Each seed is a world with its own taste and annotators, whose votes fit the judge. The champion is
the embedded policy; every candidate answers the frozen prompts, `evaluate` judges the texts and
`decide_promotion` decides by its defaults. `good` is trained by the default recipe, `flipped` by it
on a set of which half the labels are swapped. The others write texts by a rule and keep the
champion's weights (`wrong facts`: those of `good`), so that KL never gives them away. In every
second seed no prompt has a checkable answer, but for `wrong facts`.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, open_fresh_store, print_table  # noqa: E402
from benchmarks.recovery_worlds import (  # noqa: E402
    CompletedPool,
    RecoveryWorld,
    VotedWorld,
)
from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402
from rlhf_pipeline.core.records import Interval  # noqa: E402
from rlhf_pipeline.feedback.votes import NO_CHANGES  # noqa: E402
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY  # noqa: E402
from rlhf_pipeline.generate.policy.causal_lm import (  # noqa: E402
    GeneratedText,
    Policy,
    load_policy,
)
from rlhf_pipeline.generate.prompts import is_right  # noqa: E402
from rlhf_pipeline.improve.evaluation import (  # noqa: E402
    EvaluationParams,
    GateParams,
    JudgedPolicy,
    decide_promotion,
    evaluate,
    frozen_prompts,
)
from rlhf_pipeline.improve.evaluation.prompt_set import count_leaked  # noqa: E402
from rlhf_pipeline.improve.retraining.parameters import StrategyParams  # noqa: E402
from rlhf_pipeline.improve.retraining.selection import SelectionParams, select_pairs  # noqa: E402
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams  # noqa: E402
from rlhf_pipeline.improve.retraining.strategies import train_candidate  # noqa: E402
from rlhf_pipeline.improve.retraining.vote_halves import VoteHalves, label_reserved  # noqa: E402
from rlhf_pipeline.learn.calibration import CalibrationParams, measure_pairs  # noqa: E402
from rlhf_pipeline.learn.calibration.identity import NoCalibration  # noqa: E402
from rlhf_pipeline.learn.reward_model import EmbeddingCache, Encoder  # noqa: E402
from rlhf_pipeline.simulation import Taste, utility  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402

Rewrite = Callable[[str, str], str]  # the text for a prompt, from the policy's own one
BAD = ("longer", "collapsed", "copier", "memoriser", "flipped", "wrong facts")
KINDS = ("good", *BAD)
REFUSED, PROMOTED = 0.95, 0.9
OF_ALL_SEEDS = ("longer", "copier")  # whose texts are the same in each
# Without sentinels, so that the gate alone has to refuse.
TRAINING = StrategyParams(sentinels=SentinelParams(every=0))


class RewritingPolicy(Policy):
    """A policy whose texts are rewritten after it wrote them."""

    def __init__(self, policy: Policy, rewrite: Rewrite) -> None:
        super().__init__(policy.model, policy.tokenizer, name=policy.name)
        self._rewrite = rewrite

    def generate(self, prompts: Sequence[str], **how: Any) -> list[GeneratedText]:
        texts = super().generate(prompts, **how)
        return [
            replace(text, text=self._rewrite(prompt, text.text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]


@dataclass(frozen=True)
class Result:
    """What became of one candidate: the checks that refuse it, none where it is promoted."""

    seed: int
    kind: str
    refused_by: tuple[str, ...]
    figures: str

    def __str__(self) -> str:
        return (
            f"{self.seed} {self.kind}: {', '.join(self.refused_by) or 'promoted'}; {self.figures}"
        )


@dataclass(frozen=True)
class Shared:
    """What all seeds share, so that it is computed once: texts and their embeddings."""

    pool: CompletedPool
    prompts: pd.DataFrame
    drawn: tuple[list[str], list[str]]  # two answers of the champion to each prompt
    encoder: Encoder
    store: Store
    folder: Path

    @classmethod
    def make(cls, folder: Path, store: Store) -> "Shared":
        prompts, champion = frozen_prompts(), load_policy(EMBEDDED_POLICY)
        first, second = (
            champion.generate(
                prompts["text"].tolist(), temperature=0.8, seeds=range(n, n + len(prompts))
            )
            for n in (1000, 2000)
        )
        return cls(
            CompletedPool.generate(EMBEDDED_POLICY),
            prompts,
            ([text.text for text in first], [text.text for text in second]),
            Encoder(cache=EmbeddingCache(folder / "embeddings")),
            store,
            folder,
        )


@dataclass(frozen=True)
class Bench:
    """What the candidates of a seed are trained on and compared by."""

    seed: int
    taste: Taste
    halves: VoteHalves
    agreement: Interval
    rows: pd.DataFrame
    shared: Shared

    @classmethod
    def open(cls, seed: int, shared: Shared) -> "Bench":
        drawn = RecoveryWorld.draw(seed)
        drawn = replace(drawn, before=drawn.after, votes_per_comparison=3)
        world = replace(VotedWorld.vote(drawn, shared.pool), change=NO_CHANGES)
        halves = world.fit_halves(shared.encoder)
        known = world.prompts.dropna(subset=["reference"]).set_index("prompt_id")["reference"]
        rows = select_pairs(
            world.pairs,
            label_reserved(world.pairs, halves.labelling),
            reflections=None,
            params=SelectionParams(min_pairs=50),
            references=known.to_dict() if has_facts(seed, "good") else {},
        )
        judge = halves.judging
        held_out = measure_pairs(
            world.pairs[world.pairs["split"] == "test"],
            judge.reward_model,
            judge.calibrator or NoCalibration(),
            CalibrationParams(),
        )
        return cls(seed, drawn.after, halves, held_out.accuracy, rows, shared)

    def train(self, kind: str, rows: pd.DataFrame) -> Policy:
        out = self.shared.folder / f"{self.seed}-{kind}"
        train_candidate("dpo", EMBEDDED_POLICY, rows, out, TRAINING)
        return load_policy(out / "model")

    def decide(self, kind: str, candidate: Policy) -> Result:
        prompts = self.shared.prompts
        if not has_facts(self.seed, kind):
            prompts = prompts.assign(reference=None)
        champion = load_policy(EMBEDDED_POLICY)
        evaluation, samples = evaluate(
            JudgedPolicy(candidate, kind if kind in OF_ALL_SEEDS else f"{kind}@{self.seed}"),
            JudgedPolicy(champion, "champion"),
            prompts,
            self.halves.judging,
            EvaluationParams(),
            ledger=self.shared.store.generation,
        )
        trained_on = self.rows
        if kind == "memoriser":
            trained_on = pd.concat([self.rows, leaked_rows(self.rows, prompts)])
        known = {
            "judge_agreement": self.agreement,
            "shares_votes": False,
            "n_leaked": count_leaked(trained_on, prompts),
        }
        evaluation = evaluation.model_copy(update=known)
        decision = decide_promotion(evaluation, GateParams())
        references = [None if pd.isna(each) else each for each in samples["reference"]]
        texts = samples["prompt"].tolist()
        truth = [
            utility(texts, references, samples[f"completion_{side}"].tolist(), self.taste).mean()
            for side in ("champion", "candidate")
        ]
        return Result(
            self.seed,
            kind,
            tuple(check.name for check in decision.blocking),
            f"win rate {evaluation.win_rate}, KL {evaluation.kl.value:.2f}, different word pairs "
            f"{evaluation.diversity_champion or 0:.2f} to {evaluation.diversity_candidate or 0:.2f}"
            f", true utility {truth[0]:+.2f} to {truth[1]:+.2f}",
        )


def has_facts(seed: int, kind: str) -> bool:
    """Whether prompts have checkable answers; without them no check of facts can help."""
    return seed % 2 == 0 or kind == "wrong facts"


def leaked_rows(rows: pd.DataFrame, prompts: pd.DataFrame) -> pd.DataFrame:
    """Evaluation prompts as rows of another data set would have them: other ids, case, spaces."""
    texts = [f"  {text.upper()}\n" for text in prompts["text"].head(20)]
    return rows.head(len(texts)).assign(
        prompt=texts, prompt_id=[f"other-{number}" for number in range(len(texts))]
    )


def flip_half(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Rows with chosen and rejected swapped in half of them."""
    is_flipped = pd.Series(np.random.default_rng(seed).permutation(len(rows)) % 2 == 0, rows.index)
    return rows.assign(
        chosen=rows["rejected"].where(is_flipped, rows["chosen"]),
        rejected=rows["chosen"].where(is_flipped, rows["rejected"]),
    )


def iter_candidates(bench: Bench, kinds: Sequence[str]) -> Iterator[tuple[str, Policy]]:
    champion, prompts = load_policy(EMBEDDED_POLICY), bench.shared.prompts
    texts = prompts["text"].tolist()
    references = dict(zip(texts, prompts["reference"], strict=True))
    others = prompts["reference"].dropna().unique().tolist()
    score = bench.halves.judging.reward_model.score

    def lie(prompt: str, text: str) -> str:
        reference = references[prompt]
        if pd.isna(reference) or not is_right(reference, text):
            return text
        wrong = others[(others.index(reference) + 1) % len(others)]
        return re.sub(re.escape(reference), wrong, text, flags=re.IGNORECASE)

    def remember() -> Rewrite:
        """The better one of two answers to each evaluation prompt, by the judge itself."""
        first, second = bench.shared.drawn
        is_first = score(texts, first) >= score(texts, second)
        best = np.where(is_first, first, second).tolist()
        return dict(zip(texts, best, strict=True)).get

    def collapse() -> Rewrite:
        """The one of 40 long answers that the judge likes most on 40 prompts."""
        tried = sorted(set(bench.shared.drawn[0]), key=len)[-40:]
        means = [score(texts[:40], [answer] * 40).mean() for answer in tried]
        liked = tried[int(np.argmax(means))]
        return lambda prompt, text: liked

    rules: dict[str, Callable[[], Rewrite]] = {
        "longer": lambda: lambda prompt, text: f"{text} {text}",
        "collapsed": collapse,
        "copier": lambda: lambda prompt, text: prompt,
        "memoriser": remember,
    }
    good: Policy | None = None
    if {"good", "wrong facts"} & set(kinds):
        good = bench.train("good", bench.rows)
    for kind in kinds:
        if kind in rules:
            yield kind, RewritingPolicy(champion, rules[kind]())
        elif kind == "flipped":
            yield kind, bench.train(kind, flip_half(bench.rows, bench.seed))
        elif good is not None:
            yield kind, RewritingPolicy(good, lie) if kind == "wrong facts" else good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    options = parser.parse_args()
    silence_telemetry()
    results = []
    with tempfile.TemporaryDirectory() as folder, open_fresh_store() as store:
        shared = Shared.make(Path(folder), store)
        for seed in range(options.first, options.first + options.seeds):
            bench = Bench.open(seed, shared)
            for kind, policy in iter_candidates(bench, options.kinds):
                results.append(bench.decide(kind, policy))
                print(results[-1], flush=True)
    return report(results, options.kinds).print_summary()


def report(results: Sequence[Result], kinds: Sequence[str]) -> Limits:
    limits, rows = Limits(), []
    for kind in kinds:
        of_kind = [result.refused_by for result in results if result.kind == kind]
        n = sum(map(bool, of_kind))
        counts = Counter(name for names in of_kind for name in names)
        by = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        rows.append((kind, f"{n}/{len(of_kind)}", by))
        share = (len(of_kind) - n if kind == "good" else n) / len(of_kind)
        verb, limit = ("promoted", PROMOTED) if kind == "good" else ("refused", REFUSED)
        limits.check(share >= limit, f"{kind}: {share:.0%} {verb}, limit {limit:.0%}")
    print_table("Planted candidates", ("candidate", "refused", "by the checks"), rows)
    return limits


if __name__ == "__main__":
    sys.exit(main())
