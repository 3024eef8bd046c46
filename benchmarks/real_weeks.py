"""What is said of the real days: week by week, between two weeks, and as a picture. Knows lived
days; prints tables.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measurement import StageTimes, print_table
from benchmarks.real_days import RealDays, iso_week, models_between, week_windows
from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.two_sample import (
    TestResult,
    adjust_p_values,
    error_rate_rise,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
)
from rlhf_pipeline.drift.windows import WindowParams, compare_windows
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.drift import chart_timeline
from rlhf_pipeline.reward_model import Encoder
from rlhf_pipeline.votes import interval_of_mean, noise_ceiling_or_repeats
from rlhf_pipeline.votes.splits import Recorder

WEEKS = ("W04", "W05", "W06", "W07", "W08", "W09", "W10")
TRAILING = 1000  # votes of the picture's error rate


def run_real_days(
    comparisons: pd.DataFrame, votes: pd.DataFrame, encoder: Encoder, out: Path, record: Recorder
) -> RealDays:
    """The real days in order, each predicted by a model that saw none of its votes; what is said
    week by week.
    """
    print("\nThe real days, lived through in order\n")
    spent = StageTimes()
    with spent.stage("days"):
        lived = RealDays(comparisons, votes, encoder, record=record).run()
    rows = lived.rows
    errors = rows[rows["is_error"].notna()].assign(error=lambda f: f["is_error"].astype(float))
    _print_weeks(lived, votes, errors)
    stream = pd.DataFrame(
        {"seq": errors["seq"].astype(int), "day": errors["day"], "error": errors["error"]}
    )
    stream["day"] = errors["voted_at"].dt.strftime("%Y-%m-%d")
    served = {
        s.first_seq: s.judge.label.partition(".")[2].replace("reward_model", "model")
        for s in lived.models
    }
    warned = [w for s in lived.models if s.scanned for w in s.scanned.warnings]
    chart = chart_timeline(
        stream,
        lived.events,
        warned,
        models=served,
        noise_ceiling=noise_ceiling_or_repeats(votes),
        window=TRAILING,
        title="UKPConvArg1, 2016: errors of the reward model of the day, in vote order",
    )
    picture = draw_png(chart)
    (out / "drift_timeline.png").write_bytes(picture)
    print(
        f"\n{out / 'drift_timeline.png'}: {len(picture):,} bytes. All days in {spent.total[0]:.0f} "
        f"s ({spent.total[1]:.0f} s of CPU)."
    )
    for before, after in (("W05", "W06"), ("W08", "W09")):
        _compare_weeks(lived, before, after)
    _print_same_people_and_debates(lived.comparisons, votes)
    return lived


def _sided_votes(comparisons: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Votes for a side, with `longer` (1 for the longer text) and `right` (1 for gold)."""
    texts = comparisons.set_index("comparison_id")
    sided = votes[
        votes["choice"].isin(["a", "b"]) & votes["comparison_id"].isin(texts.index)
    ].copy()
    longer_a = np.sign(texts["completion_a"].str.len() - texts["completion_b"].str.len())
    sign = sided["choice"].map({"a": 1.0, "b": -1.0})
    sided["longer"] = 0.5 + 0.5 * sign * sided["comparison_id"].map(longer_a)
    gold = sided["comparison_id"].map(texts["gold"])
    sided["right"] = (sided["choice"] == gold).astype(float).where(gold.isin(["a", "b"]))
    sided["debate"] = sided["comparison_id"].map(texts["split_group"])
    return sided.assign(week=iso_week(sided["day"]))


def _print_same_people_and_debates(comparisons: pd.DataFrame, votes: pd.DataFrame) -> None:
    """What W05 → W06 can be told apart into: the same people on other debates, and the same debates
    in later weeks.
    """
    sided = _sided_votes(comparisons, votes)
    first, second = (sided[sided["week"] == week] for week in ("W05", "W06"))
    people = set(first["annotator_id"]) & set(second["annotator_id"])
    debates = set(first["debate"])
    shared = len(debates & set(second["debate"]))
    later = sided[sided["debate"].isin(debates) & (sided["week"] == "W08")]
    groups = (
        ("W05, all", first),
        ("W06, all", second),
        *(
            (f"{week}, the {len(people)} people of both weeks", rows)
            for week, part in (("W05", first), ("W06", second))
            for rows in (part[part["annotator_id"].isin(people)],)
        ),
        ("W08, the debates of W05", later),
    )
    print_table(
        f"W05 → W06, which share {shared} debates (95 % by bootstrap over annotators)",
        ("votes", "n", "longer wins", "agrees with gold"),
        [
            (
                name,
                len(rows),
                *(
                    interval_of_mean(known[column], groups=known["annotator_id"].to_numpy())
                    for column in ("longer", "right")
                    for known in (rows[rows[column].notna()],)
                ),
            )
            for name, rows in groups
        ],
    )


def _print_weeks(lived: RealDays, votes: pd.DataFrame, errors: pd.DataFrame) -> None:
    sided = _sided_votes(lived.comparisons, votes)
    week, error_week = sided["week"], iso_week(errors["voted_at"].dt.strftime("%Y-%m-%d"))
    reports = pd.concat(lived.reports, ignore_index=True)
    overall = reports[reports["space"] == "overall"]
    rows: list[tuple[object, ...]] = []
    for name in WEEKS:
        mine, wrong = sided[week == name], errors[error_week == name]
        said = overall[iso_week(overall["day"]) == name]["verdict"].value_counts()
        events = [e for e in lived.events if f"W{e.day.isocalendar().week:02d}" == name]
        fired = {kind: sum(e.detector == kind for e in events) for kind in DETECTORS} | {
            "calibration": len({e.day for e in events if e.kind == "calibration"})
        }
        error = (
            interval_of_mean(wrong["error"], groups=wrong["comparison_id"].to_numpy())
            if len(wrong)
            else "no model yet"
        )
        rows.append(
            (
                name,
                len(votes[iso_week(votes["day"]) == name]),
                error,
                f"{mine['longer'].mean():.3f}",
                f"{mine['right'].mean():.3f}",
                models_between(lived, wrong).replace("real.reward_model", "") or "-",
                ", ".join(f"{kind} {n}" for kind, n in fired.items() if n) or "-",
                ", ".join(f"{verdict} {n}" for verdict, n in said.items()) or "-",
            )
        )
    print_table(
        "Week by week (errors: 95 % by bootstrap over comparisons)",
        (
            "ISO week of 2016",
            "votes",
            "error rate of the day's model",
            "longer wins",
            "agrees with gold",
            "models",
            "events",
            "days' verdicts",
        ),
        rows,
    )
    print("\nDecisions: " + ("\n  ".join(["", *lived.decisions]) or "none"))


def _compare_weeks(lived: RealDays, before: str, after: str) -> None:
    """Both weeks as windows by the library's tests, then what those leave out: votes and texts as
    such.
    """
    windows = week_windows(lived, (before, after))
    (reference, mine), (current, now) = windows[before], windows[after]
    for name, rows in ((before, mine), (after, now)):
        if rows.empty:
            print(f"\n{before} → {after}: no prediction met a vote in {name}.")
            return
    compared = compare_windows(reference, current, WindowParams())
    cells: list[tuple[object, ...]] = [
        (
            f"{v.space} {v.detector}",
            v.verdict,
            _format_number(v.statistic),
            _format_number(v.p_value),
            v.n_reference,
            v.n_current,
            v.evidence.get("reason", ""),
        )
        for v in compared
    ]
    cells += _compare_votes_and_texts(lived, before, after)
    print_table(
        f"{before} → {after}: two windows of prequential predictions",
        ("test", "verdict", "statistic", "p", f"n {before}", f"n {after}", ""),
        cells,
    )


def _compare_votes_and_texts(lived: RealDays, before: str, after: str) -> list[tuple[object, ...]]:
    """Share of votes for the shorter text and against gold per comparison, lengths and embeddings
    of the distinct completions.
    """
    votes, week = lived.votes, iso_week(lived.votes["day"])
    texts = lived.comparisons.set_index("comparison_id")
    found: list[tuple[object, ...]] = []
    samples = {}
    for name in (before, after):
        sided = votes[(week == name) & votes["choice"].isin(["a", "b"])]
        sign, ids = sided["choice"].map({"a": 1.0, "b": -1.0}), sided["comparison_id"]
        gap = np.sign(
            ids.map(texts["completion_a"].str.len()) - ids.map(texts["completion_b"].str.len())
        )
        shorter, gold = (0.5 - 0.5 * sign * gap), ids.map(texts["gold"])
        against = (sided["choice"] != gold).astype(float).where(gold.isin(["a", "b"]))
        judged = texts.loc[ids.unique()]
        both = [
            judged[["prompt", f"completion_{side}"]].set_axis(["prompt", "text"], axis=1)
            for side in "ab"
        ]
        distinct = pd.concat(both).drop_duplicates().sort_values("text")
        samples[name] = (
            shorter.groupby(ids).mean(),
            against.groupby(ids).mean().dropna(),
            distinct,
        )
    one, two = samples[before], samples[after]
    model = lived.models[-1].judge.reward_model
    embeddings = [
        np.asarray(model.features(f["prompt"].tolist(), f["text"].tolist())[:, 384:768])
        for f in (one[2], two[2])
    ]
    lengths = [f["text"].str.len().to_numpy(dtype=float) for f in (one[2], two[2])]
    tests: dict[str, tuple[TestResult, int, int]] = {
        "votes for the shorter text": (
            error_rate_rise(one[0].to_numpy(), two[0].to_numpy()),
            len(one[0]),
            len(two[0]),
        ),
        "votes against gold": (
            error_rate_rise(one[1].to_numpy(), two[1].to_numpy()),
            len(one[1]),
            len(two[1]),
        ),
        "lengths of distinct completions, ks": (
            kolmogorov_smirnov(*lengths),
            len(one[2]),
            len(two[2]),
        ),
        "embeddings of distinct completions, mmd": (
            maximum_mean_discrepancy(*embeddings),
            len(one[2]),
            len(two[2]),
        ),
    }
    p_adjusted = adjust_p_values([result.p_value for result, _, _ in tests.values()])
    for (name, (result, n, m)), p in zip(tests.items(), p_adjusted, strict=True):
        found.append(
            (
                name,
                "significant" if p <= WindowParams().alpha else "-",
                _format_number(result.statistic),
                _format_number(result.p_value),
                n,
                m,
                "not part of the daily report",
            )
        )
    return found


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
