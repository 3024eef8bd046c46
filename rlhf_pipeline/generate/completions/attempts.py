"""Turns replies and results into attempts, which the ledger records and which settle items."""

from datetime import datetime, timedelta

from rlhf_pipeline.core.protocols import Attempt, Claim, Lane
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions.answers import split_reasoning
from rlhf_pipeline.generate.completions.base import CompletionResult, Reply
from rlhf_pipeline.generate.completions.faults import PARTIAL, describe_empty
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.request_plan import Plan


def is_last_attempt(claim: Claim, reply: Reply, params: CallParams) -> bool:
    """Whether an item fails permanently after this failure."""
    if reply.outcome == "terminal" or reply.kind == "long_wait":
        return reply.outcome == "terminal"
    n_faults = claim.n_faults + reply.is_fault
    n_refusals = claim.n_attempts + 1 - claim.n_before - n_faults
    return n_faults >= params.max_attempts or n_refusals >= params.max_refusals


def build_attempt(
    lane: Lane,
    plan: Plan,
    claim: Claim,
    reply: Reply,
    params: CallParams,
    started_at: datetime,
    latency_ms: float = 0.0,
) -> Attempt:
    """The attempt of a call to a provider."""
    request = plan.request(claim.item_no)
    is_done = reply.outcome == "succeeded"
    is_over = not is_done and reply.kind != "cancelled" and is_last_attempt(claim, reply, params)
    not_before = None
    if not (is_done or is_over) and reply.kind != "long_wait":
        # If the provider said how long to wait, retries are spread a little after that.
        n_tries = 1 if reply.wait_s is not None else claim.n_attempts + 1 - claim.n_before
        wait_s = min(reply.wait_s or 0.0, params.max_pause_s) + params.backoff(n_tries)
        not_before = utc_now() + timedelta(seconds=wait_s)
    told_cost = params.cost(reply.n_prompt_tokens, reply.n_tokens)
    cost = {"unknown": params.max_cost(request), "metered": told_cost, "none": 0}[reply.billing]
    return Attempt(
        item_no=claim.item_no,
        provider=lane[0],
        model=lane[1],
        cache_key=plan.keys[claim.item_no],
        started_at=started_at,
        latency_ms=latency_ms,
        outcome=reply.outcome,
        kind=reply.kind,
        becomes="succeeded" if is_done else "failed" if is_over else "open",
        is_fault=reply.is_fault and not is_done,
        billing=reply.billing,
        status=reply.status,
        n_prompt_tokens=reply.n_prompt_tokens,
        n_tokens=reply.n_tokens,
        cost=cost,
        wait_s=reply.wait_s,
        error=_make_storable(reply.error),
        partial=_make_storable(reply.partial),
        not_before=not_before,
        result=_encode_result(reply, latency_ms) if is_done else None,
    )


def build_local_attempt(
    lane: Lane, cache_key: str, item_no: int, result: CompletionResult, started_at: datetime
) -> Attempt:
    """The attempt of a result made on this machine."""
    result = _fail_if_empty(_separate_reasoning(result), lane[1])
    failed = result.error is not None
    return Attempt(
        item_no=item_no,
        provider=lane[0],
        model=lane[1],
        cache_key=cache_key,
        started_at=started_at,
        latency_ms=result.latency_ms,
        outcome="terminal" if failed else "succeeded",
        kind=_failure_kind(result) if failed else "succeeded",
        becomes="failed" if failed else "succeeded",
        is_fault=failed,
        billing="none",
        n_prompt_tokens=result.n_prompt_tokens,
        n_tokens=result.n_tokens,
        error=_make_storable(result.error),
        result=None if failed else result.model_dump_json(),
    )


def _separate_reasoning(result: CompletionResult) -> CompletionResult:
    answer = split_reasoning(result.text or "")
    return result if answer.reasoning is None else result.model_copy(update=answer._asdict())


def _fail_if_empty(result: CompletionResult, model: str) -> CompletionResult:
    """Turn an empty text into a failure: it could not be judged."""
    if result.error is None and not (result.text or "").strip():
        error = describe_empty(model, result.finish_reason, result.reasoning)
        return result.model_copy(update={"error": error, "text": None})
    return result


def _failure_kind(result: CompletionResult) -> str:
    if result.finish_reason == "content_filter":
        return "content_filter"
    return "empty" if result.finish_reason != "error" else "backend_error"


def _encode_result(reply: Reply, latency_ms: float) -> str:
    return CompletionResult(
        text=reply.text,
        reasoning=_replace_unstorable(reply.reasoning),
        n_prompt_tokens=reply.n_prompt_tokens,
        n_tokens=reply.n_tokens,
        latency_ms=latency_ms,
        finish_reason=reply.finish_reason,
    ).model_dump_json()


def _make_storable(text: str | None) -> str | None:
    """The beginning of the text, without NUL and lone surrogates, which databases refuse."""
    return None if text is None else _replace_unstorable(text[:PARTIAL])


def _replace_unstorable(text: str | None) -> str | None:
    return text and text.replace("\x00", "").encode("utf-8", "replace").decode()
