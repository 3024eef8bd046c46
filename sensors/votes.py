"""The votes sensor: one indexed query tells which days got news; a day's feedback runs after enough
votes or enough quiet.
"""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from assets.partitions import DAYS
from jobs.feedback import feedback
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.runs import started_keys, store_of

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
# of a range run, beside the project's name: by these it is found again
UP_TO_SEQ_TAG = "rlhf/up_to_seq"
RANGE_PROJECT_TAG = "rlhf/range_of_project"


def votes_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="votes",
        job=feedback,
        minimum_interval_seconds=settings.sensor_seconds,
        default_status=status,
    )
    def votes(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Reports touched days to `votes_inbox` and requests their feedback."""
        store = store_of(context, settings)
        cursor = json.loads(context.cursor) if context.cursor else {"seq": 0, "waiting": {}}
        touched = store.votes.touched_days(cursor["seq"])
        waiting = _merge_waiting(cursor["waiting"], touched)
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
        requests = (
            _make_requests(
                _drop_requested(context.instance, due, settings.project), settings.project
            )
            if due
            else []
        )
        return dg.SensorResult(
            run_requests=requests,
            asset_events=[
                _inbox_materialisation(store, t.day, t.max_seq)
                for t in touched
                if first <= str(t.day) <= last
            ],
            cursor=json.dumps({"seq": seq, "waiting": later}),
            skip_reason=None
            if requests
            else f"{len(touched)} days touched, {len(later)} waiting for more votes, quiet, or "
            "their day's partition"
            + (
                f"; {len(replaying & later.keys())} of them for their replay"
                if replaying & later.keys()
                else ""
            ),
        )

    return votes


def _merge_waiting(
    waiting: Mapping[str, Mapping[str, Any]], touched: Any
) -> dict[str, dict[str, Any]]:
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
    quiet = now - datetime.fromisoformat(waiting["last"]) >= timedelta(
        minutes=settings.quiet_minutes
    )
    return bool(waiting["n"] >= settings.votes_per_request or quiet)


def _drop_requested(
    instance: dg.DagsterInstance, due: Mapping[str, Mapping[str, Any]], project: str
) -> dict[str, Mapping[str, Any]]:
    """The due days whose votes no run was asked for yet, alone or in a range: after a reset of the
    cursor all days are due.
    """
    alone = started_keys(instance, [_run_key(project, day, w["seq"]) for day, w in due.items()])
    ranges = [
        run.tags
        for run in instance.get_runs(
            dg.RunsFilter(job_name=feedback.name, tags={RANGE_PROJECT_TAG: project})
        )
    ]

    def is_asked(day: str, seq: int) -> bool:
        # A replay is of one day, and says up to which vote as a range does.
        in_range = any(
            _first_day(tags) <= day <= _last_day(tags) and int(tags[UP_TO_SEQ_TAG]) >= seq
            for tags in ranges
        )
        return in_range or _run_key(project, day, seq) in alone

    return {day: w for day, w in due.items() if not is_asked(day, w["seq"])}


def _first_day(tags: Mapping[str, str]) -> str:
    return tags.get(RANGE_START) or tags["dagster/partition"]


def _last_day(tags: Mapping[str, str]) -> str:
    return tags.get(RANGE_END) or tags["dagster/partition"]


def _run_key(project: str, days: str, seq: int) -> str:
    return f"votes:{project}:{days}:{seq}"


def _make_requests(due: Mapping[str, Mapping[str, Any]], project: str) -> list[dg.RunRequest]:
    """One run per stretch of neighbouring days: an import of months is a few runs, not hundreds."""
    requests = []
    for stretch in group_neighbouring_days(sorted(due)):
        seq = max(due[day]["seq"] for day in stretch)
        config = {"ops": {"votes": {"config": {"up_to_seq": seq}}}}
        first, last = stretch[0], stretch[-1]
        if first == last:
            requests.append(
                dg.RunRequest(
                    run_key=_run_key(project, first, seq), partition_key=first, run_config=config
                )
            )
        else:
            tags = {
                RANGE_START: first,
                RANGE_END: last,
                RANGE_PROJECT_TAG: project,
                UP_TO_SEQ_TAG: str(seq),
            }
            requests.append(
                dg.RunRequest(
                    run_key=_run_key(project, f"{first}...{last}", seq),
                    run_config=config,
                    tags=tags,
                )
            )
    return requests


def group_neighbouring_days(days: list[str]) -> list[list[str]]:
    """Neighbouring days together; `days` in order."""
    found: list[list[str]] = []
    for day in days:
        if found and date.fromisoformat(day) - date.fromisoformat(found[-1][-1]) == timedelta(
            days=1
        ):
            found[-1].append(day)
        else:
            found.append([day])
    return found


def _inbox_materialisation(store: Store, day: Any, seq: int) -> dg.AssetMaterialization:
    digest = store.votes.day_digest(str(day), up_to_seq=seq)
    return dg.AssetMaterialization(
        "votes_inbox",
        partition=str(day),
        metadata={"rows": digest.n, "max_seq": seq, "sha256": digest.sha256},
        tags={"dagster/data_version": digest.sha256[:20]},
    )
