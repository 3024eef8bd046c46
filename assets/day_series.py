"""Series by day for drift reports: calibration windows, the deployed policy, clusters of prompts.

Windows and summaries of the policy are stored, and measured again where their inputs changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TypeVar

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import (
    ArtefactError,
    FrameError,
    InvalidScores,
    ModelError,
    NotEnoughData,
)
from rlhf_pipeline.core.records import GATE_SOURCE, GroupCalibration, content_hash
from rlhf_pipeline.feedback.votes import Quarantines
from rlhf_pipeline.learn.calibration import OverTimeParams, calibration_over_time
from rlhf_pipeline.learn.calibration.calibration_windows import (
    CalibrationWindow,
    days_of_window,
    report_days,
)
from rlhf_pipeline.learn.calibration.window_groups import group_votes, windows_by_group
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.reports.drift_page import DayEvidence
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.cluster_history import DAYS_FOLLOWED, DayClusters, follow
from rlhf_pipeline.watch.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.watch.drift.policy import PolicyDay, summarise_policy_day
from rlhf_pipeline.watch.drift.reference import LEFT_OUT, Embed, Window, current_window
from rlhf_pipeline.watch.reflection import served_predictions

WINDOW_STAGES = ("reflection_log", "votes")
POLICY_STAGES = ("completions", "comparisons")
POLICY_DAYS = 28  # before a day: shown in its report, and read for the reference of its texts
# increase one when the same inputs give other figures; what is stored is then measured again
WINDOW_VERSION, POLICY_VERSION = 5, 1
Measured = TypeVar("Measured", CalibrationWindow, PolicyDay)


def _keep_valid(
    stored: Mapping[str, Measured], hashes: Mapping[str, str]
) -> tuple[dict[str, Measured], list[str]]:
    """What is stored of the days in `hashes` from the same inputs, and the other days."""
    valid = {day: figures for day, figures in stored.items() if figures.rests_on == hashes[day]}
    return valid, [day for day in hashes if day not in valid]


def _mark(measured: Iterable[Measured], hashes: Mapping[str, str]) -> list[Measured]:
    return [figures.model_copy(update={"rests_on": hashes[figures.day]}) for figures in measured]


@dataclass(frozen=True)
class WindowSeries:
    """Calibration windows by day, the new ones among them, the days shown in each report, and the
    groups of each report's own window; or why there are none (`left_out`).
    """

    windows: Mapping[str, CalibrationWindow]
    shown: Mapping[str, Sequence[str]]
    new: Sequence[CalibrationWindow] = ()
    groups: Mapping[str, Sequence[GroupCalibration]] = field(default_factory=dict)
    left_out: str | None = None

    def windows_of(self, day: str) -> Sequence[CalibrationWindow] | str:
        return self.left_out or [self.windows[window_day] for window_day in self.shown[day]]


def load_windows(
    days: Sequence[str],
    files: Artefacts,
    params: OverTimeParams,
    quarantines: Quarantines,
    store: Store,
) -> WindowSeries:
    """The windows for the reports of `days`, from the stored reflection log and votes of each day,
    without quarantined votes. Groups of comparisons and annotators are those of the store.

    If a file of another day is broken, the series is left out with the reason, so that the reports
    are still made.
    """
    try:
        first = min([*files.days("reflection_log"), *days])
        report_windows = {day: report_days(day, first, params) for day in days}
        window_days = sorted(
            {window_day for windows in report_windows.values() for window_day in windows}
        )
        hashes = _hash_windows(window_days, files, params, quarantines)
        valid, missing = _keep_valid(
            files.read_reports("calibration", window_days, CalibrationWindow), hashes
        )
        measured, groups = _measure_windows(missing, days, files, params, quarantines, store)
    except (ArtefactError, FrameError) as cause:
        return WindowSeries({}, {}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    new = _mark(measured, hashes)
    return WindowSeries(valid | {window.day: window for window in new}, report_windows, new, groups)


def _hash_windows(
    days: Sequence[str], files: Artefacts, params: OverTimeParams, quarantines: Quarantines
) -> dict[str, str]:
    inside = {day: days_of_window(day, params) for day in days}
    hashes = files.hash_days(
        sorted({vote_day for vote_days in inside.values() for vote_day in vote_days}), WINDOW_STAGES
    )
    left_out = dict(quarantines.since)
    return {
        day: content_hash(WINDOW_VERSION, [hashes[vote_day] for vote_day in vote_days], left_out)
        for day, vote_days in inside.items()
    }


def _measure_windows(
    missing: Sequence[str],
    grouped: Sequence[str],
    files: Artefacts,
    params: OverTimeParams,
    quarantines: Quarantines,
    store: Store,
) -> tuple[list[CalibrationWindow], dict[str, Sequence[GroupCalibration]]]:
    """The windows of `missing` days, and the groups of the windows of `grouped` days. Groups are
    not stored with their window: a tag of an annotator changes them without a change of frames.
    """
    inside = sorted(
        {vote_day for day in {*missing, *grouped} for vote_day in days_of_window(day, params)}
    )
    reflections, votes = (
        quarantines.drop(files.read_days(stage, inside)) for stage in WINDOW_STAGES
    )
    predictions = _serve_by_day(reflections)
    group_names = group_votes(
        votes,
        store.comparisons.groups_of(votes["comparison_id"].unique().tolist()),
        store.annotator_groups.all(),
    )
    return (
        list(calibration_over_time(predictions, votes, missing, params)),
        dict(windows_by_group(predictions, votes, group_names, grouped, params)),
    )


def measure_single_days(
    days: Sequence[str], reflections: pd.DataFrame, votes: pd.DataFrame
) -> Sequence[CalibrationWindow]:
    """A window of one day for each of `days`, from their REFLECTION_LOG and VOTES."""
    return calibration_over_time(
        _serve_by_day(reflections), votes, days, OverTimeParams(window_days=1)
    )


def _serve_by_day(reflections: pd.DataFrame) -> pd.DataFrame:
    """`served_predictions` per day: a vote repeated on a later day is in the logs of both days and
    counts in each.
    """
    parts = [served_predictions(part) for _, part in reflections.groupby("day")]
    return pd.concat(parts, ignore_index=True) if parts else served_predictions(reflections)


@dataclass(frozen=True)
class PolicySeries:
    """Summaries of the deployed policy by day, the new ones among them; or why there are none
    (`left_out`).
    """

    days: Mapping[str, PolicyDay]
    new: Sequence[PolicyDay] = ()
    left_out: str | None = None

    def until(self, day: str) -> list[PolicyDay]:
        """Those of `day` and of the POLICY_DAYS before it, oldest first."""
        first = _days_until(day, POLICY_DAYS + 1)[0]
        return [self.days[past_day] for past_day in sorted(self.days) if first <= past_day <= day]


def load_policy_days(days: Sequence[str], files: Artefacts, store: Store) -> PolicySeries:
    """What the reports of `days` need. If a file of another day is broken, the series is left out
    with the reason, so that the reports are still made.
    """
    near = {earlier for day in days for earlier in _days_until(day, POLICY_DAYS + 1)}
    policy_days = sorted(near & set(files.days("completions")))
    hashes = {
        day: content_hash(POLICY_VERSION, content)
        for day, content in files.hash_days(policy_days, POLICY_STAGES).items()
    }
    valid, missing = _keep_valid(files.read_reports("policy", policy_days, PolicyDay), hashes)
    try:
        measured = [_summarise_policy(day, files, store) for day in missing]
    except (ArtefactError, FrameError) as cause:
        return PolicySeries({}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    new = _mark([policy_day for policy_day in measured if policy_day is not None], hashes)
    return PolicySeries(valid | {policy_day.day: policy_day for policy_day in new}, new)


def _summarise_policy(day: str, files: Artefacts, store: Store) -> PolicyDay | None:
    completions, comparisons = (files.read_days(stage, [day]) for stage in POLICY_STAGES)
    return summarise_policy_day(day, completions, comparisons, store.predictions.for_days([day]))


def _days_until(day: str, n_days: int) -> list[str]:
    """`n_days` days, oldest first, of which `day` is the last."""
    last = date.fromisoformat(day)
    return [(last - timedelta(days=n)).isoformat() for n in reversed(range(n_days))]


@dataclass
class ClusterSeries:
    """The clusters of earlier days, and the new ones of the days that are reported."""

    earlier: list[DayClusters] = field(default_factory=list)
    new: list[DayClusters] = field(default_factory=list)

    @classmethod
    def load(cls, first_day: str, files: Artefacts) -> "ClusterSeries":
        earlier = [day for day in files.report_days("clusters") if day < first_day][-DAYS_FOLLOWED:]
        return cls(list(files.read_reports("clusters", earlier, DayClusters).values()))

    def add_day(self, evidence: DayEvidence, params: ClusterParams) -> DayClusters | str:
        """The clusters of both windows' prompts, named and followed, or why there are none."""
        windows = [w for w in (evidence.reference, evidence.current) if w is not None]
        texts = evidence.texts(sorted({i for w in windows for i in w.rows["comparison_id"]}))
        try:
            clusters = semantic_clusters(
                evidence.reference,
                evidence.current,
                params,
                day=evidence.day,
                prompts={i: prompt for i, (prompt, _) in texts.items()},
            )
        except NotEnoughData as few:
            return str(few)
        clusters = clusters.model_copy(update={"noise_ceiling": evidence.noise_ceiling})
        self.new.append(follow(clusters, [*self.earlier, *self.new]))
        return self.new[-1]


def cluster_window(
    evidence: DayEvidence,
    files: Artefacts,
    champions: Champions,
    params: ClusterParams,
    quarantines: Quarantines,
) -> Window | None:
    """The judged comparisons of the last `cluster_days` days that the day's model predicted,
    without quarantined votes.
    """
    if evidence.current is None or params.cluster_days == 1:
        return evidence.current
    days = _days_until(evidence.day, params.cluster_days)
    return _read_judged(days, evidence.current.model_version, files, champions, quarantines)


def read_policy_reference(
    deployed: Sequence[PolicyDay], label: str, files: Artefacts, champions: Champions
) -> Window | None:
    """The judged comparisons of the policy of the last of `deployed`, from the days before it on
    which reward model `label` scored them, where the model's own reference holds texts of an
    earlier policy. None on the policy's first day, and where it served before the model did.
    """
    if not deployed:
        return None
    *earlier, today = deployed
    days = [
        past_day.day
        for past_day in earlier
        if (past_day.policy, past_day.reward_model) == (today.policy, label)
    ]
    began = {
        promotion.label: promotion.promoted_at
        for served in (today.policy, label)
        for promotion in champions.store.promotions.history(served.rpartition("@")[0])
    }
    if not days or not began.keys() >= {today.policy, label} or began[today.policy] < began[label]:
        return None
    quarantines = Quarantines.from_decisions(champions.store.decisions.fires())
    window = _read_judged(days, label, files, champions, quarantines)
    return replace(window, source=f"days of {today.policy} since {days[0]}")


def _read_judged(
    days: Sequence[str],
    label: str,
    files: Artefacts,
    champions: Champions,
    quarantines: Quarantines,
) -> Window:
    log = quarantines.drop(files.read_days("reflection_log", days))
    log = drop_gate_votes(log, champions.store)
    log = log[log["reward_model"] == label]
    embed, not_embedded = find_embedding(champions, label)
    return current_window(
        log,
        champions.store.comparisons.with_ids(log["comparison_id"].unique().tolist()),
        model_version=label,
        embed=embed,
        not_embedded=not_embedded,
    )


def drop_gate_votes(reflections: pd.DataFrame, store: Store) -> pd.DataFrame:
    """REFLECTIONS without the comparisons that the gate asked about: a candidate's texts are
    optimised to please the reward model and answer other prompts, so they differ from a day's
    without any change of taste.
    """
    sources = store.comparisons.groups_of(reflections["comparison_id"].unique().tolist())["source"]
    return reflections[reflections["comparison_id"].map(sources) != GATE_SOURCE]


def find_embedding(champions: Champions, label: str) -> tuple[Embed | None, str | None]:
    """The model's embedding function, or why there is none: the model may need an encoder that is
    no longer available, or be deleted from the registry.

    Its predictions are stored, so the rest of the report does not need it.
    """
    try:
        judge = champions.judge(champions.version(label))
    except (ModelError, InvalidScores) as cause:
        return None, f"{label} cannot be loaded, so its embeddings are missing. {cause}"
    return (judge.reward_model.features if judge else None), None
