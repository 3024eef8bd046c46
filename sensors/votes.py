"""The votes sensor: requests a day's feedback after enough new votes or enough quiet."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.jobs.feedback import feedback
from rlhf_pipeline.application.sensors.runs import (
    PARTITION_TAG,
    RANGE_END_TAG,
    RANGE_PROJECT_TAG,
    RANGE_START_TAG,
    UP_TO_SEQ_TAG,
    SensorTick,
    has_failed_here,
    loop_sensor,
    started_keys,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store, TouchedDay

# By day, votes whose feedback was not requested yet: `n` of them, the last one's `seq`, when it
# was received (`last`). Part of the sensor's cursor.
Waiting = Mapping[str, Mapping[str, Any]]


@loop_sensor("votes", feedback, is_quick=True)
def votes_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Reports days with new votes to `votes_inbox` and requests their feedback."""
    store, settings = tick.store, tick.settings
    cursor: dict[str, Any] = (
        json.loads(tick.context.cursor) if tick.context.cursor else {"seq": 0, "waiting": {}}
    )
    touched = store.votes.touched_days(cursor["seq"])
    waiting = _add_votes(cursor["waiting"], touched)
    first, last = DAYS.get_first_partition_key() or "", DAYS.get_last_partition_key() or ""
    replaying = set(store.replays.pending_days())
    now = datetime.now(UTC)
    due = {
        day: w
        for day, w in waiting.items()
        if first <= day <= last and day not in replaying and _is_due(w, settings, now)
    }
    later = {day: w for day, w in waiting.items() if day not in due}
    seq = max([cursor["seq"], *(t.max_seq for t in touched)])
    requests = _request_feedback(tick.instance, due, settings.project) if due else []
    return dg.SensorResult(
        run_requests=requests,
        asset_events=[
            _inbox_materialisation(store, t) for t in touched if first <= str(t.day) <= last
        ],
        cursor=json.dumps({"seq": seq, "waiting": later}),
        skip_reason=None if requests else _describe_waiting(touched, later, replaying),
    )


def _describe_waiting(touched: Sequence[TouchedDay], later: Waiting, replaying: set[str]) -> str:
    n = len(replaying & later.keys())
    return (
        f"{format_count(len(touched), 'day')} touched, {len(later)} waiting for more votes, "
        f"quiet, or "
        "their day's partition" + (f"; {n} of them for their replay" if n else "")
    )


def _add_votes(waiting: Waiting, touched: Sequence[TouchedDay]) -> dict[str, dict[str, Any]]:
    merged = {day: dict(w) for day, w in waiting.items()}
    for t in touched:
        before = merged.get(str(t.day), {"n": 0})
        merged[str(t.day)] = {
            "n": before["n"] + t.n_new,
            "seq": t.max_seq,
            "last": t.last_received_at.isoformat(),
        }
    return merged


def _is_due(waiting: Mapping[str, Any], settings: Settings, now: datetime) -> bool:
    quiet = now - datetime.fromisoformat(waiting["last"])
    return bool(
        waiting["n"] >= settings.votes_per_request
        or quiet >= timedelta(minutes=settings.quiet_minutes)
    )


def _request_feedback(
    instance: dg.DagsterInstance, due: Waiting, project: str
) -> list[dg.RunRequest]:
    """One run per stretch of neighbouring days: an import of months is a few runs, not hundreds."""
    new = _drop_requested(instance, due, project)
    return [
        _request_stretch(stretch, max(new[day]["seq"] for day in stretch), project)
        for stretch in group_neighbouring_days(sorted(new))
    ]


def _drop_requested(
    instance: dg.DagsterInstance, due: Waiting, project: str
) -> dict[str, Mapping[str, Any]]:
    """The due days for whose votes no run was requested, alone or in a range: after a reset of the
    cursor all days are due.
    """
    alone = started_keys(instance, [_run_key(project, day, w["seq"]) for day, w in due.items()])
    ranges = [
        run.tags
        for run in instance.get_runs(
            dg.RunsFilter(job_name=feedback.name, tags={RANGE_PROJECT_TAG: project})
        )
        if not has_failed_here(run)
    ]

    def is_requested(day: str, seq: int) -> bool:
        # A replay is of one day, and tags its last vote as a range does.
        in_range = any(
            _first_day(tags) <= day <= _last_day(tags) and int(tags[UP_TO_SEQ_TAG]) >= seq
            for tags in ranges
        )
        return in_range or _run_key(project, day, seq) in alone

    return {day: w for day, w in due.items() if not is_requested(day, w["seq"])}


def _first_day(tags: Mapping[str, str]) -> str:
    return tags.get(RANGE_START_TAG) or tags[PARTITION_TAG]


def _last_day(tags: Mapping[str, str]) -> str:
    return tags.get(RANGE_END_TAG) or tags[PARTITION_TAG]


def _run_key(project: str, days: str, seq: int) -> str:
    return f"votes:{project}:{days}:{seq}"


def _request_stretch(stretch: Sequence[str], seq: int, project: str) -> dg.RunRequest:
    config = {"ops": {"votes": {"config": {"up_to_seq": seq}}}}
    first, last = stretch[0], stretch[-1]
    if first == last:
        return dg.RunRequest(
            run_key=_run_key(project, first, seq), partition_key=first, run_config=config
        )
    return dg.RunRequest(
        run_key=_run_key(project, f"{first}...{last}", seq),
        run_config=config,
        tags={
            RANGE_START_TAG: first,
            RANGE_END_TAG: last,
            RANGE_PROJECT_TAG: project,
            UP_TO_SEQ_TAG: str(seq),
        },
    )


def group_neighbouring_days(days: Sequence[str]) -> list[list[str]]:
    """Stretches of consecutive days; `days` in order."""
    stretches: list[list[str]] = []
    for day in days:
        before = date.fromisoformat(day) - timedelta(days=1)
        if stretches and stretches[-1][-1] == before.isoformat():
            stretches[-1].append(day)
        else:
            stretches.append([day])
    return stretches


def _inbox_materialisation(store: Store, touched: TouchedDay) -> dg.AssetMaterialization:
    day, seq = str(touched.day), touched.max_seq
    digest = store.votes.day_digest(day, up_to_seq=seq)
    return dg.AssetMaterialization(
        "votes_inbox",
        partition=day,
        metadata={"rows": digest.n, "max_seq": seq, "sha256": digest.sha256},
        tags={"dagster/data_version": digest.sha256[:20]},
    )
