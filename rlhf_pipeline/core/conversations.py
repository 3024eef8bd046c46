"""Reads a prompt as a conversation: its messages, its transcript and its id.

A prompt is stored as one text. A text that is a JSON list of messages is a conversation; any other
text is one message of the user, a transcript such as `Human: …` too. A message is written as
`write_prompt` writes it, `{"role": "user", "content": "Hi"}`, with `tool_calls` of OpenAI's API and
context documents as messages of the role `document`. `parse_messages` takes more forms.

The annotate page, providers, policies, reward models and trainings all read prompts by this module,
so that people judge what was sampled, and what they judged is trained and measured.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from unicodedata import normalize

from pydantic import Field, ValidationError

from rlhf_pipeline.core.documents import parse_json
from rlhf_pipeline.core.records import Record, canonical_json, content_id

Role = Literal["system", "user", "assistant", "tool", "document"]
ROLES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "ai", "bot", "chatbot", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "ipython", "observation"), "tool"),
    **dict.fromkeys(("document", "context"), "document"),
}
# How texts begin that a chat template wrote; a policy's template would wrap them once more.
RENDERED = (
    *("<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "[INST]"),
    *("<s>[INST]", "<s> [INST]", "<bos><start_of_turn>", "<|system|>", "<|user|>", "<｜begin"),
)
# How they end
END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "<|end|>", "</s>")
# Keys of messages that change what people judge
MEDIA = ("image", "images", "audio", "audios", "video", "videos", "files")
SPEAKER = re.compile(r"^(Human|User|Assistant|AI|System):[ \t]*", re.MULTILINE)
HH_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):[ \t]*")


class ConversationError(ValueError):
    """A value that is neither a conversation nor a prompt. The message has a cure and does not end
    in a full stop.
    """


class ToolCall(Record):
    """A function that the assistant calls; `arguments` is JSON."""

    name: str
    arguments: str
    call_id: str = ""


class Message(Record):
    """One message; `name` is that of a tool or the title of a document."""

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = Field(None, description="of a tool's message: the call it answers")

    @property
    def text(self) -> str:
        """What people and reward models read: the content, and each call as `name(arguments)`."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(filter(None, (self.content.strip(), *calls)))

    def to_chat(self) -> dict[str, Any]:
        """The message as chat APIs and TRL take it."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        return fields | {name: value for name, value in optional.items() if value is not None}


class Turn(Record):
    """A message as a page or a transcript shows it."""

    speaker: str
    text: str


def read_messages(prompt: str) -> list[Message]:
    """The messages of a stored prompt, at least one; never fails.

    >>> [message.role for message in read_messages('[{"role": "user", "content": "Hi"}]')]
    ['user']
    >>> read_messages("Human: Hi")[0].content
    'Human: Hi'
    """
    try:
        return parse_messages(_parse_list(prompt))
    except ConversationError:
        return [Message(role="user", content=prompt)]


def parse_prompt(value: Any) -> str:
    """The text to store for a prompt of a file: plain text as it is, messages in the form of
    `write_prompt`. A transcript that ends with an open `Assistant:` is read as messages too.

    Raises ConversationError for messages that cannot be read or leave nothing to answer, lists of
    other things, and texts that a chat template wrote.
    """
    document = _parse_list(value) if isinstance(value, str) else value
    if document is None:
        _refuse_rendered(value)
        is_open = value.rstrip().endswith(":")
        messages = parse_transcript(value) if is_open else None
        if messages is None or messages[-1].text or messages[-1].role != "assistant":
            return str(value)
        messages = messages[:-1]
    else:
        messages = parse_messages(document)
        for message in messages:
            _refuse_rendered(message.content)
    if messages[-1].role not in ("user", "tool", "document"):
        raise ConversationError(
            f"the prompt ends with a message of the {messages[-1].role}. End it with the message "
            "to answer, of the user or a tool"
        )
    return write_prompt(messages)


def _refuse_rendered(text: str) -> None:
    if text.lstrip().startswith(RENDERED):
        raise ConversationError(
            f"the prompt begins with {text.strip()[:20]!r}: a chat template wrote it, and "
            "would wrap it again. Give its messages as a JSON list"
        )


def write_prompt(messages: Sequence[Message]) -> str:
    """The text of a prompt with these messages: a single one of the user is stored as its text.

    >>> write_prompt([Message(role="user", content="Hi")])
    'Hi'
    """
    [first, *others] = messages
    if not others and first.role == "user" and read_messages(first.content) == [first]:
        return first.content
    return json.dumps([message.to_chat() for message in messages], ensure_ascii=False)


def parse_messages(value: Any) -> list[Message]:
    """The messages of a list: of OpenAI's form (`role`, `content` as text or text parts), or of
    ShareGPT's (`from`, `value`); or of an object that holds them as `messages` or `conversations`
    beside `documents`, which come first.

    Raises ConversationError.
    """
    documents: list[Message] = []
    if isinstance(value, Mapping):
        documents = [
            _parse_document(document) for document in _require_list(value.get("documents"))
        ]
        value = value.get("messages") or value.get("conversations")
    if not isinstance(value, list | tuple) or not value:
        raise ConversationError(
            'expected a list of messages, such as [{"role": "user", "content": "Hi"}]'
        )
    messages = [_parse_message(message) for message in value]
    if not any(message.text for message in messages):
        raise ConversationError("all messages are empty. Give one with a text")
    return [*documents, *messages]


def parse_transcript(text: str) -> list[Message] | None:
    """The messages of lines that begin with a speaker; None for a text without both speakers, or
    with other text before them. Where `Human:` and `Assistant:` each follow an empty line, as in
    hh-rlhf, other such lines are text.
    """
    return _split_transcript(HH_SPEAKER, text) or _split_transcript(SPEAKER, text)


def _split_transcript(speaker: re.Pattern[str], text: str) -> list[Message] | None:
    labels = list(speaker.finditer(text))
    if not labels or text[: labels[0].start()].strip():
        return None
    ends = [*(label.start() for label in labels[1:]), len(text)]
    messages = [
        Message(role=ROLES[label[1].lower()], content=text[label.end() : end].strip())
        for label, end in zip(labels, ends, strict=True)
    ]
    # with one speaker only it is a list of fields
    return messages if {"user", "assistant"} <= {message.role for message in messages} else None


def split_turns(prompt: str) -> tuple[Turn, ...]:
    """The messages of a conversation that have a text, with their speakers; none for a prompt of a
    single text, which has no speakers.

    >>> split_turns('[{"role": "system", "content": "Be kind."}]')
    (Turn(speaker='System', text='Be kind.'),)
    """
    messages = read_messages(prompt)
    if len(messages) == 1 and messages[0].role == "user":
        return ()
    return tuple(
        Turn(
            speaker=" ".join(filter(None, (message.role.capitalize(), message.name))),
            text=message.text,
        )
        for message in messages
        if message.text
    )


def render_transcript(prompt: str) -> str:
    """The prompt as one text, for reward models and plain lists: a single text as it is, turns
    each after its speaker.

    >>> render_transcript("Hi")
    'Hi'
    """
    turns = split_turns(prompt)
    if not turns:
        return read_messages(prompt)[0].content
    return "\n\n".join(f"{turn.speaker}: {turn.text}" for turn in turns)


def build_chat(
    prompt: str, *, takes_tools: bool = True, takes_system: bool = True
) -> list[dict[str, Any]]:
    """The prompt as messages for providers and chat templates. They have no role for documents:
    those stand before the text of the user's next message, and so do system messages without
    `takes_system`. Without `takes_tools` calls are texts, and what a tool returned is of the user.
    """
    chat: list[dict[str, Any]] = []
    texts: list[str] = []  # that stand before the user's next message
    for message in read_messages(prompt):
        if message.role == "document" or (message.role == "system" and not takes_system):
            texts.append("\n".join(filter(None, (message.name, message.content))))
            continue
        fields = message.to_chat()
        if not takes_tools and (message.role == "tool" or message.tool_calls):
            role = "user" if message.role == "tool" else message.role
            fields = {"role": role, "content": message.text}
        if fields["role"] == "user" and texts:
            fields["content"] = "\n\n".join([*texts, fields["content"]])
            texts = []
        chat.append(fields)
    if texts:
        chat.append({"role": "user", "content": "\n\n".join(texts)})
    return chat


def normalise_text(text: str) -> str:
    r"""The text without the whitespace around it, line ends as \n, in Unicode's form C.

    >>> normalise_text(" Why?\r\nSay. ")
    'Why?\nSay.'
    """
    return normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


def normalise_prompt(prompt: str) -> str:
    """Equal for conversations that differ in whitespace, line ends, Unicode form or the form of
    their messages alone: splits and duplicates go by it.
    """
    if not _may_hold_messages(prompt):
        return normalise_text(prompt)
    messages = read_messages(prompt)
    contents = [normalise_text(message.content) for message in messages]
    if len(messages) == 1 and messages[0].role == "user":
        return contents[0]
    pairs = zip(messages, contents, strict=True)
    return canonical_json([m.model_copy(update={"content": c}).to_chat() for m, c in pairs])


def prompt_id(prompt: str, reference: str | None = None) -> str:
    """Hash of a normalised prompt and its checkable answer."""
    return content_id("prompt", normalise_prompt(prompt), reference or "")


def _may_hold_messages(text: str) -> bool:
    return text.lstrip().startswith(("[", "{"))


def _parse_list(text: str) -> Any:
    """The JSON of a text that is a list of objects or texts, or an object with messages; None for
    any other text.
    """
    if not _may_hold_messages(text):
        return None
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return value if {"messages", "conversations"} & value.keys() else None
    return value if value and all(isinstance(message, dict | str) for message in value) else None


def _parse_message(value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise ConversationError(
            f"{_shorten(value)} is not a message. Expected an object with role and content"
        )
    name = value.get("role", value.get("from"))
    role = ROLES.get(str(name).lower())
    if role is None:
        raise ConversationError(f"unknown role {_shorten(name)}. Known: {', '.join(ROLES)}")
    media = next((key for key in MEDIA if value.get(key)), None)
    if media is not None:
        raise ConversationError(f"a message has {media!r}; only text can be read. Leave it out")
    # the older form of one call
    legacy = [value["function_call"]] if value.get("function_call") else []
    calls = tuple(_parse_call(call) for call in _require_list(value.get("tool_calls") or legacy))
    content = value.get("content", value.get("value"))
    if content is None and "content" not in value and not calls:
        raise ConversationError(
            f"a message of the {role} has no content. Give one, or leave it out"
        )
    try:
        return Message(
            role=role,
            content=_join_parts(content),
            name=value.get("name"),
            tool_calls=calls,
            tool_call_id=value.get("tool_call_id"),
        )
    except ValidationError as cause:
        raise ConversationError(
            f"a message of the {role} has a name or tool_call_id other than a text. Correct it"
        ) from cause


def _require_list(value: Any) -> Sequence[Any]:
    if value is not None and not isinstance(value, list | tuple):
        raise ConversationError(
            f"{_shorten(value)} is not a list. Expected tool calls or documents"
        )
    return value or ()


def _join_parts(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list | tuple) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise ConversationError(
                f"content of the kind {_shorten(kind)} cannot be read, only text. Leave it out"
            )
        texts.append(text)
    return "".join(texts)


def _parse_call(value: Any) -> ToolCall:
    function = value.get("function", value) if isinstance(value, Mapping) else {}
    if not isinstance(function.get("name"), str):
        raise ConversationError(f"the tool call {_shorten(value)} has no name. Give function.name")
    arguments = function.get("arguments", "{}")
    return ToolCall(
        name=function["name"],
        arguments=arguments if isinstance(arguments, str) else canonical_json(arguments),
        call_id=value.get("id") or "",
    )


def _parse_document(value: Any) -> Message:
    fields = value if isinstance(value, Mapping) else {"text": value}
    text = next((fields[n] for n in ("text", "content", "contents") if n in fields), None)
    if not isinstance(text, str) or not text.strip():
        raise ConversationError(f"the document {_shorten(value)} has no text. Give one")
    return Message(role="document", content=text, name=fields.get("title"))


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
