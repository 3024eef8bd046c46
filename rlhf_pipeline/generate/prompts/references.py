"""Finds checkable answers in completions."""

import re


def is_right(reference: str, completion: str) -> bool:
    """Whether the completion gives the reference as whole words, in any case, with either
    apostrophe.

    >>> is_right("Paris", "It is paris."), is_right("7", "There are 17.")
    (True, False)
    """
    reference, completion = (text.replace("’", "'") for text in (reference, completion))
    words = r"\s+".join(re.escape(word) for word in reference.split())
    return re.search(rf"(?<!\w){words}(?!\w)", completion, flags=re.IGNORECASE) is not None
