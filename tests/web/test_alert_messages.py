"""Messages about alerts through the API: listed in pages, sent again, and a target tested."""

from datetime import timedelta

import pytest

from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.client import Client
from rlhf_pipeline.errors import MissingResource
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store import Store
from tests.web.conftest import Web


def add_dead_message(store: Store, *, alert_id: int | None = None, after: int = 0) -> AlertMessage:
    at = utc_now() + timedelta(seconds=after)
    message = build_test_message("team", project="demo", link="", now=at)
    store.alert_messages.add([message.model_copy(update={"alert_id": alert_id})])
    store.alert_messages.mark_failed(message.message_id, "answered 500", next_attempt_at=None)
    return store.alert_messages.get(message.message_id)


def test_messages_are_listed_and_sent_again(web: Web) -> None:
    ids = [add_dead_message(web.store, after=-i).message_id for i in range(3)]
    engineer = web.client("engineer")
    token = engineer.headers["authorization"].removeprefix("Bearer ")
    with Client(web.url, token) as api:
        assert [m.message_id for m in api.alert_messages(limit=2)] == ids
        replayed = api.replay_alert_message(ids[1])
        assert (replayed.state, replayed.n_attempts) == ("pending", 0)
        assert [m.message_id for m in api.alert_messages(state="dead")] == [ids[0], ids[2]]
        with pytest.raises(MissingResource, match="No dead message"):
            api.replay_alert_message(ids[1])
    found = engineer.get("alerts/messages", params={"cursor": "WzEsMl0"})
    assert found.status_code == 422


def test_a_target_is_tested(web: Web) -> None:
    engineer = web.client("engineer")
    answer = engineer.post("alerts/targets/log:test").json()
    assert (answer["is_delivered"], answer["detail"]) == (True, "written to the log")
    assert engineer.post("alerts/targets/nobody:test").status_code == 404
    assert web.client("curator").post("alerts/targets/log:test").status_code == 403
