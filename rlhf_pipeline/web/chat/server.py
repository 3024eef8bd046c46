"""Answers chats by the deployed version: the policy on this machine, or a provider's model."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.core.api_types.chat import ChatRequest
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.conversations import read_messages
from rlhf_pipeline.core.errors import ModelNotFound, PipelineError, ServerUnreachable, StoreError
from rlhf_pipeline.core.experiments import Arm, Experiment
from rlhf_pipeline.core.records import ModelVersion, content_id
from rlhf_pipeline.generate.completions import (
    CallParams,
    CompletionBackend,
    CompletionParams,
    CompletionRequest,
    CompletionResult,
    DirectBackend,
    HostedBackend,
    LocalBackend,
)
from rlhf_pipeline.generate.completions.base import OnText
from rlhf_pipeline.generate.completions.local import cut_before
from rlhf_pipeline.generate.completions.request_plan import SEEDS
from rlhf_pipeline.improve.experiments import Experiments, assign, offer_pair, wants_pair
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.store import ServedAnswer
from rlhf_pipeline.store.answers import COMPLETE, FAILED
from rlhf_pipeline.web.chat.checks import ServedChecks
from rlhf_pipeline.web.memory_cache import CachedValue
from rlhf_pipeline.web.problems import RETRY_SOON, Problem

# Answers that are being written or wait for it. A policy on this machine writes one at a time.
LOCAL_AT_MOST = 8
HOSTED_AT_MOST = 256
LEFT = "cancelled"  # finish reason of an answer whose client left
# by the kind of a provider's fault; others are 502
STATUSES = {"bad_request": 400, "rate_limited": 429, "overloaded": 503, "timeout": 504}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deployed:
    """What answers: its backend, and how the loop samples with it."""

    backend: CompletionBackend
    sampling: CompletionParams
    calls: CallParams

    @property
    def version(self) -> str:
        return self.backend.model_version

    def require(self, model: str | None, name: str) -> None:
        """Raises Problem 404 for a model that is not this one; `name` is whichever is deployed."""
        if model and model not in (self.version, name):
            raise Problem(
                404,
                f"The model {model!r} is not deployed, {self.version} is. Ask for it, or leave "
                "the model out.",
                kind="model_not_found",
            )

    def cost(self, result: CompletionResult) -> int | None:
        """None of a policy on this machine, and without prices."""
        is_priced = None not in (self.calls.prompt_price, self.calls.completion_price)
        if not is_priced or not isinstance(self.backend, HostedBackend):
            return None
        return self.calls.cost(result.n_prompt_tokens, result.n_tokens)

    def plan(self, body: ChatRequest, max_tokens: int) -> CompletionRequest:
        """The request to the backend. The system prompt of the loop stands for a missing one,
        `max_tokens` for a missing limit.
        """
        has_system = any(message.role == "system" for message in read_messages(body.messages))
        return CompletionRequest(
            prompt_id=content_id("chat", body.messages),
            prompt=body.messages,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            sample_index=0,
            seed=secrets.randbelow(SEEDS) if body.seed is None else body.seed % SEEDS,
            max_tokens=find_limit(body) or max_tokens,
            system=None if has_system else self.sampling.system,
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        )


@dataclass(frozen=True)
class ServingChoice:
    """The version that answers a request, and the experiment's arm that it is answered for;
    `other` is the version of the other arm.
    """

    deployed: Deployed
    answer_id: str
    experiment: Experiment | None = None
    arm: Arm | None = None
    other: Deployed | None = None


def find_limit(body: ChatRequest) -> int | None:
    """The number of tokens that the request allows, None if it sets no limit."""
    return body.max_completion_tokens or body.max_tokens


@dataclass
class ChatAnswer:
    """An answer while it is written: `pieces` has its text and None at the end; then `result` and,
    of a failure, `status` are final.
    """

    choice: ServingChoice
    request: CompletionRequest
    session_id: str | None
    created_at: datetime
    is_limited: bool  # by its client, to `request.max_tokens`
    pieces: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    result: CompletionResult = field(default_factory=CompletionResult)
    status: int = 200

    @property
    def version(self) -> str:
        return self.choice.deployed.version

    @property
    def answer_id(self) -> str:
        return self.choice.answer_id


class ChatServer:
    """Writes answers in tasks of their own; a task that is cancelled ends its answer."""

    def __init__(self, settings: Settings, champions: Champions, champion_s: float):
        self._settings = settings
        self._champions = champions
        self._champion = CachedValue(self._find_champion, champion_s)
        self._lock = threading.Lock()
        self._opened: tuple[str | None, Deployed] | None = None
        self._experiments = Experiments(Releases(champions, settings))
        self._experiment = CachedValue(self._experiments.refresh, champion_s)
        self._treatment: tuple[str, Deployed] | None = None  # in memory during an experiment
        self._name = champions.registry.model_name("policy")
        self._worker = ThreadPoolExecutor(1, "chat")
        self._checks = ServedChecks(settings, champions)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pairs: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Called when this server ends."""
        self._checks.close()

    def find_deployed(self) -> Deployed:
        """Raises Problem 404 without a deployed version, 503 if it cannot be used."""
        try:
            with self._lock:
                champion = self._champion()
                if self._opened is None or self._opened[0] != champion:
                    self._opened = champion, self._open()
                return self._opened[1]
        except ModelNotFound as cause:
            raise Problem(404, f"Nothing is deployed: {cause}", kind="model_not_found") from cause
        except PipelineError as cause:
            raise _describe_outage(cause) from cause

    def choose(self, body: ChatRequest) -> ServingChoice:
        """The deployed version, or by the running experiment its treatment; a session keeps its
        arm. A request that names a version takes no part. Raises as `find_deployed`, and Problem
        404 for another model.
        """
        answer_id, experiment = f"answer_{secrets.token_hex(12)}", self._experiment()
        deployed = self.find_deployed()
        deployed.require(body.model, self._name)
        is_running = experiment is not None and experiment.status == "running"
        treatment = self._open_treatment(experiment if is_running else None)
        if experiment is None or treatment is None or "@" in (body.model or ""):
            return ServingChoice(deployed, answer_id)
        arm = assign(experiment, body.session_id or answer_id)
        sides = (deployed, treatment) if arm == "control" else (treatment, deployed)
        return ServingChoice(sides[0], answer_id, experiment, arm, sides[1])

    def list_name(self) -> str:
        """What clients name to be answered: during an experiment no version."""
        version = self.find_deployed().version
        return version if self._experiment() is None else self._name

    def start(
        self, body: ChatRequest, choice: ServingChoice
    ) -> tuple[ChatAnswer, asyncio.Task[None]]:
        """Start to answer, within the event loop. Raises Problem 429 with too many open answers."""
        deployed = choice.deployed
        is_hosted = isinstance(deployed.backend, HostedBackend)
        if len(self._tasks) >= (HOSTED_AT_MOST if is_hosted else LOCAL_AT_MOST):
            raise Problem(
                429,
                f"{len(self._tasks)} answers are being written already. Retry in a moment.",
                kind="too_many_answers",
                headers=RETRY_SOON,
            )
        now = self._champions.store.database.clock.now()
        request = deployed.plan(body, self._settings.serving.max_tokens)
        is_limited = find_limit(body) is not None
        answer = ChatAnswer(choice, request, body.session_id, now, is_limited)
        return answer, _start_task(self._run(answer, is_streamed=body.stream), self._tasks)

    async def _run(self, answer: ChatAnswer, *, is_streamed: bool) -> None:
        await self._answer(answer, is_streamed=is_streamed)
        row = await run_in_threadpool(self._log, answer)
        answer.pieces.put_nowait(None)
        self._checks.consider(answer.choice.deployed.backend)
        experiment, other = answer.choice.experiment, answer.choice.other
        is_kept = row.prompt is not None and row.finish_reason in COMPLETE
        if experiment and other and is_kept and not self._pairs:  # chats wait for one at most
            _start_task(self._ask_other(answer, experiment, other), self._pairs)

    async def _ask_other(self, answer: ChatAnswer, experiment: Experiment, other: Deployed) -> None:
        """Let the other arm answer a drawn request too, and annotators compare the answers."""
        store, unit = self._champions.store, answer.session_id or answer.answer_id
        try:
            if not await run_in_threadpool(wants_pair, store, experiment, unit):
                return
            # a seed of its own: equal versions would write equal texts
            request = answer.request.model_copy(update={"seed": secrets.randbelow(SEEDS)})
            choice = ServingChoice(other, answer.answer_id)
            second = replace(answer, choice=choice, request=request, pieces=asyncio.Queue())
            await self._answer(second, is_streamed=False)
            if second.result.error is not None:
                cause = f"no card: {other.version} did not answer: {second.result.error}"
                number = experiment.experiment_id
                await run_in_threadpool(self._experiments.note_miss, number, cause)
            elif second.result.finish_reason in COMPLETE:
                texts = {reply.version: reply.result.text or "" for reply in (answer, second)}
                await run_in_threadpool(offer_pair, store, experiment, unit, request.prompt, texts)
        except PipelineError:
            log.exception("Annotators were not asked about %s", answer.answer_id)

    async def _answer(self, answer: ChatAnswer, *, is_streamed: bool) -> None:
        started = time.perf_counter()
        backend = answer.choice.deployed.backend
        try:
            if isinstance(backend, HostedBackend):
                await self._call(answer, backend, is_streamed)
            else:
                await self._write(answer, backend)
        except PipelineError as cause:
            answer.result, answer.status = CompletionResult.failed(str(cause)), 503
        except Exception:
            log.exception("An answer of %s failed", answer.version)
            message = "The server failed because of a bug; see its log."
            answer.result, answer.status = CompletionResult.failed(message), 500
        latency_ms = (time.perf_counter() - started) * 1000
        answer.result = answer.result.model_copy(update={"latency_ms": latency_ms})

    async def _call(self, answer: ChatAnswer, backend: HostedBackend, is_streamed: bool) -> None:
        """Ask a provider; what it wrote before the client left counts a token a piece."""
        received: list[str] = []

        def on_text(piece: str) -> None:
            received.append(piece)
            answer.pieces.put_nowait(piece)

        try:
            reply = await backend.call(answer.request, on_text if is_streamed else None)
            if reply.kind == "unknown_model" and await run_in_threadpool(self._load, answer):
                reply = await backend.call(answer.request, on_text if is_streamed else None)
        except asyncio.CancelledError:
            answer.result = CompletionResult(
                text="".join(received), n_tokens=len(received), finish_reason=LEFT
            )
            return
        if reply.error is not None:
            answer.status = STATUSES.get(reply.kind, 502)
        answer.result = CompletionResult(
            text=reply.text,
            n_prompt_tokens=reply.n_prompt_tokens,
            n_tokens=reply.n_tokens,
            finish_reason=reply.finish_reason,
            error=reply.error,
        )

    def _load(self, answer: ChatAnswer) -> bool:
        """Whether a server that has restarted holds the adapter of the answer's version again."""
        if not self._settings.load_adapters or not answer.version.startswith(f"{self._name}@"):
            return False
        version = self._champions.find(answer.version)[1]
        return self._champions.serve(self._settings, version) is None

    async def _write(self, answer: ChatAnswer, backend: DirectBackend) -> None:
        """Let the thread of this machine's policy write; it ends at the next token once the client
        left.
        """
        loop, is_left = asyncio.get_running_loop(), threading.Event()

        def on_text(piece: str) -> None:
            loop.call_soon_threadsafe(answer.pieces.put_nowait, piece)

        writing = self._worker.submit(_complete, backend, answer, on_text, is_left.is_set)
        try:
            answer.result = await asyncio.shield(asyncio.wrap_future(writing))
        except asyncio.CancelledError:
            is_left.set()
            result = CompletionResult()
            if not writing.cancel():  # it has begun
                result = await asyncio.wrap_future(writing)
            answer.result = result.model_copy(update={"finish_reason": LEFT})
        answer.status = 400 if answer.result.error is not None else 200

    def _log(self, answer: ChatAnswer) -> ServedAnswer:
        choice, experiment = answer.choice, answer.choice.experiment
        result, keeps_texts = answer.result, self._settings.serving.keep_texts
        row = ServedAnswer(
            answer_id=answer.answer_id,
            version=answer.version,
            session_id=answer.session_id,
            created_at=answer.created_at,
            latency_s=result.latency_ms / 1000,
            n_prompt_tokens=result.n_prompt_tokens,
            n_tokens=result.n_tokens,
            cost=choice.deployed.cost(result),
            finish_reason=FAILED if result.error is not None else result.finish_reason,
            error=result.error,
            prompt=answer.request.prompt if keeps_texts else None,
            completion=result.text if keeps_texts else None,
            experiment_id=experiment and experiment.experiment_id,
            arm=choice.arm,
            traffic_split=experiment and experiment.traffic_split,
        )
        try:
            self._champions.store.answers.add(row)
        except StoreError:  # the answer is delivered all the same
            log.exception("The answer %s is not in the log", answer.answer_id)
        if experiment is not None and choice.arm == "treatment":
            self._check_guardrails(row, experiment.experiment_id)
        return row

    def _check_guardrails(self, row: ServedAnswer, experiment_id: int) -> None:
        try:
            self._experiments.check_guardrails(experiment_id, row)
        except PipelineError:
            log.exception("The guardrails of experiment %s were not checked", experiment_id)

    def _find_champion(self) -> str | None:
        champions = self._champions
        promotion = champions.store.promotions.champion(self._name)
        return None if promotion is None else promotion.label

    def _open_treatment(self, experiment: Experiment | None) -> Deployed | None:
        """None without an experiment; one whose treatment cannot be opened is cancelled. Raises
        Problem 503 while the server cannot be reached.
        """
        with self._lock:
            if experiment is None:
                self._treatment = None
                return None
            label = experiment.treatment_model_id
            try:
                if self._treatment is None or self._treatment[0] != label:
                    version = self._champions.find(label)[1]
                    self._treatment = label, self._open(version)
                return self._treatment[1]
            except ServerUnreachable as cause:
                raise _describe_outage(cause) from cause
            except PipelineError as cause:
                self._experiments.cancel(experiment, f"{label} cannot be used: {cause}")
                return None

    def _open(self, version: ModelVersion | None = None) -> Deployed:
        """The champion, or `version`."""
        loop = LoopSettings.read(self._settings, only="completions")
        fields = loop.params("completions").model_dump(include=set(CompletionParams.model_fields))
        backend = self._champions.backend(self._settings, version=version)
        return Deployed(backend, CompletionParams(**fields), loop.calls())


def _describe_outage(cause: PipelineError) -> Problem:
    return Problem(
        503,
        f"The deployed version cannot be used: {cause}",
        kind="model_unavailable",
        headers=RETRY_SOON,
    )


def _start_task(
    work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


def _complete(
    backend: DirectBackend, answer: ChatAnswer, on_text: OnText, is_left: Callable[[], bool]
) -> CompletionResult:
    request = answer.request
    if isinstance(backend, LocalBackend):
        return backend.stream(request, on_text, is_left, is_fitted=not answer.is_limited)
    [result] = backend.complete([request])
    text = cut_before(result.text or "", request.stop)
    on_text(text)
    return result.model_copy(update={"text": text})
