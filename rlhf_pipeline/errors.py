"""Every error this library raises on purpose. Each message names the thing, the cause and the cure.

PipelineError
├── ConfigurationError         a setting or parameter that cannot be used
├── FrameError                 a DataFrame that breaks its schema
├── DatasetError               a file that cannot be imported
├── PromptError                a template, data set or instruction that cannot give a prompt
├── CompletionError            a backend that did not complete
│   └── BackendUnavailable     the backend cannot be reached or loaded at all
│       └── ProviderParked     a provider asked for longer than a run waits: it goes on later
├── StoreError                 the database refused
│   ├── UnknownComparison      a vote or prediction for a comparison that was never published
│   ├── InvalidVote            a vote that breaks the rules of voting
│   ├── IdempotencyConflict    one idempotency key, two different bodies
│   ├── AlreadyVoted           a card that was voted on, without saying which vote is superseded
│   ├── NotFound               no such row, or not one's own
│   │   └── LoginEnded         the token or password by which somebody asks holds no more
│   ├── OutdatedEdit           somebody else changed it meanwhile
│   ├── AlreadyRunning         the same request is being answered
│   └── UnstorableText         a text with NUL or half a character in it
├── NotEnoughData              too little to compute what was asked, never answered by a guess
│   └── NotEnoughVotes
├── InvalidScores              NaN or infinite where a number is needed
├── ModelError
│   ├── ModelNotFound          no such folder, version or alias
│   │   └── EncoderNotFound    no such encoder, or none that can be fetched now
│   ├── ModelHashMismatch      the files are not those that were registered
│   ├── ModelRefused           a reward model that may not become champion, promoted without --force
│   └── TrainingFailed
├── ArtefactError              a stored frame or record that cannot be read or written
│   └── MissingPartition
├── ApiError                   a server refused what the client asked, or could not be reached
│   ├── NotAuthorised          no token, one that ended, or one that may not (401, 403)
│   ├── MissingResource        no such thing, or not one's own (404)
│   ├── ConflictingRequest     somebody, or an earlier request, was there first (409, 412)
│   ├── InvalidRequest         a request that cannot be taken; `fields` says where (400, 413, 422)
│   ├── TooManyRequests        wait (429)
│   └── ServerUnavailable      no connection, or a server that is down or fails (5xx)
├── OutOfMemory                more memory was needed than the process may have
└── ExpectationFailed          a blocking data check said no
"""


class PipelineError(Exception):
    """Base of all errors raised on purpose."""


class ConfigurationError(PipelineError): ...


class FrameError(PipelineError): ...


class DatasetError(PipelineError): ...


class PromptError(PipelineError): ...


class CompletionError(PipelineError): ...


class BackendUnavailable(CompletionError): ...


class ProviderParked(BackendUnavailable): ...


class StoreError(PipelineError): ...


class UnknownComparison(StoreError): ...


class InvalidVote(StoreError): ...


class IdempotencyConflict(StoreError): ...


class AlreadyVoted(StoreError): ...


class NotFound(StoreError): ...


class LoginEnded(NotFound): ...


class OutdatedEdit(StoreError): ...


class AlreadyRunning(StoreError): ...


class UnstorableText(StoreError): ...


class NotEnoughData(PipelineError): ...


class NotEnoughVotes(NotEnoughData): ...


class InvalidScores(PipelineError): ...


class ModelError(PipelineError): ...


class ModelNotFound(ModelError): ...


class EncoderNotFound(ModelNotFound):
    """`why` without the cure, for whoever has another encoder to go on with."""

    def __init__(self, why: str, cure: str) -> None:
        super().__init__(f"{why}. {cure}")
        self.why = why


class ModelHashMismatch(ModelError): ...


class ModelRefused(ModelError): ...


class TrainingFailed(ModelError): ...


class ArtefactError(PipelineError): ...


class MissingPartition(ArtefactError): ...


class OutOfMemory(PipelineError): ...


class ExpectationFailed(PipelineError): ...


class ApiError(PipelineError):
    """What a server said: `status` (0 without an answer), `kind` of problem, and (path, message) of
    each wrong field.
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
