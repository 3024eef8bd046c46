"""Reads calibrators and probes as each reader may see them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import Filter, ProbeFilter
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import ReliabilityBin
from rlhf_pipeline.feedback.votes.annotator_groups import MIN_ANNOTATORS
from rlhf_pipeline.improve.evaluation.probe import find_bin, pairs_of_bin, rank_pairs
from rlhf_pipeline.learn.calibration.dimension_calibration import DIMENSION
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.web.calibration.answers import (
    CalibrationFilter,
    CalibrationOut,
    CalibratorState,
    ProbedPair,
    ProbedPairFilter,
    ProbeOut,
)
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


def parts_of(selection: CalibrationFilter) -> dict[str, str]:
    """The groups of comparisons, which the test split knows too, and the dimension: what a
    calibrator is measured on apart from all.
    """
    dimension = {} if selection.dimension is None else {DIMENSION: selection.dimension}
    return selection.comparison_groups | dimension


def describe_votes(selection: CalibrationFilter) -> str:
    """The chosen groups and days, for a sentence about votes."""
    since, until = selection.since, selection.until
    return ", ".join(
        [
            *selection.comparison_groups.values(),
            *([f"group {selection.group}"] if selection.group is not None else []),
            *([f"days since {since}"] if since else []),
            *([f"days until {until}"] if until else []),
        ]
    )


def query_of_selection(selection: CalibrationFilter, **more: str) -> str:
    """As the query of an address, with `more` parameters at its end."""
    chosen = {name: selection.chosen[name] for name in CalibrationFilter.model_fields}
    return urlencode({name: value for name, value in (chosen | more).items() if value})


def describe_minimum(selection: CalibrationFilter) -> str:
    """Why chosen votes are withheld."""
    people = "" if selection.group is None else f", or fewer than {MIN_ANNOTATORS} annotators"
    return f"Withheld: fewer than {MIN_PAIRS} judged comparisons{people}."


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
    return _find_entry(site, model, version)


def find_selected(site: Site, selection: CalibrationFilter) -> LoggedCalibration | None:
    """The chosen calibrator, else the one that the model predicts through. The model is by default
    the champion; before the first champion, the last fitted calibrator is shown.
    """
    calibrations = site.store.calibrations
    if selection.version is not None:
        return find_chosen(site, selection)
    model = selection.model or _champion_label(site)
    serving = None if model is None else find_serving_version(site, model)
    if model is not None and serving is not None:
        return calibrations.entry(model, serving)
    newest = calibrations.entry_keys(limit=1) if selection.model is None else []
    return calibrations.entry(*newest[0][1:]) if newest else None


def read_probe(site: Site, selection: CalibrationFilter) -> ProbeOut | None:
    """None for an imported calibrator, through which nothing here is predicted."""
    chosen = find_chosen(site, selection)
    if chosen is not None and chosen.is_imported:
        return None
    return site.probe(build_probe_filter(site, selection)).figures


def build_probe_filter(site: Site, selection: CalibrationFilter) -> ProbeFilter:
    chosen = find_chosen(site, selection)
    return ProbeFilter(
        **selection.model_dump(include=set(ProbeFilter.model_fields)),
        reward_model=selection.model,
        calibrator=None if chosen is None else f"{chosen.report.method}@{chosen.version}",
    )


def write_headline(probe: ProbeOut | None) -> str:
    """What the votes say of the stated confidence."""
    if probe is None or probe.reward_model is None:
        return "Calibration"
    name = name_models(probe.reward_model)
    if probe.ece is None:
        return f"Calibration of {name}"
    error = f"{probe.ece.value:.0%} off on average"
    if probe.slope is not None and not probe.slope.low <= 1 <= probe.slope.high:
        lean = "overconfident" if probe.slope.high < 1 else "underconfident"
        first = name_models(probe.reward_model, is_first=True)
        return f"{first} is {lean}: its confidence is {error}"
    return f"The confidence of {name} is {error}"


def page(site: Site, filters: Filter, reward_model: str | None = None) -> Page[CalibrationOut]:
    """The whole log, or that of one reward model; the last fitted first."""
    keys = site.store.calibrations.entry_keys(
        before=_parse_log_cursor(filters.cursor), limit=filters.limit, reward_model=reward_model
    )
    following = None
    if len(keys) == filters.limit:
        fitted_at, label, version = keys[-1]
        following = make_cursor(fitted_at.isoformat(), label, version)
    return Page(items=describe_entries(site, [key[1:] for key in keys]), next=following)


def describe_entries(site: Site, keys: Iterable[tuple[str, int]]) -> list[CalibrationOut]:
    """Entries by reward model and version, with their state given the current champion. Unknown
    ones are left out.
    """
    entries = [entry for key in keys if (entry := site.store.calibrations.entry(*key)) is not None]
    champion = _champion_label(site)
    serving = {
        model: find_serving_version(site, model)
        for model in {entry.report.reward_model for entry in entries}
    }
    return [
        CalibrationOut(
            **entry.report.model_dump(exclude={"data_seq"} if entry.is_imported else None),
            version=entry.version,
            state=_find_state(entry, serving[entry.report.reward_model], champion),
        )
        for entry in entries
    ]


def _find_entry(site: Site, reward_model: str, version: int) -> LoggedCalibration:
    entry = site.store.calibrations.entry(reward_model, version)
    if entry is None:
        message = f"The log has no calibrator {version} of {reward_model!r}."
        raise Problem(404, message, kind="not_found")
    return entry


def find_serving_version(site: Site, reward_model: str) -> int | None:
    """The version that a model predicts through."""
    serving = site.store.calibrations.latest_serving(reward_model)
    return None if serving is None else serving[0].calibrator_version


def _find_state(
    entry: LoggedCalibration, serving: int | None, champion: str | None
) -> CalibratorState:
    if entry.is_imported:
        return "imported"
    if not entry.report.may_serve:
        return "refused"
    if entry.version != serving:
        return "replaced"
    return "serving" if entry.report.reward_model == champion else "standby"


def _champion_label(site: Site) -> str | None:
    champion = site.store.promotions.champion(site.settings.reward_model)
    return None if champion is None else champion.label


def pairs(
    site: Site, principal: Principal, filters: ProbedPairFilter
) -> tuple[ReliabilityBin, Page[ProbedPair]]:
    """The bin that contains a stated confidence, and its votes, wrong predictions first.

    Raises Problem 404 for an empty bin.
    """
    place = parse_cursor(filters.cursor, int, int)
    probed = site.probe(filters)
    try:
        chosen_bin = find_bin(probed.figures.bins, filters.bin)
    except NotEnoughData as none:
        raise Problem(404, str(none), kind="empty_bin") from none
    assert probed.rows is not None  # where there are bins
    rows = pairs_of_bin(probed.rows, chosen_bin)
    if place is not None:
        rank = rank_pairs(rows["wrong"])
        rows = rows[(rank > place[0]) | ((rank == place[0]) & (rows["seq"] > place[1]))]
    page_rows = rows.head(filters.limit)
    following = (
        make_cursor(int(rank_pairs(page_rows["wrong"]).iloc[-1]), int(page_rows["seq"].iloc[-1]))
        if len(rows) > filters.limit
        else None
    )
    return chosen_bin, Page(items=_build_pairs(site, principal, page_rows), next=following)


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


def _build_pairs(site: Site, principal: Principal, rows: pd.DataFrame) -> list[ProbedPair]:
    texts: dict[str, Any] = {}
    if principal.may(Permission.COMPARISONS_READ):
        texts = dict(site.store.comparisons.texts(list(rows["comparison_id"])))
    if not principal.may(Permission.VOTES_READ):
        rows = rows.drop(columns=["choice", "strength", "annotator_id", "wrong"])
    return [
        ProbedPair.model_validate({**dict(texts.get(row["comparison_id"], ())), **row})
        for row in plain_rows(rows)
    ]
