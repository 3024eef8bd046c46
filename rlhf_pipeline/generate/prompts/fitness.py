"""Scores how much a prompt is worth asking, for the selection of evolution.

A prompt is worth more the harder it is judged to be, or the less sure the reward model is of which
of two completions of it is better: votes on it then teach more (Freund et al. 1997, query by
committee).
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.protocols import TextGenerator
from rlhf_pipeline.generate.prompts.generated_texts import ask

Complete = Callable[[Sequence[str], int], Sequence[tuple[str, str] | None]]
Doubts = Callable[[Sequence[str], Sequence[str], Sequence[str]], npt.NDArray[np.float64]]

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
        said = ask(self._generator, [JUDGE.format(text=text) for text in texts], seed=seed)
        return [_parse_grade(answer) for answer in said]


class RewardModelUncertainty:
    """Disagreement of a reward model's members on two completions of each prompt, 0 to 0.5; see
    `reward_model.disagreement`.
    """

    name = "reward_model_uncertainty"

    def __init__(self, complete: Complete, doubts: Doubts) -> None:
        """`complete(texts, seed)` gives two completions of each text, or None where there are none;
        `doubts(prompts, a, b)` gives (n,).
        """
        self._complete = complete
        self._doubts = doubts

    def scores(self, texts: Sequence[str], *, seed: int) -> list[float | None]:
        """Raises InvalidScores for a doubt that is NaN or infinite."""
        pairs = self._complete(texts, seed)
        made = [i for i, pair in enumerate(pairs) if pair is not None]
        found: list[float | None] = [None] * len(texts)
        if not made:
            return found
        a, b = zip(*(pair for pair in pairs if pair is not None), strict=True)
        doubts = self._doubts([texts[i] for i in made], a, b)
        if len(doubts) != len(made) or not np.isfinite(doubts).all():
            raise InvalidScores(
                f"{len(doubts)} doubts for {len(made)} prompts, or some are not numbers. Check "
                f"the reward model."
            )
        for i, doubt in zip(made, doubts, strict=True):
            found[i] = float(doubt)
        return found


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
    found = re.fullmatch(r"\D{0,40}?\b(10|[1-9])(?:\s*/\s*10)?\b\D{0,40}", answer.strip())
    return float(found.group(1)) if found else None
