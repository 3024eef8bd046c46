"""Routes of messages about alerts: list them, send dead ones again, test a target."""

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Path, Query

from rlhf_pipeline.alerts.channels import channels_of
from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.api_types.alerts import AlertMessageOut, TestMessageOut
from rlhf_pipeline.api_types.base import LARGEST, Page
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import MessageState
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.idempotency import runs_once
from rlhf_pipeline.web.pagination import Cursor, Limit, cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import api_router, problem_responses

api = api_router("alerts")
READER = [Depends(needs_all_votes(Permission.ALERTS_READ, "alerts"))]
EDITOR = [Depends(needs_all_votes(Permission.ALERTS_WRITE, "alerts"))]
Editor = Annotated[Principal, Depends(needs_all_votes(Permission.ALERTS_WRITE, "alerts"))]
SECONDS = 10.0


@api.get("/alerts/messages", dependencies=READER)
def read_all(
    site: AnySite,
    state: MessageState | None = None,
    alert_id: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AlertMessageOut]:
    """Messages about alerts with their payloads and attempts, newest first."""
    found = site.store.alert_messages.page(
        state=state, alert_id=alert_id, before=_parse_place(cursor), limit=limit
    )
    last = found[-1] if len(found) == limit else None
    return Page(
        items=tuple(AlertMessageOut.model_validate(each.model_dump()) for each in found),
        next=make_cursor(last.created_at.isoformat(), last.message_id) if last else None,
    )


@api.post("/alerts/messages/{message_id}:replay", responses=problem_responses(404))
@runs_once()
def replay(
    site: AnySite, principal: Editor, message_id: Annotated[str, Path(max_length=200)]
) -> AlertMessageOut:
    """Send a dead message again, from its first attempt. It leaves with the next tick."""
    now = site.store.database.clock.now()
    again = site.store.alert_messages.replay(message_id, now, actor=principal.user_id)
    return AlertMessageOut.model_validate(again.model_dump())


@api.post("/alerts/targets/{target}:test", dependencies=EDITOR, responses=problem_responses(404))
def send_test(site: AnySite, target: Annotated[str, Path(max_length=200)]) -> TestMessageOut:
    """Send a test message to a configured target now; the answer says what happened."""
    channels = channels_of(site.settings)
    if target not in channels:
        raise Problem(404, f"There is no target {target!r} in alert_targets.", kind="not_found")
    now = site.store.database.clock.now()
    message = build_test_message(
        target, project=site.settings.project, link=site.settings.web_url, now=now
    )
    is_delivered = True
    try:
        detail = channels[target].send(message, now=now, seconds=SECONDS)
    except (DeliveryFailed, ConfigurationError) as failure:
        is_delivered, detail = False, str(failure)
    return TestMessageOut(message_id=message.message_id, is_delivered=is_delivered, detail=detail)


def _parse_place(cursor: str | None) -> tuple[datetime, str] | None:
    """Raises Problem 422 for an invalid cursor."""
    place = parse_cursor(cursor, str, str)
    if place is None:
        return None
    try:
        created_at = datetime.fromisoformat(place[0])
    except ValueError:
        raise cursor_problem() from None
    if created_at.tzinfo is None:
        raise cursor_problem()
    return created_at, place[1]
