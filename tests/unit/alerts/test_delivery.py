"""Each message reaches its target once it can, in order, and a broken target blocks no other."""

import base64
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from rlhf_pipeline.alert_targets import EmailTarget, WebhookTarget
from rlhf_pipeline.alerts import delivery
from rlhf_pipeline.alerts.channels import Channel
from rlhf_pipeline.alerts.channels.email import EmailChannel
from rlhf_pipeline.alerts.channels.webhook import WebhookChannel
from rlhf_pipeline.alerts.delivery import MOST_ATTEMPTS, deliver_due, next_attempt
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

    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        if self.failure is not None:
            raise self.failure
        self.sent.append(message.message_id)
        return "taken"


def webhook(hook: Hook) -> Channel:
    target = WebhookTarget(
        name="team", channel="webhook", url=SecretStr(hook.url), secret=SecretStr(SECRET)
    )
    return WebhookChannel(target, allow_private=True)


def test_a_webhook_arrives_once_after_an_hour_of_errors(
    store: Store, clock: ManualClock, tell: Tell
) -> None:
    message = tell()
    with serve_hook(Hook(status=500)) as hook:
        channels = {"team": webhook(hook)}
        for _ in range(60):
            deliver_due(store.alert_messages, channels, clock)
            clock.advance(minutes=1)
        n_refused = len(hook.received)
        assert 5 <= n_refused <= 7
        hook.status = 200
        for _ in range(30):
            deliver_due(store.alert_messages, channels, clock)
            clock.advance(minutes=10)
        accepted = hook.received[n_refused:]
    ((headers, body),) = accepted
    assert {received["webhook-id"] for received, _ in hook.received} == {message.message_id}
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), tz=NOON.tzinfo)
    assert headers["webhook-signature"] == Webhook(SECRET).sign(
        message.message_id, at, body.decode()
    )
    assert timedelta(hours=1) <= at - NOON < timedelta(hours=2.5)
    assert store.alert_messages.get(message.message_id).state == "delivered"


def test_messages_about_an_alert_arrive_in_their_order(
    store: Store, clock: ManualClock, tell: Tell, drift: Alert
) -> None:
    broken = Recorder(DeliveryFailed("answered 500"))
    first = tell()
    deliver_due(store.alert_messages, {"team": broken}, clock)
    clock.advance(seconds=10)
    second = tell(kind="resolved")
    other = tell(alert=drift.model_copy(update={"alert_id": 8}))
    works = Recorder()
    deliver_due(store.alert_messages, {"team": works}, clock)
    assert works.sent == [other.message_id]
    clock.advance(minutes=2)
    deliver_due(store.alert_messages, {"team": works}, clock)
    assert works.sent == [other.message_id, first.message_id, second.message_id]


def test_a_dead_mail_server_delays_no_other_target(
    store: Store, clock: ManualClock, tell: Tell
) -> None:
    for _ in range(3):
        tell("boss")
    tell("team")
    team = Recorder()
    with serve_bytes(lambda connected: time.sleep(5)) as port:
        boss = EmailChannel(
            EmailTarget(
                name="boss",
                channel="email",
                host="127.0.0.1",
                port=port,
                encryption="none",
                sender="a@b.org",
                recipients=("c@d.org",),
            )
        )
        began = time.monotonic()
        attempts = deliver_due(
            store.alert_messages, {"boss": boss, "team": team}, clock, max_seconds=0.6
        )
    assert time.monotonic() - began < 2
    assert len(team.sent) == 1
    assert sorted((each.message.target, each.error is None) for each in attempts) == [
        ("boss", False),
        ("team", True),
    ]


def test_a_message_is_given_up_after_a_day_and_can_be_replayed(
    store: Store, clock: ManualClock, tell: Tell
) -> None:
    message = tell()
    broken = Recorder(DeliveryFailed("answered 500"))
    while store.alert_messages.get(message.message_id).state == "pending":
        deliver_due(store.alert_messages, {"team": broken}, clock)
        clock.advance(minutes=10)
    dead = store.alert_messages.get(message.message_id)
    assert (dead.n_attempts, dead.last_error) == (MOST_ATTEMPTS, "answered 500")
    assert timedelta(hours=20) < clock.now() - NOON < timedelta(hours=28)
    store.alert_messages.replay(message.message_id, clock.now(), actor="ada")
    works = Recorder()
    deliver_due(store.alert_messages, {"team": works}, clock)
    assert works.sent == [message.message_id]


def test_waits_double_up_to_six_hours_and_are_spread(opened: AlertMessage) -> None:
    failure = DeliveryFailed("answered 500")
    waits = []
    for attempt in range(1, MOST_ATTEMPTS):
        message = opened.model_copy(update={"n_attempts": attempt})
        at = next_attempt(message, failure, NOON)
        assert at is not None
        assert at == next_attempt(message, failure, NOON)
        waits.append((at - NOON).total_seconds() / 60)
    least = [min(2.0**k, 360) for k in range(MOST_ATTEMPTS - 1)]
    assert all(low <= wait <= 1.25 * low for low, wait in zip(least, waits, strict=True))
    assert len({wait / low for low, wait in zip(least, waits, strict=True)}) > 5


def test_a_receiver_decides_how_long_it_is_left_alone(opened: AlertMessage) -> None:
    first = opened.model_copy(update={"n_attempts": 1})
    asked = DeliveryFailed("answered 429", retry_after=7200)
    assert next_attempt(first, asked, NOON) == NOON + timedelta(hours=2)
    forever = DeliveryFailed("answered 429", retry_after=1e12)
    assert next_attempt(first, forever, NOON) == NOON + timedelta(hours=24)
    assert next_attempt(first, DeliveryFailed("answered 410", is_permanent=True), NOON) is None


def test_a_killed_sender_sends_again_under_the_same_id(
    store: Store, clock: ManualClock, tell: Tell
) -> None:
    message = tell()
    store.alert_messages.lease(clock.now(), seconds=delivery.LEASE_SECONDS, target="team")
    works = Recorder()
    assert deliver_due(store.alert_messages, {"team": works}, clock) == []
    clock.advance(seconds=delivery.LEASE_SECONDS)
    deliver_due(store.alert_messages, {"team": works}, clock)
    assert works.sent == [message.message_id]


def test_a_message_to_a_removed_target_is_given_up(
    store: Store, clock: ManualClock, tell: Tell
) -> None:
    tell("gone")
    (attempt,) = deliver_due(store.alert_messages, {}, clock)
    assert attempt.is_dead
    assert attempt.error == (
        "There is no target gone. Add it to alert_targets and replay the message."
    )


def test_an_unexpected_error_is_logged_without_its_text(
    store: Store, clock: ManualClock, tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    message = tell()
    deliver_due(store.alert_messages, {"team": Recorder(KeyError("T0KEN"))}, clock)
    stored = store.alert_messages.get(message.message_id)
    assert stored.state == "pending"
    assert stored.last_error == "Unexpected KeyError; the log shows where it was raised."
    assert "raise self.failure" in caplog.text
    assert "T0KEN" not in caplog.text


def test_what_a_receiver_said_cannot_steer_a_terminal(
    store: Store, clock: ManualClock, tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    tell()
    (attempt,) = deliver_due(
        store.alert_messages, {"team": Recorder(DeliveryFailed("a\x1b[2J\nb"))}, clock
    )
    assert attempt.error == "a\\u001b[2J b"
    assert "\x1b" not in caplog.text


def test_two_senders_send_each_message_once(
    store: Store, clock: ManualClock, tell: Tell, drift: Alert
) -> None:
    ids = [tell(alert=drift.model_copy(update={"alert_id": n})).message_id for n in range(10)]
    works = Recorder()
    senders = [
        threading.Thread(target=deliver_due, args=(store.alert_messages, {"team": works}, clock))
        for _ in range(2)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert sorted(works.sent) == sorted(ids)
