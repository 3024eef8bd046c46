"""Every error this library raises on purpose. Each message names the thing, the cause and the cure.

PipelineError
├── ConfigurationError         a setting or parameter that cannot be used
├── FrameError                 a DataFrame that breaks its schema
├── DatasetError               a file that cannot be imported
├── PromptError                a template, data set or instruction that cannot give a prompt
├── CompletionError            a backend that did not complete
│   └── BackendUnavailable     the backend cannot be reached or loaded at all
├── StoreError                 the database refused
│   ├── UnknownComparison      a vote or prediction for a comparison that was never published
│   ├── InvalidVote            a vote that breaks the rules of voting
│   └── IdempotencyConflict    one idempotency key, two different bodies
├── NotEnoughData              too little to compute what was asked, never answered by a guess
│   └── NotEnoughVotes
├── InvalidScores              NaN or infinite where a number is needed
├── ModelError
│   ├── ModelNotFound          no such folder, version or alias
│   ├── ModelHashMismatch      the files are not those that were registered
│   └── TrainingFailed
├── ArtefactError              a stored frame or record that cannot be read or written
│   └── MissingPartition
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


class StoreError(PipelineError): ...


class UnknownComparison(StoreError): ...


class InvalidVote(StoreError): ...


class IdempotencyConflict(StoreError): ...


class NotEnoughData(PipelineError): ...


class NotEnoughVotes(NotEnoughData): ...


class InvalidScores(PipelineError): ...


class ModelError(PipelineError): ...


class ModelNotFound(ModelError): ...


class ModelHashMismatch(ModelError): ...


class TrainingFailed(ModelError): ...


class ArtefactError(PipelineError): ...


class MissingPartition(ArtefactError): ...


class ExpectationFailed(PipelineError): ...
