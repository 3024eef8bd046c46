"""Reads the secret of a target from its settings, or from the file that they name."""

from pathlib import Path

from pydantic import SecretStr

from rlhf_pipeline.errors import ConfigurationError

LONGEST = 10_000  # bytes


def read_secret(value: SecretStr | None, file: Path | None) -> str:
    """The secret without the white space around it. The file is read at each call, so that a new
    secret is used at once. Raises ConfigurationError, which repeats nothing of it.
    """
    if value is not None or file is None:
        return "" if value is None else value.get_secret_value().strip()
    try:
        with file.open("rb") as opened:
            text = opened.read(LONGEST + 1).decode().strip()
    except OSError as cause:
        raise ConfigurationError(
            f"{file} cannot be read: {cause.strerror or cause}. Correct its name or its "
            "permissions."
        ) from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LONGEST:
        raise ConfigurationError(f"{file} does not hold a secret. Write the secret alone into it.")
    return text
