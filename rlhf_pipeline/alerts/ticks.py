"""Records that sensors tick, watches from the web app that they do, and sends messages there."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from rlhf_pipeline.alerts.rounds import TICK, send_messages, watch_daemon
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError, StoreError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store import Store

logger = logging.getLogger(__name__)


def record_tick(store: Store, now: datetime) -> None:
    """Note that a sensor ticked at `now`."""
    store.metric_points.put([MetricPoint(day=now.date(), name=TICK, value=0.0, measured_at=now)])


def record_end(store: Store, now: datetime) -> None:
    """Note that nobody ticks from `now` on, on purpose: no alert is opened for it."""
    store.metric_points.put([MetricPoint(day=now.date(), name=TICK, measured_at=now)])


@contextmanager
def repeat(action: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call `action` every `seconds` from a thread while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1)  # a tick that was begun is stored before the caller's next one


@contextmanager
def keep_ticking(store: Store, seconds: float) -> Iterator[None]:
    """Record a tick every `seconds` while the block runs: a run of `rlhf loop`, which evaluates no
    sensor meanwhile and is alive.
    """

    def tick() -> None:
        with suppress(StoreError):  # a locked database costs one tick, never the run
            record_tick(store, store.database.clock.now())

    with repeat(tick, seconds, "ticks"):
        yield


@contextmanager
def watch_alerts(store: Store, settings: Settings) -> Iterator[None]:
    """Watch the daemon, which the web app outlives, and send messages, as often as the daemon does.
    Each message is leased to one of them.
    """

    def look() -> None:
        try:
            watch_daemon(store, settings, store.database.clock.now())
            send_messages(store, settings)
        except PipelineError as cause:  # such as a busy database: the next look repeats it
            logger.warning("Alerts were not checked: %s", cause)
        except Exception:
            logger.exception("Alerts were not checked")

    with repeat(look, settings.slow_sensor_seconds, "alerts"):
        yield
