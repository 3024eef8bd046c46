"""Simulated people whose taste is known: 10,000 pairs learnt from, on prompts never seen, beside the best anybody could do.

    python benchmarks/bench_simulated.py

Noise is set so that one who knows the taste predicts 90 % of single votes: more than 80 % is wanted of the reward model, and
less than 15 minutes for embedding, fitting and judging with a cold cache. Needs no data and no key.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import silence_telemetry  # noqa: E402

silence_telemetry()
# Threads that wait actively take the cores from whoever else wants them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measuring import Limits, Spent, table  # noqa: E402
from rlhf_pipeline.frames import COMPARISONS, VOTES, check_frame  # noqa: E402
from rlhf_pipeline.policy.corpus import style_sentences  # noqa: E402
from rlhf_pipeline.prompts import PromptParams, generate  # noqa: E402
from rlhf_pipeline.records import content_id  # noqa: E402
from rlhf_pipeline.reward_model import EmbeddingCache, Encoder, RewardModelParams, fit_reward_model  # noqa: E402
from rlhf_pipeline.simulation import WARM_TASTE, AnnotatorPool, cast_votes, side_utilities, true_ceiling  # noqa: E402
from rlhf_pipeline.votes import preference_pairs  # noqa: E402

BAR_ACCURACY, BAR_SECONDS, CEILING = 0.80, 15 * 60, 0.90
N = 11_200  # a tie is no pair: some 10,000 are left
DAY, START = "2026-01-01", datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


def make_comparisons(n: int) -> tuple[pd.DataFrame, dict[str, str | None]]:
    """One comparison per prompt of two completions in random style, right or wrong; and the prompts' references."""
    rng = np.random.default_rng(0)
    prompts = generate(PromptParams(n=n), day=DAY)
    references = {p: None if pd.isna(r) else r for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)}
    styles = [*(list(sentences) for sentences in style_sentences().values()), [""], [""]]

    def completion(reference: str | None) -> str:
        body = f"It is {reference}." if reference and rng.random() < 0.7 else f"It is {rng.integers(100)}."
        before, after = (str(rng.choice(styles[rng.integers(len(styles))])) for _ in range(2))
        return " ".join(part for part in (before, body, after) if part)

    frame = pd.DataFrame({"prompt_id": prompts["prompt_id"], "prompt": prompts["text"], "category": prompts["category"]})
    for side in "ab":
        frame[f"completion_{side}"] = [completion(references[p]) for p in frame["prompt_id"]]
        frame[f"completion_{side}_id"] = [content_id(p, side) for p in frame["prompt_id"]]
        frame[f"model_version_{side}"] = "simulated@1"
    ids = [content_id("c", p) for p in frame["prompt_id"]]
    return check_frame(
        frame.assign(comparison_id=ids, day=DAY, repeat_of=None, position=range(len(frame)), seed=0), COMPARISONS
    ), references


def vote_frame(comparisons: pd.DataFrame, references: dict[str, str | None], pool: AnnotatorPool) -> pd.DataFrame:
    """VOTES: one vote a comparison."""
    cast = cast_votes(comparisons, references, WARM_TASTE, pool, day=DAY, votes_per_comparison=1, start=START)
    prompt_of = dict(zip(comparisons["comparison_id"], comparisons["prompt_id"], strict=True))
    kept = {"comparison_id", "annotator_id", "annotator_kind", "choice", "strength", "voted_at"}
    frame = pd.DataFrame([vote.model_dump(include=kept) for vote in cast])
    n = range(1, len(frame) + 1)
    more = {"day": DAY, "seq": n, "vote_id": [f"v{i}" for i in n], "repeat_of": None, "received_at": frame["voted_at"]}
    return check_frame(frame.assign(prompt_id=frame["comparison_id"].map(prompt_of), **more), VOTES)


def noise_for(ceiling_at: Callable[[AnnotatorPool], float]) -> AnnotatorPool:
    """Annotators of whose votes nobody predicts more than CEILING, by bisection of their noise."""
    low, high = 0.01, 5.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ceiling_at(AnnotatorPool(noise=middle, fatigue=0.0)) > CEILING else (low, middle)
    return AnnotatorPool(noise=low, fatigue=0.0)


def main() -> int:
    warnings.filterwarnings("ignore")
    comparisons, references = make_comparisons(N)
    utility_a, utility_b = side_utilities(comparisons, references, WARM_TASTE)

    def ceiling_at(pool: AnnotatorPool) -> float:
        return true_ceiling(utility_a - utility_b, pool, votes_per_comparison=1).one_vote

    pool, spent = noise_for(ceiling_at), Spent()
    pairs = preference_pairs(vote_frame(comparisons, references, pool), comparisons)
    with tempfile.TemporaryDirectory() as cache, spent.stage("fit and judge"):
        fitted = fit_reward_model(pairs, RewardModelParams(), encoder=Encoder(cache=EmbeddingCache(Path(cache))))
    test = fitted.report.test
    assert test is not None
    wall, cpu = spent.total
    n_texts = len(set(comparisons["completion_a"]) | set(comparisons["completion_b"]))
    table(
        f"Simulated people, noise {pool.noise:.3f}, one vote a comparison, test prompts never seen (95 % over prompts)",
        ("pairs", "distinct completions", "test pairs", "accuracy", "ceiling", "longer wins", "seconds", "CPU s"),
        [(len(pairs), n_texts, test.n, test.vote_accuracy, f"{ceiling_at(pool):.3f}", test.longer_wins, f"{wall:.0f}", f"{cpu:.0f}")],
    )
    accuracy = test.vote_accuracy.value
    limits = Limits()
    limits.judge(
        accuracy > BAR_ACCURACY, f"accuracy {accuracy:.3f} at a ceiling of {ceiling_at(pool):.3f}, more than {BAR_ACCURACY:.2f} wanted"
    )
    spent_on = f"{wall:.0f} s ({cpu:.0f} s of CPU, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})"
    limits.judge(
        wall < BAR_SECONDS, f"{len(pairs)} pairs embedded, fitted and judged with a cold cache in {spent_on}, limit {BAR_SECONDS} s"
    )
    return limits.told()


if __name__ == "__main__":
    sys.exit(main())
