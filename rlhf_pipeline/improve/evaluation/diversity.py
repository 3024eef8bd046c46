"""How varied the completions of a policy are."""

from collections.abc import Sequence


def distinct_share(texts: Sequence[str], n: int = 2) -> float | None:
    """Different n-grams of words over all n-grams in all texts (distinct-n, Li et al. 2016); None
    where no text has n words.

    It falls as more text is counted, so only equal numbers of completions are comparable.

    >>> distinct_share(["a b c", "a b d"])
    0.75
    """
    grams = [
        tuple(words[i : i + n])
        for words in (text.split() for text in texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else None
