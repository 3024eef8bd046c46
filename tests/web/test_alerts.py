"""Alerts by the API: read, taken care of, closed; rules changed."""

from datetime import timedelta

import httpx
import pytest

from rlhf_pipeline.core.monitoring import AlertMessage
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.messages import build_test_message
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rounds import advance_alerts, read_plan
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web

ALERTS = "/alerts"


@pytest.fixture
def engineer(web: Web):
    return web.client("engineer")


def look(web: Web, value: float, *figures: str, progress: str = "") -> None:
    """One round with these figures, by default the hours that the oldest comparison has waited."""
    plan, now = read_plan(web.settings), utc_now()
    readings = [
        Reading(name, now, value, progress=progress) for name in figures or ("queue.oldest_hours",)
    ]
    advance_alerts(web.store, plan, readings, now)


def add_dead_message(store: Store, *, alert_id: int | None = None, after: int = 0) -> AlertMessage:
    at = utc_now() + timedelta(seconds=after)
    message = build_test_message("team", at, project="demo")
    store.alert_messages.add([message.model_copy(update={"alert_id": alert_id})])
    store.alert_messages.mark_failed(message.message_id, "answered 500", next_attempt_at=None)
    return store.alert_messages.get(message.message_id)


def test_an_alert_is_read_acknowledged_and_closed(web: Web, engineer):
    look(web, 80)
    (alert,) = engineer.get(ALERTS).json()["items"]
    assert (alert["rule"], alert["state"], alert["value"]) == ("queue_age", "open", 80)
    alert_url = f"{ALERTS}/{alert['alert_id']}"
    acknowledged = engineer.post(f"{alert_url}:acknowledge").json()
    assert acknowledged["state"] == "acknowledged"
    again = engineer.post(f"{alert_url}:acknowledge")
    assert (again.status_code, again.json()["type"]) == (409, "urn:rlhf:problem:alert_state")
    assert (
        engineer.post(f"{alert_url}:resolve").json()["resolved_by"]
        == acknowledged["acknowledged_by"]
    )
    assert engineer.get(ALERTS).json()["items"] == []
    assert engineer.get(f"{ALERTS}?state=resolved&rule=queue_age").json()["items"] != []
    assert engineer.get(f"{ALERTS}/99").status_code == 404


def test_unserved_answer_is_shown_in_list_and_page(paged: Web):
    look(paged, 1, "drift.unanswered", progress="answered, not served")
    engineer = paged.client("engineer")
    assert engineer.get(ALERTS).json()["items"][0]["progress"] == "answered, not served"
    page = paged.browser(paged.add("engineer")).get(f"{paged.url}/alerts").text
    assert page.count("answered, not served") == 1
    assert "1 alert is open, 1 critical" in " ".join(page.split())


def test_an_acknowledged_alert_is_not_counted_as_open(paged: Web):
    look(paged, 1, "drift.unanswered")
    engineer = paged.client("engineer")
    [critical] = engineer.get(ALERTS).json()["items"]
    engineer.post(f"{ALERTS}/{critical['alert_id']}:acknowledge")
    look(paged, 80, "drift.unanswered", "queue.oldest_hours")
    page = paged.browser(paged.add("engineer")).get(f"{paged.url}/alerts").text
    assert "1 alert is open</p>" in " ".join(page.split())


def test_messages_are_listed_and_resent(web: Web, engineer) -> None:
    ids = [add_dead_message(web.store, after=-i).message_id for i in range(3)]

    def listed(**query) -> list[str]:
        page = engineer.get("alerts/messages", params=query).json()
        return [message["message_id"] for message in page["items"]]

    assert listed(limit=2) == ids[:2]
    replayed = engineer.post(f"alerts/messages/{ids[1]}:replay").json()
    assert (replayed["state"], replayed["n_attempts"]) == ("pending", 0)
    assert listed(state="dead") == [ids[0], ids[2]]
    assert engineer.post(f"alerts/messages/{ids[1]}:replay").status_code == 404


def test_the_page_acknowledges_and_resolves(web: Web):
    look(web, 80)
    with WebServer(create_app(web.settings, web.store, cache_times=UNCACHED)) as server:
        paged = Web(web.store, web.settings, server.url, web.clock)
        browser, address = paged.browser(paged.add("engineer")), f"{server.url}/alerts"

        def submit(act: str, key: object = "", query: str = "", **more: str) -> httpx.Response:
            form = {"act": act, "key": str(key), **more}
            return browser.post(f"{address}{query}", data=form)

        assert "Not acknowledged yet" in " ".join(browser.get(address).text.split())
        response = submit("acknowledge", 1, "?state=open")
        assert (response.status_code, response.headers["location"]) == (303, "/alerts?state=open")
        assert submit("acknowledge", 1).status_code == 409
        dead = add_dead_message(web.store)
        assert "Messages that were given up" in browser.get(address).text
        submit("send again", dead.message_id)
        assert web.store.alert_messages.get(dead.message_id).state == "pending"
        assert "written to the log" in submit("test", "log").text
        assert submit("close").status_code == 422
        assert submit("resolve", 1).status_code == 303
        assert "No open alerts" in browser.get(address).text
        assert "queue_age" in browser.get(f"{address}?state=resolved&format=csv").text
        reader = paged.browser(paged.add("approver"))
        assert "I take care" not in reader.get(address).text


def test_alert_links_only_to_permitted_pages(paged: Web):
    look(paged, 0.2, "agreement.rate")
    for role, may_go in (("engineer", True), ("approver", False)):
        browser = paged.browser(paged.add(role))
        assert browser.get(f"{paged.url}/quality").is_success == may_go
        assert ('href="/quality">where' in browser.get(f"{paged.url}/alerts").text) == may_go
