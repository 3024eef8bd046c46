"""Reads secrets from the settings or the files that they name; a provider's key may be sealed."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SEALED = "gAAAA"  # prefix of every Fernet token: its version and the highest bytes of the time
LONGEST = 10_000  # most bytes of a file


def read_secret(value: SecretStr | None, file: Path | None) -> str:
    """The secret of an alert's target, without the white space around it. The file is read at each
    call, so that a new secret is used at once. Raises ConfigurationError, which repeats nothing of
    it.
    """
    if value is not None or file is None:
        return "" if value is None else value.get_secret_value().strip()
    return _read_file(file)


def generate_sealing_key() -> SecretStr:
    """Generate a random key for `Settings.sealing_key`."""
    from cryptography.fernet import Fernet

    return SecretStr(Fernet.generate_key().decode())


def seal(key: SecretStr, sealing_key: SecretStr | None) -> str:
    """Encrypt a key for a file, which is useless without the sealing key (Fernet: AES-128-CBC with
    HMAC-SHA256).
    """
    text = key.get_secret_value().strip()
    if not text:
        raise ConfigurationError(
            "An empty key cannot be sealed. Give the key that the provider issued."
        )
    if sealing_key is None:
        raise ConfigurationError(
            "There is no sealing key. Make one with `rlhf keys new` and set RLHF_SEALING_KEY to it."
        )
    return _cipher(sealing_key).encrypt(text.encode()).decode()


def provider_key(settings: Settings) -> SecretStr | None:
    """The key in the settings or in the file that they name; None without either. Raises
    ConfigurationError, whose text contains no part of the key.
    """
    if settings.api_key is not None or settings.api_key_file is None:
        return clean_key(settings.api_key)
    path = settings.api_key_file
    text = _read_file(path)
    if not text.startswith(SEALED):
        return clean_key(SecretStr(text), f"{path} (api_key_file)")
    if settings.sealing_key is None:
        raise ConfigurationError(
            f"{path} (api_key_file) is sealed, and no sealing key is set. Set RLHF_SEALING_KEY."
        )
    from cryptography.fernet import InvalidToken

    try:
        return clean_key(
            SecretStr(_cipher(settings.sealing_key).decrypt(text).decode()),
            f"{path} (api_key_file), opened,",
        )
    except (InvalidToken, ValueError):
        raise ConfigurationError(
            f"{path} (api_key_file) was sealed with another sealing key, or damaged. Set "
            "RLHF_SEALING_KEY to the one it was sealed with, or seal the key again."
        ) from None


def clean_key(key: SecretStr | None, where: str = "api_key (RLHF_API_KEY)") -> SecretStr | None:
    """Strip the white space that `echo` and editors leave around a key; an empty key becomes none.
    Raises ConfigurationError, without any part of the key, for characters that no request can
    carry.
    """
    text = "" if key is None else key.get_secret_value().strip()
    if not text.isascii() or not text.isprintable() or len(text.split()) > 1:
        raise ConfigurationError(
            f"{where} does not hold one key: it contains a blank, a line break or an invalid "
            f"character. Set the key alone."
        )
    return SecretStr(text) if text else None


def _read_file(path: Path) -> str:
    """Read the file. Errors have no cause: a traceback would show the content."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST + 1).decode().strip()
    except OSError as cause:
        raise ConfigurationError(
            f"{path} cannot be read: {cause.strerror or cause}. Correct its name or its "
            "permissions."
        ) from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LONGEST:
        raise ConfigurationError(f"{path} does not hold a secret. Write the secret alone into it.")
    return text


def _cipher(sealing_key: SecretStr) -> "Fernet":
    from cryptography.fernet import Fernet

    try:
        return Fernet(sealing_key.get_secret_value())
    except ValueError:
        raise ConfigurationError(
            "RLHF_SEALING_KEY is not a sealing key. Make one with `rlhf keys new`."
        ) from None
