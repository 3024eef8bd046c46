"""Scores how much a prompt is worth asking, for the selection of evolution.

A prompt is worth more the harder it is judged to be.
"""

import math
import re
from collections.abc import Sequence
from typing import Protocol

from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.generated_texts import ask

CONDITIONS = re.compile(
    r"\b(at (?:most|least)|exactly|without|only|each|every|both|neither|nothing|none|never|must|"
    r"may not|not|no|except|unless|if|until|while|before|after|instead|another|same|first|last|"
    r"then|in (?:which )?order|between)\b",
    re.IGNORECASE,
)
ASKS = re.compile(
    r"\?|\b(?:and|then|also) "
    r"(?:what|which|who|why|how|when|where|whom|say|name|give|explain|list|compare|check|write|"
    r"tell)\b|[;:]",
    re.IGNORECASE,
)
NUMBERS = re.compile(
    r"\b(?:\d+|two|three|four|five|six|seven|eight|nine|ten|hundred|thousand|million)\b",
    re.IGNORECASE,
)
JUDGE = (
    "How hard is it to do what the prompt below asks, and to do it well? 1: anybody can, at once. "
    "10: an expert needs hours. Answer with the number alone.\n\nPrompt: {text}"
)


class Fitness(Protocol):
    """Scores texts; higher is better. None for a text that could not be judged: it is left out,
    never guessed.
    """

    name: str

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]: ...


class Demands:
    """Difficulty counted from the demands of a text, without a judge: the offline counterpart of
    `JudgedDifficulty`.

    The logarithm of its words, and what it asks, sets as a condition and counts. It reads words,
    not sense.
    """

    name = "demands"

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]:
        return [demands(text) for text in texts]


class JudgedDifficulty:
    """Difficulty from 1 to 10 as a text generator judges it."""

    name = "judged_difficulty"

    def __init__(self, text_generator: TextGenerator) -> None:
        self._generator = text_generator

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]:
        answers = ask(self._generator, [JUDGE.format(text=text) for text in texts], seed=seed)
        return [_parse_grade(answer) for answer in answers]


def demands(text: str) -> float:
    """How much a text asks for.

    >>> more = "Name two trees without the letter e, and say why each matters."
    >>> demands("Name a tree.") < demands(more)
    True
    """
    n_words = len(text.split())
    return (
        math.log2(1 + n_words)
        + len(ASKS.findall(text))
        + len(CONDITIONS.findall(text))
        + 0.5 * len(NUMBERS.findall(text))
    )


def _parse_grade(answer: str) -> float | None:
    match = re.fullmatch(r"\D{0,40}?\b(10|[1-9])(?:\s*/\s*10)?\b\D{0,40}", answer.strip())
    return float(match.group(1)) if match else None
