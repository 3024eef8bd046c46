"""What the drift report of a day with 10,000 votes costs, stage by stage. Prints one table.

    python benchmarks/bench_drift_report.py [--votes 10000]

Two votes a comparison, two comparisons a prompt, completions of 150 words; against a reference of
3,000 prompts. The calls are those of the asset; embeddings come from a cache, as there.
"""

import argparse
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, StageTimes, print_table  # noqa: E402
from rlhf_pipeline.calibration import (  # noqa: E402
    PredictedVotes,
    VoteFacts,
    calibration_by_group,
    evidently_calibration_report,
)
from rlhf_pipeline.drift.clusters import semantic_clusters  # noqa: E402
from rlhf_pipeline.drift.policy import summarise_policy_day  # noqa: E402
from rlhf_pipeline.drift.reference import Window, current_window  # noqa: E402
from rlhf_pipeline.drift.report import (  # noqa: E402
    DriftParams,
    DriftSignals,
    data_drift_report,
    drift_report,
)
from rlhf_pipeline.drift.slices import error_slices  # noqa: E402
from rlhf_pipeline.drift.stream import error_stream, scan  # noqa: E402
from rlhf_pipeline.frames import (  # noqa: E402
    COMPARISONS,
    COMPLETIONS,
    PREDICTIONS,
    VOTES,
    check_frame,
)
from rlhf_pipeline.reflection import judged_predictions, reflect  # noqa: E402
from rlhf_pipeline.reports.drift_page import DayEvidence, render_drift_page  # noqa: E402
from rlhf_pipeline.votes.counting import standing  # noqa: E402

DAY, MODEL, POLICY = "2026-02-01", "bench.reward_model@1", "bench.policy@1"
MAX_CPU_S, MAX_GB = 30, 1.0
N_REFERENCE = 3000  # prompts
CATEGORIES = ("factual", "creative", "code", "summary", "advice")


@dataclass(frozen=True)
class World:
    """The frames of one day."""

    comparisons: pd.DataFrame
    completions: pd.DataFrame
    predictions: pd.DataFrame
    votes: pd.DataFrame


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--votes", type=int, default=10_000)
    n_votes = parser.parse_args().votes
    limits, times, params = Limits(), StageTimes(), DriftParams()
    world, before = make_world(1, n_votes // 4), make_world(0, N_REFERENCE)
    reference = window_of(before)
    with times.stage("reflection log"):
        log = reflect(world.predictions, standing(world.votes), strict=False)
    with times.stage("detectors"):
        found = scan(error_stream(log, MODEL), model_version=MODEL, params=params)
    with times.stage("window of the day"):
        current = current_window(log, world.comparisons, model_version=MODEL, embed=embed)
    with times.stage("calibration, Evidently included"):
        judged = judged_predictions(log)
        facts = VoteFacts.of(world.votes, world.comparisons)
        by_group = calibration_by_group(
            PredictedVotes.of_day(judged), facts.groups, ceilings=facts.group_ceilings
        )
        tests = evidently_calibration_report(
            judged, noise_ceiling=facts.noise_ceiling, by_group=by_group
        )
    with times.stage("deployed policy"):
        days = [
            summarise_policy_day(day, world.completions, world.comparisons, world.predictions)
            for day in (DAY, "2026-01-31")
        ]
    with times.stage("tests of all spaces"):
        report = drift_report(
            DAY,
            model_version=MODEL,
            reference=reference,
            current=current,
            signals=DriftSignals(found.events, found.warnings, list(tests.tests)),
            policy_days=[day for day in days if day is not None],
            params=params,
        )
    with times.stage("Evidently's data drift"):
        data_drift = data_drift_report(reference, current, params).json
    with times.stage("clusters"):
        clusters = semantic_clusters(reference, current, params)
    with times.stage("slices"):
        slices = error_slices(log, world.comparisons, params)
    with times.stage("page"):
        evidence = DayEvidence(
            project="bench",
            day=DAY,
            report=report,
            reference=reference,
            current=current,
            judged=judged,
            errors=error_stream(log, MODEL),
            events=found.events,
            warnings=found.warnings,
            noise_ceiling=facts.noise_ceiling,
            by_group=by_group,
            clusters=clusters,
            slices=slices,
            policy_days=[day for day in days if day is not None],
            data_drift=data_drift,
        )
        page = render_drift_page(evidence, params)
    print_table(
        f"A day with {len(world.votes):,} votes on {len(world.comparisons):,} comparisons",
        ("stage", "CPU s", "wall s"),
        [(name, f"{cpu:.1f}", f"{wall:.1f}") for name, (wall, cpu) in times.stages.items()],
    )
    cpu = times.total[1]
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nthe page has {len(page) / 1e3:,.0f} kB, the report {len(report)} rows")
    limits.check(cpu <= MAX_CPU_S, f"{cpu:.1f} CPU s for the report (at most {MAX_CPU_S})")
    limits.check(gigabytes <= MAX_GB, f"{gigabytes:.2f} GB at the peak (at most {MAX_GB:.0f})")
    return limits.print_summary()


def make_world(seed: int, n_prompts: int) -> World:
    """Prompts with three completions, two comparisons and two votes on each."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(20_000)])
    frequency = 1 / np.arange(1, len(words) + 1)
    frequency /= frequency.sum()

    def write(n: int, length: int) -> list[str]:
        return [" ".join(row) for row in words[rng.choice(len(words), (n, length), p=frequency)]]

    prompts, texts = write(n_prompts, 30), write(3 * n_prompts, 150)
    prompt_id = np.array([f"p{seed}-{i}" for i in range(n_prompts)])
    completion_id = np.array([f"x{seed}-{i}" for i in range(3 * n_prompts)])
    of = np.repeat(np.arange(n_prompts), 2)
    a = 3 * of + np.tile([0, 1], n_prompts)
    comparisons = pd.DataFrame(
        {
            "day": DAY,
            "comparison_id": [f"c{seed}-{i:06d}" for i in range(len(of))],
            "prompt_id": prompt_id[of],
            "prompt": [prompts[i] for i in of],
            "completion_a_id": completion_id[a],
            "completion_b_id": completion_id[a + 1],
            "completion_a": [texts[i] for i in a],
            "completion_b": [texts[i + 1] for i in a],
            "model_version_a": POLICY,
            "model_version_b": POLICY,
            "category": rng.choice(CATEGORIES, n_prompts)[of],
            "repeat_of": None,
            "position": range(len(of)),
            "seed": 0,
        }
    )
    scores = rng.normal(size=3 * n_prompts)
    p = 1 / (1 + np.exp(scores[a + 1] - scores[a]))
    predictions = comparisons[["day", "comparison_id"]].assign(
        reward_model=MODEL,
        calibrator="none",
        data_hash="h",
        features_hash="h",
        score_a=scores[a],
        score_b=scores[a + 1],
        p_raw=p,
        p_calibrated=p,
        predicted_at=datetime(2026, 2, 1, tzinfo=UTC),
    )
    voted = np.repeat(np.arange(len(of)), 2)
    choice = np.where(rng.random(len(voted)) < p[voted], "a", "b").astype(object)
    choice[rng.random(len(voted)) < 0.1] = "tie"
    at = pd.Timestamp("2026-02-01", tz="UTC") + pd.to_timedelta(np.arange(len(voted)), unit="s")
    annotator = (np.arange(len(voted)) % 2) * 10 + rng.integers(0, 10, len(voted))
    votes = pd.DataFrame(
        {
            "day": DAY,
            "seq": np.arange(1, len(voted) + 1),
            "vote_id": [f"v{i:06d}" for i in range(len(voted))],
            "comparison_id": comparisons["comparison_id"].to_numpy()[voted],
            "prompt_id": prompt_id[of][voted],
            "annotator_id": [f"annotator{i}" for i in annotator],
            "annotator_kind": "human",
            "choice": choice,
            "strength": pd.array(np.where(choice == "tie", None, 2), dtype="Int64"),
            "repeat_of": None,
            "voted_at": at,
            "received_at": at,
        }
    )
    completions = pd.DataFrame(
        {
            "day": DAY,
            "completion_id": completion_id,
            "prompt_id": np.repeat(prompt_id, 3),
            "text": texts,
            "backend": "local",
            "model_version": POLICY,
            "temperature": 0.8,
            "top_p": 1.0,
            "sample_index": np.tile([0, 1, 2], n_prompts),
            "seed": 0,
            "n_prompt_tokens": 30,
            "n_tokens": 150,
            "latency_ms": 1.0,
            "finish_reason": "stop",
            "error": None,
        }
    )
    return World(
        check_frame(comparisons, COMPARISONS),
        check_frame(completions, COMPLETIONS),
        check_frame(predictions, PREDICTIONS),
        check_frame(votes, VOTES),
    )


def window_of(world: World) -> Window:
    log = reflect(world.predictions, standing(world.votes), strict=False)
    return current_window(log, world.comparisons, model_version=MODEL, embed=embed)


def embed(prompts: Sequence[str], completions: Sequence[str]) -> npt.NDArray[np.float64]:
    """Stands in for the cache of embeddings."""
    rng = np.random.default_rng(len(prompts))
    return (
        rng.normal(size=(len(prompts), 384))
        + 3 * rng.normal(size=(5, 384))[rng.integers(0, 5, len(prompts))]
    )


if __name__ == "__main__":
    sys.exit(main())
