"""Requests of `POST /v1/chat/completions`, in the shape of OpenAI's API."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rlhf_pipeline.core.conversations import parse_prompt
from rlhf_pipeline.core.records import Text

# Fields of OpenAI's API that change no answer.
IGNORED = frozenset(
    (
        *("parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "service_tier", "store"),
    )
)
# Values of other fields that ask for nothing; 0, false, null and empty ones do so too.
NEUTRAL: dict[str, Any] = {
    "modalities": ["text"],
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "tool_choice": "none",
}
ShortText = Annotated[Text, Field(max_length=200)]
StopText = Annotated[Text, Field(min_length=1, max_length=200)]


def _parse_messages(value: Any) -> str:
    if not isinstance(value, list):
        raise ValueError('expected a list such as [{"role": "user", "content": "Hi"}]')
    return parse_prompt(value)


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """A conversation to answer. Unknown fields that could change the answer are refused."""

    model_config = ConfigDict(extra="allow")

    model: Text | None = Field(
        default=None, description="The deployed version or its name; empty = the deployed one."
    )
    messages: Annotated[
        Text,
        BeforeValidator(_parse_messages, json_schema_input_type=list[dict[str, Any]]),
        Field(max_length=200_000),
    ]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=32768)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=32768)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    user: ShortText | None = None
    metadata: dict[str, ShortText] | None = Field(
        default=None, description="`session_id` groups the answers of one conversation."
    )

    @model_validator(mode="after")
    def _refuse_others(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value and name not in IGNORED and value != NEUTRAL.get(name):
                raise ValueError(f"{name} is not served here. Leave it out")
        return self

    @property
    def session_id(self) -> str | None:
        return (self.metadata or {}).get("session_id") or self.user
