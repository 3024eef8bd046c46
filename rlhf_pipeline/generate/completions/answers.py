"""Takes an answer apart: its text, with tool calls in words, and the reasoning before it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rlhf_pipeline.core.conversations import Message, ToolCall

ReasoningUse = Literal["drop", "show", "train"]
# What begins and ends the reasoning within a text: DeepSeek and Qwen, Seed, Magistral.
TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
}
# Fields beside `content` in which servers with OpenAI's API send it.
REASONING_FIELDS = ("reasoning_content", "reasoning")


class NotTextError(ValueError):
    """A part of an answer that is not text, such as an image."""


class ModelAnswer(NamedTuple):
    """`reasoning` is None where the model sent none."""

    text: str
    reasoning: str | None = None

    def render(self, use: ReasoningUse) -> str:
        """The completion: with `show` and `train` it begins with the reasoning."""
        if use == "drop" or not self.reasoning:
            return self.text
        return f"<think>\n{self.reasoning}\n</think>\n\n{self.text}"


def split_reasoning(text: str) -> ModelAnswer:
    r"""Read tags at the beginning. A closing tag alone, in a line's first or last place, ends a
    reasoning that the chat template opened; an opening one alone begins one that was cut off.

    >>> split_reasoning("<think>\nRhine? No.\n</think>\n\nThe Douro.")
    ModelAnswer(text='The Douro.', reasoning='Rhine? No.')
    >>> split_reasoning("Rhine? No.\n</think>\n\nThe Douro.").text
    'The Douro.'
    >>> split_reasoning("<think>\nRhine? No, per")
    ModelAnswer(text='', reasoning='Rhine? No, per')
    >>> split_reasoning("R1 writes <think> and </think>.").reasoning is None
    True
    """
    beginning = text.lstrip()
    for opening, closing in TAGS.items():
        if beginning.startswith(opening):
            thoughts, _, answer = beginning.removeprefix(opening).partition(closing)
            return ModelAnswer(answer.lstrip(), thoughts.strip())
        thoughts, end, answer = text.partition(closing)
        is_in_prose = thoughts.strip() and not (thoughts.endswith("\n") or answer[:1] in ("", "\n"))
        if end and opening not in thoughts and not is_in_prose:
            return ModelAnswer(answer.lstrip(), thoughts.strip())
    return ModelAnswer(text)


def join_parts(content: Any) -> ModelAnswer:
    """The text and the reasoning of a `content`: a text, nothing, or a list of parts, as of OpenAI,
    Mistral and Anthropic. Raises NotTextError for other parts, TypeError and LookupError for what
    is not content.
    """
    if content is None or isinstance(content, str):
        return ModelAnswer(content or "")
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for part in content:
        kind = part["type"]
        if kind in ("text", "output_text"):
            texts.append(part["text"])
        elif kind in ("thinking", "reasoning"):
            thoughts.append(join_parts(part.get(kind) or part.get("text")).text)
        elif kind == "tool_use":
            calls.append(_read_call(part))
        elif kind != "redacted_thinking":
            raise NotTextError(f"a part of the kind {kind!r}, which is not text")
    return ModelAnswer(add_calls("".join(texts), calls), "\n".join(thoughts) if thoughts else None)


def read_message(message: Mapping[str, Any]) -> ModelAnswer:
    """The answer in a message of OpenAI's API, with its tool calls. Raises as `join_parts` does."""
    text, thoughts = join_parts(message.get("content"))
    calls = [call.get("function") or call for call in message.get("tool_calls") or ()]
    calls += filter(None, [message.get("function_call")])
    beside = next((value for name in REASONING_FIELDS if (value := message.get(name))), thoughts)
    if beside is not None and not isinstance(beside, str):
        beside = join_parts(beside).text
    return ModelAnswer(add_calls(text, list(map(_read_call, calls))), beside)


def add_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """A text and the tool calls after it, as people read those of a prompt."""
    return Message(role="assistant", content=text, tool_calls=tuple(calls)).text if calls else text


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    arguments = call.get("arguments", call.get("input", ""))
    is_text = isinstance(arguments, str)
    return ToolCall(name=call["name"], arguments=arguments if is_text else json.dumps(arguments))


class AnswerStream:
    """Keeps all pieces of a stream in `pieces`, and passes on those of the answer, without the
    reasoning that begins it.
    """

    def __init__(self, pieces: list[str], on_text: Callable[[str], None]) -> None:
        self._pieces = pieces
        self._on_text = on_text
        self._begins = True

    def __call__(self, piece: str) -> None:
        self._pieces.append(piece)
        if self._begins:
            beginning = "".join(self._pieces)
            answer = split_reasoning(beginning)
            is_open = any(tag.startswith(beginning.strip()) for tag in TAGS)
            if is_open or (answer.reasoning is not None and not answer.text):
                return
            piece, self._begins = answer.text, False
        if piece:
            self._on_text(piece)
