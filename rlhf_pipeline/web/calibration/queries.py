"""Reads calibrators and probes as each reader may see them."""

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import pandas as pd
from pydantic import Field

from rlhf_pipeline.api_types.base import Answer, Page
from rlhf_pipeline.api_types.filters import Filter, GroupFilter, ProbeFilter, Value
from rlhf_pipeline.calibration.dimension_calibration import DIMENSION
from rlhf_pipeline.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.evaluation.probe import find_bin, pairs_of_bin, rank_pairs
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import (
    CalibrationMetrics,
    Choice,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.votes.annotator_groups import MIN_ANNOTATORS
from rlhf_pipeline.web.calibration.log import CalibrationOut, describe_entries, find_serving_version
from rlhf_pipeline.web.calibration.probe_counter import ProbeResult
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

Confidence = Annotated[
    float, Field(ge=0.5, le=1, description="Stated confidence that lies in the bin.")
]


class CalibrationFilter(GroupFilter):
    """A reward model, one of its calibrators, later votes, and a dimension of the rubric."""

    version: int | None = Field(default=None, ge=1, lt=2**31)
    dimension: Value = None


class CalibrationPageFilter(CalibrationFilter, Filter):
    """The same, and a page of the log of calibrators."""


class CalibrationBinFilter(CalibrationPageFilter):
    """The same, and the votes of one bin."""

    bin: Confidence


class ProbedPairFilter(ProbeFilter, Filter):
    """Which votes in a bin of the diagram."""

    bin: Confidence


class ProbeOut(Answer):
    """Predictions made before their votes, compared with these votes. Without such predictions the
    figures are null and there are no bins.
    """

    reward_model: str | None = Field(description="Null before the first prediction.")
    calibrator: str | None = Field(
        description="The requested calibrator as method@version; null means all calibrators that "
        "the model predicted through."
    )
    n_votes: int = Field(description="Number of votes for a side that have a prediction.")
    n_comparisons: int
    newest_only: bool = Field(description="Whether only the newest votes are counted.")
    is_withheld: bool = Field(
        default=False,
        description="Whether the chosen votes are of too few comparisons or annotators.",
    )
    accuracy: Interval | None
    noise_ceiling: Interval | None = Field(
        description="Accuracy of a perfect model on the same comparisons; null if unknown."
    )
    ece: Interval | None
    ece_debiased: Interval | None
    slope: Interval | None
    brier: Interval | None
    raw_bins: tuple[ReliabilityBin, ...] = Field(
        default=(), description="The diagram before calibration, by the uncalibrated confidence."
    )
    bins: tuple[ReliabilityBin, ...]
    by_group: tuple[GroupCalibration, ...] = Field(
        default=(),
        description="The figures of each source and category before and after calibration; null "
        "for too few comparisons, and none where the request chooses a group.",
    )
    counted_at: datetime


class ProbedPair(Answer):
    """A vote with its prediction. Fields that the user may not read are null."""

    comparison_id: str
    seq: int
    p_raw: float = Field(description="P(a preferred) by the reward model.")
    p_calibrated: float = Field(description="P(a preferred) after calibration, as served.")
    prompt: str | None = Field(
        description="Only for users with `comparisons.read`, like both completions."
    )
    completion_a: str | None
    completion_b: str | None
    choice: Choice | None = Field(
        description="Only for users with `votes.read`, like annotator_id, strength and wrong."
    )
    strength: int | None
    annotator_id: str | None
    wrong: bool | None = Field(
        description="Whether the vote went against the higher score. Null too where `p_calibrated` "
        "is exactly 0.5: no side is predicted, and the vote counts half in its bin."
    )


def parts_of(selection: CalibrationFilter) -> dict[str, str]:
    """The groups of comparisons, which the test split knows too, and the dimension: what a
    calibrator is measured on apart from all.
    """
    dimension = {} if selection.dimension is None else {DIMENSION: selection.dimension}
    return selection.comparison_groups | dimension


def describe_votes(selection: CalibrationFilter) -> list[str]:
    """The chosen groups and days, for a sentence about votes."""
    since, until = selection.since, selection.until
    return [
        *selection.comparison_groups.values(),
        *([f"group {selection.group}"] if selection.group is not None else []),
        *([f"days since {since}"] if since else []),
        *([f"days until {until}"] if until else []),
    ]


def query_of_selection(selection: CalibrationFilter, **more: str) -> str:
    """As the query of an address, with `more` parameters at its end."""
    chosen = {name: selection.chosen[name] for name in CalibrationFilter.model_fields}
    return urlencode({name: value for name, value in (chosen | more).items() if value})


def describe_minimum(selection: CalibrationFilter) -> str:
    """Why chosen votes are withheld."""
    people = "" if selection.group is None else f", or fewer than {MIN_ANNOTATORS} annotators"
    return f"fewer than {MIN_PAIRS} judged comparisons{people}"


def find_chosen(site: Site, selection: CalibrationFilter) -> LoggedCalibration | None:
    """The calibrator of the address, if it names one.

    Raises Problem 404 for one that is not in the log, 422 for a number without its model.
    """
    model, version = selection.model, selection.version
    if version is None:
        return None
    if model is None:
        raise Problem(
            422,
            "version needs its model: add ?model=name@version.",
            kind="invalid",
            errors=[("query.model", "is missing")],
        )
    found = site.store.calibrations.entry(model, version)
    if found is None:
        raise Problem(404, f"The log has no calibrator {version} of {model!r}.", kind="not_found")
    return found


def find_shown(site: Site, selection: CalibrationFilter) -> LoggedCalibration | None:
    """The chosen calibrator; else the one that the model predicts through, or its newest one. The
    model is by default the champion; before the first champion, the last fitted one is shown.
    """
    calibrations = site.store.calibrations
    if selection.version is not None:
        return find_chosen(site, selection)
    model = selection.model or _champion_label(site)
    if model is not None:
        versions = calibrations.versions(model)
        version = find_serving_version(site.store, model) or next(iter(versions), None)
        if version is not None or selection.model is not None:
            return None if version is None else calibrations.entry(model, version)
    newest = calibrations.entry_keys(limit=1)
    return calibrations.entry(*newest[0][1:]) if newest else None


def build_probe_query(
    selection: CalibrationFilter, chosen: LoggedCalibration | None
) -> ProbeFilter:
    return ProbeFilter(
        reward_model=selection.model,
        calibrator=None if chosen is None else f"{chosen.report.method}@{chosen.version}",
        category=selection.category,
        source=selection.source,
        group=selection.group,
        since=selection.since,
        until=selection.until,
    )


def page(site: Site, *, cursor: str | None, limit: int) -> Page[CalibrationOut]:
    """The whole log, the last fitted first."""
    found = site.store.calibrations.entry_keys(before=_parse_log_cursor(cursor), limit=limit)
    following = None
    if len(found) == limit:
        fitted_at, reward_model, version = found[-1]
        following = make_cursor(fitted_at.isoformat(), reward_model, version)
    return Page(
        items=describe_entries(
            site.store,
            [(reward_model, version) for _, reward_model, version in found],
            _champion_label(site),
        ),
        next=following,
    )


def entry(site: Site, reward_model: str, version: int) -> CalibrationOut:
    """Raises Problem 404 for one that is not in the log."""
    found = describe_entries(site.store, [(reward_model, version)], _champion_label(site))
    if not found:
        raise Problem(
            404, f"The log has no calibrator {version} of {reward_model!r}.", kind="not_found"
        )
    return found[0]


def _champion_label(site: Site) -> str | None:
    champion = site.store.promotions.champion(f"{site.settings.project}.reward_model")
    return None if champion is None else f"{champion.model_name}@{champion.version}"


def probe_of(site: Site, asked: ProbeFilter) -> ProbeOut:
    return _build_probe(asked, site.probe(asked))


def pairs(
    site: Site,
    principal: Principal,
    asked: ProbedPairFilter,
) -> tuple[ReliabilityBin, Page[ProbedPair]]:
    """The bin that contains a stated confidence, and its votes, wrong predictions first.

    Raises Problem 404 for an empty bin.
    """
    place = parse_cursor(asked.cursor, int, int)
    probed = site.probe(asked)
    try:
        wanted = find_bin(() if probed.probe is None else probed.probe.bins, asked.bin)
    except NotEnoughData as none:
        raise Problem(404, str(none), kind="empty_bin") from none
    assert probed.judged is not None  # where there are bins
    rows = pairs_of_bin(probed.judged, wanted)
    if place is not None:
        rank = rank_pairs(rows["wrong"])
        rows = rows[(rank > place[0]) | ((rank == place[0]) & (rows["seq"] > place[1]))]
    shown = rows.head(asked.limit)
    following = (
        make_cursor(int(rank_pairs(shown["wrong"]).iloc[-1]), int(shown["seq"].iloc[-1]))
        if len(rows) > asked.limit
        else None
    )
    return wanted, Page(items=_build_pairs(site, principal, shown), next=following)


def _parse_log_cursor(cursor: str | None) -> tuple[datetime, str, int] | None:
    place = parse_cursor(cursor, str, str, int)
    if place is None:
        return None
    try:
        fitted_at = datetime.fromisoformat(place[0])
        fitted_at.utctimetuple()
        if fitted_at.tzinfo is not None and abs(place[2]) < 2**31:
            return fitted_at, place[1], place[2]
    except (ValueError, OverflowError):
        pass
    raise cursor_problem()


def _build_probe(asked: ProbeFilter, probed: ProbeResult) -> ProbeOut:
    found = probed.probe
    metrics: CalibrationMetrics | None = None if found is None else found.metrics
    return ProbeOut(
        reward_model=probed.reward_model,
        calibrator=asked.calibrator,
        n_votes=0 if found is None else found.n_votes,
        n_comparisons=0 if found is None else found.n_comparisons,
        newest_only=probed.is_cut,
        is_withheld=probed.is_withheld,
        accuracy=None if metrics is None else metrics.accuracy,
        noise_ceiling=None if found is None else found.noise_ceiling,
        ece=None if metrics is None else metrics.ece_equal_mass,
        ece_debiased=None if metrics is None else metrics.ece_debiased,
        slope=None if metrics is None else metrics.slope,
        brier=None if metrics is None else metrics.brier,
        raw_bins=() if found is None else found.raw_bins,
        bins=() if found is None else found.bins,
        by_group=probed.by_group,
        counted_at=probed.counted_at,
    )


def _build_pairs(site: Site, principal: Principal, rows: pd.DataFrame) -> list[ProbedPair]:
    may_read = principal.may(Permission.COMPARISONS_READ)
    may_see_votes = principal.may(Permission.VOTES_READ)
    texts = (
        site.store.comparisons.texts(rows["comparison_id"].unique().tolist()) if may_read else {}
    )
    return [
        _build_pair(row, texts.get(row.comparison_id), may_see_votes=may_see_votes)
        for row in rows.itertuples()
    ]


def _build_pair(row: Any, texts: Any, *, may_see_votes: bool) -> ProbedPair:
    strength = None if pd.isna(row.strength) else int(row.strength)
    said = {
        "choice": row.choice,
        "strength": strength,
        "annotator_id": row.annotator_id,
        "wrong": None if pd.isna(row.wrong) else bool(row.wrong),
    }
    return ProbedPair(
        comparison_id=row.comparison_id,
        seq=int(row.seq),
        p_raw=float(row.p_raw),
        p_calibrated=float(row.p_calibrated),
        **{
            name: None if texts is None else getattr(texts, name)
            for name in ("prompt", "completion_a", "completion_b")
        },
        **(said if may_see_votes else dict.fromkeys(said)),
    )
