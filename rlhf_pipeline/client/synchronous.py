"""`Client`: calls the API, one request after the other. Safe to share between threads."""

import json
import random
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.project import ProgressOut
from rlhf_pipeline.client import calls, exchange
from rlhf_pipeline.client.calls import Call

T = TypeVar("T")
P = ParamSpec("P")


def _sends(make: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    """A method that sends the call and returns its answer."""

    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.send(make(*args, **kwargs))

    return exchange.document_method(method, make)


def _iterates(make: Callable[P, Call[Page[T]]]) -> "Callable[Concatenate[Client, P], Iterator[T]]":
    """A method that returns an iterator over the items of all pages."""

    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return client.iterate(make(*args, **kwargs))

    return exchange.document_method(method, make)


class Client:
    """A server and a token. Every POST carries an idempotency key, so that a request whose answer
    was lost is sent again and done once.

    Raises the matching ApiError: NotAuthorised, MissingResource, ConflictingRequest,
    InvalidRequest, TooManyRequests, and ServerUnavailable if the server does not answer several
    attempts.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = exchange.TIMEOUT_S,
        longest_wait_s: float = exchange.LONGEST_WAIT_S,
        transport: Any = None,
    ):
        self._longest_wait_s = longest_wait_s
        self._http = httpx.Client(
            base_url=exchange.base_url(url),
            headers=exchange.token_headers(token),
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )
        self._random = random.Random()

    def send(self, call: Call[T]) -> T:
        """Send a call of `rlhf_pipeline.client.calls`, again while that is safe and may help."""
        pauses = exchange.backoff_delays(self._random, self._longest_wait_s)
        while True:
            try:
                response = self._http.send(exchange.build_request(self._http, call))
            except httpx.TransportError as cause:
                pause = next(pauses, None) if exchange.may_repeat(call) else None
                if pause is None:
                    raise exchange.build_unreachable_error(self._http.base_url, cause) from cause
                time.sleep(pause)
                continue
            wait = exchange.retry_delay_s(call, response, self._longest_wait_s)
            pause = None if wait is None else next(pauses, None)
            if wait is None or pause is None:
                return exchange.parse_answer(call, response)
            time.sleep(max(wait, pause))

    def iterate(self, call: Call[Page[T]]) -> Iterator[T]:
        """The items of all pages of a list."""
        page = self.send(call)
        yield from page.items
        while page.next is not None:
            page = self.send(call.with_cursor(page.next))
            yield from page.items

    me = _sends(calls.me)
    statistics = _sends(calls.statistics)
    practice = _sends(calls.practice)
    reveal_answer = _sends(calls.reveal_answer)
    lease = _sends(calls.lease)
    release = _sends(calls.release)
    extend = _sends(calls.extend)
    vote = _sends(calls.vote)
    vote_batch = _sends(calls.vote_batch)
    votes = _iterates(calls.votes)
    comparisons = _iterates(calls.comparisons)
    comparison = _sends(calls.comparison)
    clusters = _iterates(calls.clusters)
    offer = _sends(calls.offer)
    withdraw = _sends(calls.withdraw)
    flag = _sends(calls.flag)
    decide = _sends(calls.decide)
    consensus = _iterates(calls.consensus)
    predict = _sends(calls.predict)
    guidelines = _iterates(calls.guidelines)
    add_guideline = _sends(calls.add_guideline)
    rules = _sends(calls.rules)
    put_rules = _sends(calls.put_rules)
    users = _iterates(calls.users)
    user = _sends(calls.user)
    add_user = _sends(calls.add_user)
    change_user = _sends(calls.change_user)
    tokens = _iterates(calls.tokens)
    calibrations = _iterates(calls.calibrations)
    calibration = _sends(calls.calibration)
    calibration_probe = _sends(calls.calibration_probe)
    calibration_pairs = _iterates(calls.calibration_pairs)
    progress = _sends(calls.progress)
    quality = _sends(calls.quality)
    metrics = _sends(calls.metrics)
    metric_points = _iterates(calls.metric_points)
    send_production_figures = _sends(calls.send_production_figures)
    drift_tests = _iterates(calls.drift_tests)
    drift_events = _iterates(calls.drift_events)
    decisions = _iterates(calls.decisions)
    decision = _sends(calls.decision)
    answer_decision = _sends(calls.answer_decision)
    lift_quarantine = _sends(calls.lift_quarantine)
    alerts = _iterates(calls.alerts)
    alert = _sends(calls.alert)
    acknowledge_alert = _sends(calls.acknowledge_alert)
    resolve_alert = _sends(calls.resolve_alert)
    alert_rules = _iterates(calls.alert_rules)
    silences = _iterates(calls.silences)
    silence_alerts = _sends(calls.silence_alerts)
    end_silence = _sends(calls.end_silence)
    alert_messages = _iterates(calls.alert_messages)
    replay_alert_message = _sends(calls.replay_alert_message)
    send_test_message = _sends(calls.send_test_message)
    send_feedback = _sends(calls.send_feedback)
    feedback = _iterates(calls.feedback)
    audit = _iterates(calls.audit)
    verify_audit = _sends(calls.verify_audit)

    def progress_events(self) -> Iterator[ProgressOut]:
        """Progress as it changes, until the caller stops or the server ends."""
        try:
            with self._http.stream(
                "GET", "/progress/events", timeout=httpx.Timeout(exchange.TIMEOUT_S, read=None)
            ) as response:
                if not response.is_success:
                    response.read()
                    raise exchange.build_error(response)
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield ProgressOut.model_validate(json.loads(line.removeprefix("data:")))
        except httpx.TransportError as cause:
            raise exchange.build_unreachable_error(self._http.base_url, cause) from cause

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
