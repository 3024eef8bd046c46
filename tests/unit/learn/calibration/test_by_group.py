import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.records import CalibrationReport, GroupCalibration, Interval
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.learn.calibration import (
    PredictedVotes,
    all_ceilings,
    calibration_by_group,
    calibration_metrics,
    ceilings_by_group,
    group_comparisons,
)
from rlhf_pipeline.learn.calibration.group_calibration import (
    MIN_PAIRS,
    OWN_SOURCE,
    largest_groups,
)
from tests.unit.feedback.votes.simulated import simulate


def rows(
    sizes: dict[str, int], seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, dict[str, str]]]:
    """p, outcomes and comparison ids of groups with so many comparisons of three votes each."""
    rng = np.random.default_rng(seed)
    names = np.repeat(list(sizes), list(sizes.values()))
    ids = np.array([f"c{i}" for i in range(len(names))], dtype=object)
    logits = np.repeat(rng.normal(0, 1.5, len(names)), 3)
    outcomes = (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(float)
    return (
        1 / (1 + np.exp(-logits)),
        outcomes,
        np.repeat(ids, 3),
        {"source": dict(zip(ids, names, strict=True))},
    )


def test_each_group_has_its_own_figures_and_ceiling() -> None:
    p, y, ids, groups = rows({"web": 60, "chat": 120})
    ceiling = Interval(value=0.8, low=0.7, high=0.9, n=40)
    chat, web = calibration_by_group(
        PredictedVotes(p, y, ids, raw=p), groups, ceilings={"source": {"web": ceiling}}
    )
    assert [(g.by, g.group, g.n) for g in (chat, web)] == [
        ("source", "chat", 120),
        ("source", "web", 60),
    ]
    assert (chat.noise_ceiling, web.noise_ceiling) == (None, ceiling)
    inside = np.isin(ids, [i for i, name in groups["source"].items() if name == "web"])
    assert (
        web.calibrated
        == web.raw
        == calibration_metrics(p[inside], y[inside], groups=ids[inside], n=60)
    )
    assert sum(b.n for b in web.calibrated_bins) == 180
    assert web.raw_bins == web.calibrated_bins


@pytest.mark.parametrize("n", [1, 2, MIN_PAIRS - 1])
def test_tiny_group_shows_only_its_size(n: int) -> None:
    p, y, ids, groups = rows({"tiny": n})
    (group,) = calibration_by_group(PredictedVotes(p, y, ids, raw=p), groups)
    assert (group.n, group.raw, group.calibrated, group.calibrated_bins) == (n, None, None, ())


def test_small_group_without_errors_is_not_certain() -> None:
    ids = np.array([f"c{i}" for i in range(12)], dtype=object)
    (group,) = calibration_by_group(
        PredictedVotes(np.full(12, 0.9), np.ones(12), ids), {"source": dict.fromkeys(ids, "s")}
    )
    assert group.calibrated is not None
    assert group.calibrated.accuracy.high == 1.0
    assert group.calibrated.accuracy.low == pytest.approx(0.757, abs=0.001)  # Wilson's for 12 of 12
    ece = group.calibrated.ece
    assert ece is not None
    # 12 of 12 at 0.9 are no rare thing
    assert (ece.low, ece.value) == (0.0, pytest.approx(0.1, abs=0.01))
    assert ece.high > 0.14
    assert group.calibrated.slope is None


def test_groups_are_sources_and_categories() -> None:
    frame = pd.DataFrame(
        {
            "comparison_id": ["c1", "c2"],
            "source": ["convarg", None],
            "category": ["safety", "coding"],
        }
    )
    assert group_comparisons(frame) == {
        "source": {"c1": "convarg", "c2": OWN_SOURCE},
        "category": {"c1": "safety", "c2": "coding"},
    }
    assert group_comparisons(frame[["comparison_id"]]) == {}
    with pytest.raises(FrameError, match="comparison_id"):
        group_comparisons(frame[["category"]])


def test_ceiling_of_a_group_uses_its_votes_only() -> None:
    votes = simulate(80, seed=3).votes
    ids = sorted(votes["comparison_id"].unique())
    half = dict.fromkeys(ids[:40], "first")
    ceilings = ceilings_by_group(votes, {"source": half, "category": {ids[0]: "alone"}})
    assert ceilings["source"] == {
        "first": noise_ceiling_or_repeats(votes[votes["comparison_id"].isin(half)])
    }
    single = votes.drop_duplicates("comparison_id")
    assert ceilings_by_group(single, {"source": half}) == {"source": {}}


def test_group_without_overlap_uses_its_repeats() -> None:
    votes = simulate(80, seed=3, ties=False).votes.drop_duplicates("comparison_id")
    swapped = votes["choice"].map({"a": "b", "b": "a"})
    again = votes.assign(
        repeat_of=votes["comparison_id"],
        comparison_id="r" + votes["comparison_id"],
        vote_id="r" + votes["vote_id"],
    )
    both = pd.concat(
        [votes, again.assign(choice=swapped, seq=again["seq"] + 1000)], ignore_index=True
    )
    first = dict.fromkeys(sorted(votes["comparison_id"])[:40], "first")
    ceiling = ceilings_by_group(both, {"source": first})["source"]["first"]
    assert (ceiling.value, ceiling.n, ceiling.basis) == (1.0, 40, "repeats")
    comparison_id = sorted(votes["comparison_id"])[50]
    later = votes[votes["comparison_id"] == comparison_id].assign(
        pass_no=2, vote_id="later", seq=5000
    )
    log = pd.concat([votes.assign(pass_no=1), later], ignore_index=True)
    by_source = ceilings_by_group(log, {"source": {comparison_id: "second"} | first})["source"]
    assert by_source.keys() == {"second"}
    assert (by_source["second"].value, by_source["second"].n) == (1.0, 1)


def test_undefined_slope_of_a_large_group_is_unknown() -> None:
    """No slope where every probability is one half."""
    p, y, ids, groups = rows({"flat": 50})
    (group,) = calibration_by_group(PredictedVotes(np.full(len(p), 0.5), y, ids), groups)
    assert group.calibrated is not None
    assert group.calibrated.slope is None


def test_groups_and_total_have_all_four_figures() -> None:
    votes = simulate(60, seed=1).votes
    ids = sorted(votes["comparison_id"].unique())
    table = all_ceilings(
        votes, {"source": dict.fromkeys(ids[:30], "web"), "category": dict.fromkeys(ids, "coding")}
    )
    assert table[["grouped_by", "group"]].to_numpy().tolist() == [
        ["all", "all"],
        ["source", "web"],
        ["category", "coding"],
    ]
    assert {"estimate", "at_least", "at_most", "from_repeats"} <= set(table.columns)
    whole, web, coding = (table.iloc[i] for i in range(3))
    ceiling = noise_ceiling_or_repeats(votes)
    assert whole["estimate"] == coding["estimate"] == ceiling.value  # type: ignore[union-attr]
    assert web["n_votes"] < whole["n_votes"]


def report(groups: tuple[GroupCalibration, ...]) -> CalibrationReport:
    p, y, ids, _ = rows({"all": 50})
    metrics = calibration_metrics(p, y, groups=ids)
    return CalibrationReport(
        reward_model="demo.reward_model@1",
        method="platt",
        params={},
        raw=metrics,
        calibrated=metrics,
        candidates={},
        by_group=groups,
        data_hash="h",
        n_fit=9,
    )


def test_panels_show_the_largest_groups() -> None:
    """Twelve categories left no room for a source, and were called the larger ones."""
    p, y, ids, sources = rows({"web": 200, "tiny": 3})
    names = {i: f"c{n % 15}" for n, i in enumerate(dict.fromkeys(ids))}
    groups = calibration_by_group(PredictedVotes(p, y, ids), {"category": names, **sources})
    assert [(g.by, g.group) for g in largest_groups(groups, 3)] == [
        ("category", "c0"),
        ("category", "c1"),
        ("source", "web"),
    ]
    assert largest_groups(groups, 100) == sorted(groups, key=lambda g: (g.by, -g.n, g.group))
