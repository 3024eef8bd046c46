"""`AsyncClient`: the API, many calls at once on one event loop. Says the same as `Client`."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from datetime import date
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from rlhf_pipeline.client import answers, calls, exchange
from rlhf_pipeline.client.calls import Call, VoteBody, VoteOptions
from rlhf_pipeline.records import AnnotationRules, Choice, Feedback, NewFeedback, Role

T = TypeVar("T")


class AsyncClient:
    """`Client` for a program that waits for other things meanwhile: the same calls, awaited; lists
    are asynchronous iterators.
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
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=exchange.base_url(url),
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )
        self._random = random.Random()

    async def send(self, call: Call[T]) -> T:
        """Any call of `rlhf_pipeline.client.calls`, repeated while that is safe and promises
        anything.
        """
        pauses = exchange.backoff_delays(self._random, self._longest_wait_s)
        while True:
            try:
                response = await self._http.send(exchange.build_request(self._http, call))
            except httpx.TransportError as cause:
                pause = next(pauses, None) if exchange.may_repeat(call) else None
                if pause is None:
                    raise exchange.build_unreachable_error(self._http.base_url, cause) from cause
                await asyncio.sleep(pause)
                continue
            wait = exchange.retry_delay_s(call, response, self._longest_wait_s)
            pause = None if wait is None else next(pauses, None)
            if wait is None or pause is None:
                return exchange.parse_answer(call, response)
            await asyncio.sleep(max(wait, pause))

    async def iterate(self, call: Call[answers.Page[T]]) -> AsyncIterator[T]:
        """The items of all pages of a list."""
        page = await self.send(call)
        for item in page.items:
            yield item
        while page.next is not None:
            page = await self.send(call.with_cursor(page.next))
            for item in page.items:
                yield item

    async def me(self) -> answers.Me:
        return await self.send(calls.me())

    async def statistics(self) -> answers.Statistics:
        return await self.send(calls.statistics())

    async def lease(self, n: int = 5) -> answers.Lease:
        """Cards to judge; those still held come first."""
        return await self.send(calls.lease(n))

    async def release(self, assignment_id: str) -> None:
        await self.send(calls.release(assignment_id))

    async def extend(self) -> int:
        """Prolong all leases one holds; how many."""
        return await self.send(calls.extend())

    async def vote(self, choice: Choice | str, **more: Unpack[VoteOptions]) -> answers.VoteReceipt:
        """On a card (`assignment_id`: a is left) or, for those who may read comparisons, on a
        `comparison_id`.
        """
        return await self.send(calls.vote({**more, "choice": choice}))

    async def vote_batch(self, votes: Sequence[VoteBody]) -> tuple[answers.BatchResult, ...]:
        """Up to 50 votes, each answered for by itself, in order."""
        return await self.send(calls.vote_batch(votes))

    def votes(
        self,
        *,
        annotator_id: str | None = None,
        day: date | None = None,
        comparison_id: str | None = None,
        q: str | None = None,
        mark: str | None = None,
    ) -> AsyncIterator[answers.RecordedVote]:
        """Newest first; `mark` is one of those that `quality` counts."""
        return self.iterate(
            calls.votes(
                annotator_id=annotator_id, day=day, comparison_id=comparison_id, q=q, mark=mark
            )
        )

    def comparisons(self, *, category: str | None = None) -> AsyncIterator[answers.Comparison]:
        return self.iterate(calls.comparisons(category=category))

    async def comparison(self, comparison_id: str) -> answers.Comparison:
        return await self.send(calls.comparison(comparison_id))

    async def offer(
        self,
        *,
        ids: Sequence[str] | None = None,
        day: date | None = None,
        all_unvoted: bool = False,
        overlap: int | None = None,
        priority: int = 0,
        annotator_id: str | None = None,
    ) -> answers.Offered:
        """Ask people about comparisons, or the one person named."""
        asked = calls.offer(
            ids=ids,
            day=day,
            all_unvoted=all_unvoted,
            overlap=overlap,
            priority=priority,
            annotator_id=annotator_id,
        )
        return await self.send(asked)

    async def withdraw(self, ids: Sequence[str]) -> int | None:
        return await self.send(calls.withdraw(ids))

    def consensus(
        self, *, state: str | None = None, method: str = "majority"
    ) -> AsyncIterator[answers.ComparisonConsensus]:
        return self.iterate(calls.consensus(state=state, method=method))

    async def predict(self, *pairs: answers.PairToPredict) -> answers.PredictionSet:
        """Which of two completions people would prefer, by the champion reward model: of one pair,
        or of up to fifty.
        """
        return await self.send(calls.predict(pairs))

    def guidelines(self) -> AsyncIterator[answers.GuidelineVersion]:
        return self.iterate(calls.guidelines())

    async def add_guideline(self, text: str, *, version: int) -> answers.GuidelineVersion:
        """The version after `version`, the newest one that was read (0 before the first)."""
        return await self.send(calls.add_guideline(text, version=version))

    async def rules(self) -> answers.RulesVersion:
        return await self.send(calls.rules())

    async def put_rules(self, rules: AnnotationRules, *, version: int) -> answers.RulesVersion:
        return await self.send(calls.put_rules(rules, version=version))

    def users(self) -> AsyncIterator[answers.UserRow]:
        return self.iterate(calls.users())

    async def add_user(
        self,
        email: str,
        *,
        name: str = "",
        roles: Sequence[Role | str] = (),
        organization_roles: Sequence[Role | str] = (),
        kind: str = "person",
    ) -> answers.UserRow:
        """A person's login link is made by whoever is logged in on the page `users`, or by `rlhf
        users login-link`: no token makes one.
        """
        return await self.send(
            calls.add_user(
                email, name=name, roles=roles, organization_roles=organization_roles, kind=kind
            )
        )

    async def user(self, user_id: str) -> answers.UserRow:
        return await self.send(calls.user(user_id))

    async def change_user(
        self,
        user_id: str,
        *,
        etag: str,
        name: str | None = None,
        roles: Sequence[Role | str] | None = None,
        organization_roles: Sequence[Role | str] | None = None,
        disabled: bool | None = None,
    ) -> answers.UserRow:
        """What is None stays. `etag` is that of the user as they were read; where somebody was
        faster, ConflictingRequest is raised.
        """
        return await self.send(
            calls.change_user(
                user_id,
                etag=etag,
                name=name,
                roles=roles,
                organization_roles=organization_roles,
                disabled=disabled,
            )
        )

    def tokens(self) -> AsyncIterator[answers.TokenRow]:
        """One's own, newest first, those that ended too."""
        return self.iterate(calls.tokens())

    def calibrations(self) -> AsyncIterator[answers.Calibration]:
        """Every calibrator there was, the last fitted first."""
        return self.iterate(calls.calibrations())

    async def calibration(self, reward_model: str, version: int) -> answers.CalibrationDetail:
        return await self.send(calls.calibration(reward_model, version))

    async def calibration_probe(
        self, *, reward_model: str | None = None, calibrator: str | None = None
    ) -> answers.CalibrationProbe:
        """The reliability diagram of predictions that were made before their votes; of the model
        that predicted last, unless told.
        """
        return await self.send(
            calls.calibration_probe(reward_model=reward_model, calibrator=calibrator)
        )

    def calibration_pairs(
        self, confidence: float, *, reward_model: str | None = None, calibrator: str | None = None
    ) -> AsyncIterator[answers.ProbedPair]:
        """The votes of the bin of that diagram in which a stated confidence lies, the wrongly
        predicted first.
        """
        return self.iterate(
            calls.calibration_pairs(confidence, reward_model=reward_model, calibrator=calibrator)
        )

    async def progress(self) -> answers.AnnotationProgress:
        return await self.send(calls.progress())

    async def progress_events(self) -> AsyncIterator[answers.AnnotationProgress]:
        """Progress as it changes, until the caller stops or the server ends."""
        try:
            async with self._http.stream(
                "GET", "/progress/events", timeout=httpx.Timeout(exchange.TIMEOUT_S, read=None)
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise exchange.build_error(response)
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        yield answers.AnnotationProgress.model_validate(
                            json.loads(line.removeprefix("data:"))
                        )
        except httpx.TransportError as cause:
            raise exchange.build_unreachable_error(self._http.base_url, cause) from cause

    async def quality(self) -> answers.DataQuality:
        """How carefully people vote, the most doubtful first."""
        return await self.send(calls.quality())

    async def metrics(self) -> answers.Metrics:
        return await self.send(calls.metrics())

    async def send_feedback(
        self, feedback: NewFeedback, *, idempotency_key: str | None = None
    ) -> Feedback:
        """Thumbs, a rating, words, or a correction, which becomes a comparison and a vote for the
        corrected text.
        """
        return await self.send(calls.send_feedback(feedback, idempotency_key=idempotency_key))

    def feedback(
        self, *, kind: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[Feedback]:
        return self.iterate(calls.feedback(kind=kind, session_id=session_id))

    def audit(
        self, *, actor: str | None = None, action: str | None = None, object_id: str | None = None
    ) -> AsyncIterator[answers.AuditLinkRecord]:
        return self.iterate(calls.audit(actor=actor, action=action, object_id=object_id))

    async def verify_audit(self) -> answers.Verification:
        return await self.send(calls.verify_audit())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
