"""A prompt is read in one way: as messages, turns, a transcript and an id."""

import json

import pytest

from rlhf_pipeline.core.conversations import (
    ConversationError,
    Message,
    build_chat,
    parse_messages,
    parse_prompt,
    parse_transcript,
    prompt_id,
    read_messages,
    render_transcript,
    split_turns,
    write_prompt,
)

CHAT = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Name a lake."},
]
TOOL = [
    {"role": "user", "content": "Is it warm in Bern?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t1", "function": {"name": "weather", "arguments": {"in": "Bern"}}}],
    },
    {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "21 °C"},
]


def test_messages_of_every_form_give_one_conversation():
    shared_gpt = [
        {"from": "system", "value": "Be terse."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello."},
        {"from": "human", "value": "Name a lake."},
    ]
    parts = [dict(each, content=[{"type": "text", "text": each["content"]}]) for each in CHAT]
    forms = [CHAT, shared_gpt, parts, {"messages": CHAT}, {"conversations": shared_gpt}]
    for form in forms:
        text = json.dumps(form)
        assert build_chat(text) == CHAT
        assert parse_prompt(form) == parse_prompt(text) == json.dumps(CHAT)
        assert prompt_id(text) == prompt_id(json.dumps(CHAT))


def test_turns_and_transcript_hold_the_same_texts():
    text = json.dumps(CHAT)
    assert [turn.speaker for turn in split_turns(text)] == ["System", "User", "Assistant", "User"]
    assert [turn.text for turn in split_turns(text)] == [each["content"] for each in CHAT]
    assert render_transcript(text) == (
        "System: Be terse.\n\nUser: Hi\n\nAssistant: Hello.\n\nUser: Name a lake."
    )


@pytest.mark.parametrize(
    "text",
    [
        "Hi",
        " Hi\n",
        "",
        "Human: Hi\n\nAssistant:",
        "[1, 2]",
        "[not JSON",
        '{"a": 1}',
        "[" * 100_000,
        '[{"role": "user"}]',
        '[{"role": "user", "role": "user", "content": "a"}]',
    ],
)
def test_any_other_text_is_one_message_of_the_user(text):
    assert build_chat(text) == [{"role": "user", "content": text}]
    assert split_turns(text) == ()
    assert render_transcript(text) == text


def test_a_tool_call_is_readable_and_sent_as_a_call():
    text = parse_prompt(TOOL)
    assert [turn.text for turn in split_turns(text)] == [
        "Is it warm in Bern?",
        'weather({"in":"Bern"})',
        "21 °C",
    ]
    [_, call, answer] = build_chat(text)
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"in":"Bern"}'}
    assert answer["tool_call_id"] == call["tool_calls"][0]["id"] == "t1"


def test_documents_are_sent_before_the_question():
    documents = [{"title": "Lakes", "text": "Thun is a lake."}, "Brienz is another."]
    text = parse_prompt({"messages": CHAT[-1:], "documents": documents})
    assert [(turn.speaker, turn.text) for turn in split_turns(text)] == [
        ("Document Lakes", "Thun is a lake."),
        ("Document", "Brienz is another."),
        ("User", "Name a lake."),
    ]
    question = "Lakes\nThun is a lake.\n\nBrienz is another.\n\nName a lake."
    assert build_chat(text) == [{"role": "user", "content": question}]


def test_tools_and_system_messages_can_be_sent_as_texts():
    text = parse_prompt([CHAT[0], *TOOL])
    assert build_chat(text, takes_tools=False, takes_system=False) == [
        {"role": "user", "content": "Be terse.\n\nIs it warm in Bern?"},
        {"role": "assistant", "content": 'weather({"in":"Bern"})'},
        {"role": "user", "content": "21 °C"},
    ]


def test_a_written_prompt_is_read_back():
    for messages in (
        [Message(role="user", content="Hi")],
        [Message(role="user", content=json.dumps(CHAT))],
        [Message(role="system", content="Be kind.")],
        parse_messages(TOOL),
    ):
        assert read_messages(write_prompt(messages)) == messages


def test_an_open_transcript_of_a_file_becomes_messages():
    text = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Name a\nlake.\n\nAssistant:"
    assert build_chat(parse_prompt(text)) == [
        *CHAT[1:3],
        {"role": "user", "content": "Name a\nlake."},
    ]
    for plain in ("Human: Hi\n\nAssistant: Hello.", "System: Linux\nUser: root", "Say: Human: a"):
        assert parse_prompt(plain) == plain
    assert parse_transcript("Say it.\n\nHuman: a\n\nAssistant: b") is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([{"role": "critic", "content": "a"}], "unknown role 'critic'"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": 7}], "content of the kind 7"),
        ([{"role": "user", "content": ""}], "all messages are empty"),
        ([{"role": "user", "content": "a", "name": 7}], "other than a text"),
        ([{"role": "user", "content": "a", "tool_calls": 7}], "7 is not a list"),
        ([{"role": "user", "content": "a", "tool_calls": [7]}], "has no name"),
        ({"messages": CHAT, "documents": [{"id": 1}]}, "has no text"),
        ({"messages": CHAT, "documents": [" "]}, "has no text"),
        ([], "expected a list of messages"),
        (["Hi", "Are you sure?"], "'Hi' is not a message"),
        (CHAT[:3], "ends with a message of the assistant"),
    ],
)
def test_invalid_conversation_is_refused_with_the_reason(value, reason):
    with pytest.raises(ConversationError, match=reason):
        parse_prompt(value)


def test_a_text_of_a_chat_template_is_refused():
    with pytest.raises(ConversationError, match="chat template wrote it"):
        parse_prompt("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_ids_ignore_whitespace_line_ends_and_unicode_form():
    texts = ["Say café.\nNow.", " Say café.\r\nNow.\n", "Say cafe\u0301.\rNow."]
    assert len({prompt_id(text) for text in texts}) == 1
    chats = [json.dumps([CHAT[0], {"role": "user", "content": text}]) for text in texts]
    assert len({prompt_id(chat) for chat in chats}) == 1
    assert prompt_id(json.dumps([{"role": "user", "content": texts[1]}])) == prompt_id(texts[0])
    others = [*texts[:1], "Say  café.\nNow.", chats[0], json.dumps(CHAT), parse_prompt(TOOL)]
    assert len({prompt_id(text) for text in others}) == len(others)
    assert prompt_id(texts[0], "42") != prompt_id(texts[0])
