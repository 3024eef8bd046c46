"""Detects completions that name the model that wrote them."""

import re

from rlhf_pipeline.store.comparisons import Texts

MODELS = (
    r"chat-?gpt|gpt-?[2-9o][\w.-]*|claude|gemini|gemma|palm ?2?|bard|llama|"
    r"mi[sx]tral|mixtral|qwen|deepseek|grok|copilot|command[- ]?r|falcon|vicuna|alpaca|phi-\d|"
    r"ernie|kimi|chatglm|glm-\d|yi-\d\w*|koala|dolly"
)
MAKERS = (
    r"openai|anthropic|google(?: deepmind)?|deepmind|meta(?: ai)?|mistral ai|"
    r"alibaba(?: cloud)?|deepseek|x\.?ai|microsoft|cohere|baidu|moonshot ai|zhipu ai|databricks"
)
# "I am Claude", "as ChatGPT, I", "my name is Bard", "trained by OpenAI": about the writer. "Compare
# OpenAI and Google" is not.
SELF_NAMING = re.compile(
    r"\b(?:i\s*(?:am|'m|’m)|my\s+name\s+is|call\s+me|as)\s+(?:an?\s+|the\s+)?"
    rf"(?:\w+\s+){{0,3}}?(?:{MODELS})\b"
    r"|\b(?:trained|developed|created|made|built|designed|powered)\s+by\s+(?:the\s+\w+\s+at\s+)?"
    rf"(?:{MAKERS})\b"
    r"|\b(?:i\s*(?:am|'m|’m)|as)\s+(?:an?\s+)?(?:\w+\s+){0,3}?"
    rf"(?:model|assistant|ai)\s+(?:from|by|of)\s+(?:{MAKERS})\b",
    re.IGNORECASE,
)
# `gpt-4o`, not `unknown`: a common word is no evidence
MODEL_NAME = re.compile(r"(?=.*[a-z])(?=.*[-._\d])[\w.-]{4,}")


def names_its_maker(texts: Texts) -> bool:
    """Whether either completion presents itself as a known model or by the name of its model
    here.
    """
    names = [name.split("@")[0].lower() for name in (texts.model_version_a, texts.model_version_b)]
    completions = (texts.completion_a, texts.completion_b)
    return any(SELF_NAMING.search(text) for text in completions) or any(
        _contains_name(name, text)
        for name in names
        if MODEL_NAME.fullmatch(name)
        for text in completions
    )


def _contains_name(name: str, text: str) -> bool:
    return (
        name in text.lower()
        and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None
    )
