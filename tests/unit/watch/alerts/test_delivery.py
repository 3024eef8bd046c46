"""Each message reaches its target once it can, in order, and a broken target blocks no other."""

import base64
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import DeliveryFailed
from rlhf_pipeline.core.monitoring import Alert, AlertMessage
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.delivery import Delivery
from rlhf_pipeline.watch.alerts.rules import RETRY_SECONDS
from tests.unit.watch.alerts.conftest import NOON, ManualClock

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
Tell = Callable[..., AlertMessage]


class Recorder:
    """Takes every message, or raises what it is given."""

    def __init__(self, failure: Exception | None = None):
        self.sent: list[str] = []
        self.failure = failure

    def __call__(self, message: AlertMessage) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(message.message_id)


Send = Callable[..., int]


@pytest.fixture
def send(store: Store, clock: ManualClock) -> Send:
    """Send what is due to this receiver; returns the number of messages that were delivered."""

    def deliver(receiver: Recorder) -> int:
        return Delivery(store.alert_messages, receiver, clock, RETRY_SECONDS).send_due()

    return deliver


def test_messages_about_an_alert_arrive_in_their_order(
    clock: ManualClock, send: Send, tell: Tell, drift: Alert
) -> None:
    broken = Recorder(DeliveryFailed("answered 500"))
    first = tell()
    send(broken)
    clock.advance(seconds=10)
    second = tell(kind="resolved")
    other = tell(alert=drift.model_copy(update={"alert_id": 8}))
    works = Recorder()
    send(works)
    assert works.sent == [other.message_id]
    clock.advance(minutes=2)
    send(works)
    assert works.sent == [other.message_id, first.message_id, second.message_id]


def test_a_message_is_given_up_after_a_day_and_can_be_replayed(
    store: Store, clock: ManualClock, send: Send, tell: Tell
) -> None:
    message = tell()
    broken = Recorder(DeliveryFailed("answered 500"))
    while store.alert_messages.get(message.message_id).state == "pending":
        send(broken)
        clock.advance(minutes=10)
    dead = store.alert_messages.get(message.message_id)
    assert (dead.n_attempts, dead.last_error) == (12, "answered 500")
    assert timedelta(hours=20) < clock.now() - NOON < timedelta(hours=22)
    store.alert_messages.replay(message.message_id, clock.now(), actor="ada")
    works = Recorder()
    send(works)
    assert works.sent == [message.message_id]


def test_two_senders_send_each_message_once(send: Send, tell: Tell, drift: Alert) -> None:
    ids = [tell(alert=drift.model_copy(update={"alert_id": n})).message_id for n in range(10)]
    works = Recorder()
    senders = [threading.Thread(target=send, args=(works,)) for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert sorted(works.sent) == sorted(ids)
