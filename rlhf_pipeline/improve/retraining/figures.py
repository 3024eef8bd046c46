"""Figures of a training under way, as the note of its progress."""

from collections.abc import Mapping

# By the name in a trainer's log: the name in the note, and its format.
LOGGED = {
    "loss": ("loss", ".3f"),
    "learning_rate": ("learning rate", ".3g"),
    "num_tokens": ("tokens", ".0f"),
}


def format_figures(log: Mapping[str, float]) -> str:
    """The figures of one logged step.

    >>> format_figures({"loss": 0.6931, "learning_rate": 1e-4, "num_tokens": 51200, "epoch": 1})
    'loss 0.693, learning rate 0.0001, tokens 51200'
    """
    return ", ".join(
        f"{name} {log[logged]:{form}}" for logged, (name, form) in LOGGED.items() if logged in log
    )


def parse_figures(note: str) -> dict[str, float]:
    """The figures that `format_figures` wrote, by name with underscores; empty for other notes.

    >>> parse_figures("loss 0.693, learning rate 0.0001")
    {'loss': 0.693, 'learning_rate': 0.0001}
    >>> parse_figures("64 of 300 prompts")
    {}
    """
    names = {name for name, _ in LOGGED.values()}
    parts = [part.rpartition(" ") for part in note.split(", ")]
    if any(name not in names for name, _, _ in parts):
        return {}
    return {name.replace(" ", "_"): float(value) for name, _, value in parts}
