"""Asks a text generator for prompts and rejects texts that are not prompts."""

import re
from collections.abc import Sequence

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.protocols import TextGenerator

MAX_CHARS = 4_000
# What Evol-Instruct (Xu et al. 2023) eliminates: texts that talk about the prompt, and refusals.
LEAKS = (
    "the prompt below",
    "given prompt",
    "rewritten prompt",
    "new prompt:",
    "here is the",
    "as an ai",
    "i'm sorry",
    "i am sorry",
    "i cannot",
)
PAGE = re.compile(r"<(?:!doctype|html|head|body|\?xml|script)\b", re.IGNORECASE)
FAULT = re.compile(r"\{\s*[\"']?(?:error|detail|message)[\"']?\s*:", re.IGNORECASE)
REPLACEMENT_CHARACTER = "\ufffd"  # replacement character of undecodable bytes


def ask(text_generator: TextGenerator, instructions: Sequence[str], *, seed: int) -> list[str]:
    """Request one text for each of `instructions`. Raises PromptError if the generator returns
    another number.
    """
    texts = list(text_generator.generate_texts(instructions, seed=seed)) if instructions else []
    if len(texts) != len(instructions):
        raise PromptError(
            f"The text generator {type(text_generator).__name__} gave {len(texts)} texts for "
            f"{len(instructions)} instructions, so they cannot be matched. It must return one "
            f"each, empty if it has none."
        )
    return texts


def find_prompt_fault(text: str) -> str | None:
    """Why a written text is not a prompt; None if it may be one.

    >>> print(find_prompt_fault("Name a tree."))
    None
    >>> find_prompt_fault("<html><body>502 Bad Gateway</body></html>")
    'a web page was written, as a proxy sends it where a provider should answer'
    """
    if not text.strip():
        return "nothing was written"
    if len(text) > MAX_CHARS:
        return f"{len(text):,} characters were written, a prompt may have {MAX_CHARS:,}"
    if PAGE.match(text):
        return "a web page was written, as a proxy sends it where a provider should answer"
    if FAULT.match(text):
        return "an error message was written"
    if REPLACEMENT_CHARACTER in text:
        return "undecodable bytes were written"
    if sum(sign.isalpha() for sign in text) < 3:
        return "the text contains no word"
    folded = text.casefold().replace("\u2019", "'")
    if leak := next((leak for leak in LEAKS if leak in folded), None):
        return f"the text talks about the prompt or refuses: {leak!r}"
    return None
