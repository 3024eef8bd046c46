"""How varied the completions of a policy are, and whether they only repeat their prompts."""

from collections.abc import Sequence

from rlhf_pipeline.core.conversations import read_messages

SHORT = 5  # words; shorter answers, such as labels, are right in the same words again and again
SAME = 0.8  # word pairs that answer and prompt share, of those in either, by which one is a copy


def distinct_share(texts: Sequence[str], n: int = 2) -> float | None:
    """Different n-grams of words over all n-grams in all texts (distinct-n, Li et al. 2016); None
    where no text has n words.

    It falls as more text is counted, so only equal numbers of completions are comparable.

    >>> distinct_share(["a b c", "a b d"])
    0.75
    """
    grams = [gram for text in texts for gram in _list_grams(text, n)]
    return len(set(grams)) / len(grams) if grams else None


def answer_diversity(texts: Sequence[str]) -> float | None:
    """Different word pairs over all in the answers that are not short; where all are short, 0 if
    they are one text, else None.

    >>> answer_diversity(["no", "yes", "no"]), answer_diversity(["no", "no", "no"])
    (None, 0.0)
    """
    long = [text for text in texts if len(text.split()) >= SHORT]
    return distinct_share(long) if long else None if len(set(texts)) > 1 else 0.0


def copied_share(prompts: Sequence[str], texts: Sequence[str]) -> float:
    """Share of answers that repeat the last message of their prompt and say little else.

    >>> prompt = "What is the capital of Japan?"
    >>> copied_share([prompt, prompt], ["what is the capital of japan?", f"{prompt} It is Tokyo."])
    0.5
    """
    pairs = zip(prompts, texts, strict=True)
    return sum(_is_copy(read_messages(prompt)[-1].content, text) for prompt, text in pairs) / len(
        texts
    )


def _is_copy(prompt: str, answer: str) -> bool:
    ours, theirs = (set(_list_grams(text.casefold(), 2)) for text in (answer, prompt))
    return bool(ours) and len(ours & theirs) >= SAME * len(ours | theirs)


def _list_grams(text: str, n: int) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
