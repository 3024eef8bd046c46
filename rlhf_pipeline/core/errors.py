"""Exceptions of this library; each message names the thing, the cause and the cure.

PipelineError
├── ConfigurationError         a setting or parameter that cannot be used
├── FrameError                 a DataFrame that breaks its schema
├── DatasetError               a file that cannot be imported
├── PromptError                a template, data set or instruction that cannot give a prompt
├── CompletionError            a backend failed to complete
│   └── BackendUnavailable     the backend cannot be reached or loaded at all
│       ├── ProviderParked     the provider asked for a longer wait than a run allows
│       └── ServerUnreachable  no connection to the model server, or none through its proxy
├── StoreError                 the database refused a read or write
│   ├── UnknownComparison      a vote or prediction for a comparison that was never published
│   ├── InvalidVote            a vote that breaks the rules of voting
│   ├── IdempotencyConflict    one idempotency key, two different bodies
│   ├── AlreadyVoted           a second vote on a card that does not name the vote it supersedes
│   ├── NotFound               no such row, or it belongs to another user
│   │   └── LoginEnded         the caller's token or password is no longer valid
│   ├── OutdatedEdit           another user changed the row in the meantime
│   ├── AlertState             the alert has been resolved or has ended already
│   ├── DatasetConflict        the status of the data set forbids it, or its name is taken
│   ├── ReviewConflict         the reviewed feedback changed meanwhile
│   ├── ReleaseConflict        the state of the version or of its release forbids it
│   ├── ExperimentConflict     the status of the experiment or another one forbids it
│   └── UnstorableText         a text with a NUL character or a lone surrogate
├── NotEnoughData              too few rows to compute the result
│   └── NotEnoughVotes
├── InvalidScores              NaN or infinite where a number is needed
├── ModelError
│   ├── ModelNotFound          no such folder, version or alias
│   │   └── EncoderNotFound    the encoder does not exist or cannot be downloaded
│   ├── ModelHashMismatch      the files differ from the registered ones
│   ├── ModelRefused           the reward model may not become champion without --force
│   └── TrainingFailed
│       └── StoppedBySentinel  a sentinel stopped it before its first checkpoint
├── ArtefactError              a stored frame or record that cannot be read or written
│   └── MissingPartition
├── ApiError                   a server refused a request or could not be reached
│   ├── NotAuthorised          missing or expired token, or missing permission (401, 403)
│   ├── MissingResource        no such resource, or it belongs to another user (404)
│   ├── ConflictingRequest     conflicts with another change or request (409, 412)
│   ├── InvalidRequest         invalid request; `fields` lists the wrong fields (400, 413, 422)
│   ├── TooManyRequests        rate limit reached (429)
│   └── ServerUnavailable      no connection, or a server error (5xx)
├── DeliveryFailed             an attempt to send a message about an alert failed
├── OutOfMemory                the process reached its memory limit
└── ExpectationFailed          a blocking data check failed
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType


class PipelineError(Exception):
    """Base of all errors raised on purpose."""


class ConfigurationError(PipelineError): ...


class FrameError(PipelineError): ...


class DatasetError(PipelineError): ...


class PromptError(PipelineError): ...


class CompletionError(PipelineError): ...


class BackendUnavailable(CompletionError): ...


class ProviderParked(BackendUnavailable): ...


class ServerUnreachable(BackendUnavailable): ...


class StoreError(PipelineError): ...


class UnknownComparison(StoreError): ...


class InvalidVote(StoreError): ...


class IdempotencyConflict(StoreError): ...


class AlreadyVoted(StoreError): ...


class NotFound(StoreError): ...


class LoginEnded(NotFound): ...


class OutdatedEdit(StoreError): ...


class AlertState(StoreError): ...


class DatasetConflict(StoreError): ...


class ReviewConflict(StoreError): ...


class ReleaseConflict(StoreError): ...


class ExperimentConflict(StoreError): ...


class UnstorableText(StoreError): ...


class NotEnoughData(PipelineError): ...


class NotEnoughVotes(NotEnoughData): ...


class InvalidScores(PipelineError): ...


class ModelError(PipelineError): ...


class ModelNotFound(ModelError): ...


class EncoderNotFound(ModelNotFound):
    """No such encoder; `why` is the message without the cure, for callers with a fallback."""

    def __init__(self, why: str, cure: str) -> None:
        super().__init__(f"{why}. {cure}")
        self.why = why


class ModelHashMismatch(ModelError): ...


class ModelRefused(ModelError): ...


class TrainingFailed(ModelError): ...


class StoppedBySentinel(TrainingFailed):
    """`curves`: what was measured up to the stop, (step, value) pairs by name."""

    curves: Mapping[str, Sequence[tuple[int, float]]] = MappingProxyType({})


class ArtefactError(PipelineError): ...


class MissingPartition(ArtefactError): ...


class DeliveryFailed(PipelineError): ...


class OutOfMemory(PipelineError): ...


class ExpectationFailed(PipelineError): ...


class ApiError(PipelineError):
    """A server's error response: HTTP `status` (0 if none came), problem `kind`, and (path,
    message) per invalid field.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        kind: str | None = None,
        fields: tuple[tuple[str, str], ...] = (),
    ):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.fields = fields


class NotAuthorised(ApiError): ...


class MissingResource(ApiError): ...


class ConflictingRequest(ApiError): ...


class InvalidRequest(ApiError): ...


class TooManyRequests(ApiError): ...


class ServerUnavailable(ApiError): ...


TORCH_ALLOCATION_FAILED = "can't allocate memory"  # in the RuntimeError of torch's allocator


@contextmanager
def translate_memory_errors(what: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemory, which names `what` needed it."""
    try:
        yield
    except (MemoryError, RuntimeError) as cause:
        if isinstance(cause, RuntimeError) and TORCH_ALLOCATION_FAILED not in str(cause):
            raise
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
        raise OutOfMemory(
            f"{what} needs more memory than this process may have ({reason}). Raise the limit "
            "(ulimit -v, the container's), take fewer days in one run, or let fewer runs work at "
            "once (RLHF_MAX_CONCURRENT_RUNS). The last good files are untouched."
        ) from cause
