"""Each message reaches its target once it can, in order, and a broken target blocks no other."""

import base64
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import pytest
from standardwebhooks import Webhook

from rlhf_pipeline.alert_targets import AlertTarget
from rlhf_pipeline.alerts.channels import Channel, WebhookChannel
from rlhf_pipeline.alerts.delivery import LEASE_S, Delivery
from rlhf_pipeline.alerts.rules import RETRY_SECONDS
from rlhf_pipeline.errors import DeliveryFailed
from rlhf_pipeline.monitoring import Alert, AlertMessage
from rlhf_pipeline.store import Store
from tests.unit.alerts.conftest import NOON, ManualClock
from tests.unit.alerts.receivers import Hook, serve_bytes, serve_hook

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
Tell = Callable[..., AlertMessage]


class Recorder:
    """Takes every message, or raises what it is given."""

    def __init__(self, failure: Exception | None = None):
        self.sent: list[str] = []
        self.failure = failure

    def send(self, message: AlertMessage, now: datetime) -> str:
        if self.failure is not None:
            raise self.failure
        self.sent.append(message.message_id)
        return "taken"


def webhook(url: str) -> Channel:
    target = AlertTarget.model_validate(
        {"name": "team", "channel": "webhook", "url": url, "secret": SECRET}
    )
    return WebhookChannel(target, allow_private=True)


Send = Callable[..., int]


@pytest.fixture
def send(store: Store, clock: ManualClock) -> Send:
    """Send what is due to these channels; returns the number of messages that were delivered."""

    def deliver(channels: Mapping[str, Channel], max_seconds: float = 10) -> int:
        delivery = Delivery(store.alert_messages, channels, clock, RETRY_SECONDS)
        return delivery.send_due(max_seconds)

    return deliver


def test_a_webhook_arrives_once_after_an_hour_of_errors(
    store: Store, clock: ManualClock, send: Send, tell: Tell
) -> None:
    message = tell()
    with serve_hook(Hook(status=500)) as hook:
        channels = {"team": webhook(hook.url)}
        for _ in range(60):
            send(channels)
            clock.advance(minutes=1)
        n_refused = len(hook.received)
        assert n_refused == 6
        hook.status = 200
        for _ in range(30):
            send(channels)
            clock.advance(minutes=10)
        accepted = hook.received[n_refused:]
    ((headers, body),) = accepted
    assert {received["webhook-id"] for received, _ in hook.received} == {message.message_id}
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), tz=NOON.tzinfo)
    assert headers["webhook-signature"] == Webhook(SECRET).sign(
        message.message_id, at, body.decode()
    )
    assert at - NOON == timedelta(minutes=70)
    assert store.alert_messages.get(message.message_id).state == "delivered"


def test_messages_about_an_alert_arrive_in_their_order(
    clock: ManualClock, send: Send, tell: Tell, drift: Alert
) -> None:
    broken = Recorder(DeliveryFailed("answered 500"))
    first = tell()
    send({"team": broken})
    clock.advance(seconds=10)
    second = tell(kind="resolved")
    other = tell(alert=drift.model_copy(update={"alert_id": 8}))
    works = Recorder()
    send({"team": works})
    assert works.sent == [other.message_id]
    clock.advance(minutes=2)
    send({"team": works})
    assert works.sent == [other.message_id, first.message_id, second.message_id]


def test_a_hanging_target_delays_no_other(send: Send, tell: Tell) -> None:
    for _ in range(3):
        tell("boss")
    tell("team")
    team = Recorder()
    with serve_bytes(lambda connected: time.sleep(5)) as port:
        boss = webhook(f"http://127.0.0.1:{port}/")
        began = time.monotonic()
        assert send({"boss": boss, "team": team}, max_seconds=0.6) == 1
    assert time.monotonic() - began < 2
    assert len(team.sent) == 1


def test_a_message_is_given_up_after_a_day_and_can_be_replayed(
    store: Store, clock: ManualClock, send: Send, tell: Tell
) -> None:
    message = tell()
    broken = Recorder(DeliveryFailed("answered 500"))
    while store.alert_messages.get(message.message_id).state == "pending":
        send({"team": broken})
        clock.advance(minutes=10)
    dead = store.alert_messages.get(message.message_id)
    assert (dead.n_attempts, dead.last_error) == (12, "answered 500")
    assert timedelta(hours=20) < clock.now() - NOON < timedelta(hours=22)
    store.alert_messages.replay(message.message_id, clock.now(), actor="ada")
    works = Recorder()
    send({"team": works})
    assert works.sent == [message.message_id]


@pytest.mark.parametrize(
    ("failure", "waits_s"),
    [
        (DeliveryFailed("answered 500"), 60),
        (DeliveryFailed("answered 429", retry_after=7200), 7200),
        (DeliveryFailed("answered 429", retry_after=1e12), 86_400),
        (DeliveryFailed("answered 410", is_permanent=True), None),
    ],
)
def test_a_receiver_may_ask_for_a_longer_wait(
    store: Store, send: Send, tell: Tell, failure: DeliveryFailed, waits_s: float | None
) -> None:
    message = tell()
    send({"team": Recorder(failure)})
    stored = store.alert_messages.get(message.message_id)
    if waits_s is None:
        assert stored.state == "dead"
    else:
        assert stored.next_attempt_at == NOON + timedelta(seconds=waits_s)


def test_a_killed_sender_sends_again_under_the_same_id(
    store: Store, clock: ManualClock, send: Send, tell: Tell
) -> None:
    message = tell()
    store.alert_messages.lease("team", clock.now(), seconds=LEASE_S)
    works = Recorder()
    assert send({"team": works}) == 0
    clock.advance(seconds=LEASE_S)
    assert send({"team": works}) == 1
    assert works.sent == [message.message_id]


def test_a_message_to_a_removed_target_is_given_up(store: Store, send: Send, tell: Tell) -> None:
    message = tell("gone")
    assert send({}) == 0
    dead = store.alert_messages.get(message.message_id)
    assert (dead.state, dead.last_error) == (
        "dead",
        "There is no target gone. Add it to alert_targets and replay the message.",
    )


def test_an_unexpected_error_is_stored_without_its_text(
    store: Store, send: Send, tell: Tell
) -> None:
    message = tell()
    send({"team": Recorder(KeyError("T0KEN"))})
    stored = store.alert_messages.get(message.message_id)
    assert stored.state == "pending"
    assert stored.last_error == "Unexpected KeyError; the log shows where it was raised."


def test_what_a_receiver_said_cannot_steer_a_terminal(
    store: Store, send: Send, tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    message = tell()
    send({"team": Recorder(DeliveryFailed("a\x1b[2J\nb"))})
    assert store.alert_messages.get(message.message_id).last_error == "a\\u001b[2J b"
    assert "\x1b" not in caplog.text


def test_two_senders_send_each_message_once(send: Send, tell: Tell, drift: Alert) -> None:
    ids = [tell(alert=drift.model_copy(update={"alert_id": n})).message_id for n in range(10)]
    works = Recorder()
    senders = [threading.Thread(target=send, args=({"team": works},)) for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert sorted(works.sent) == sorted(ids)
