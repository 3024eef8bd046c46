"""Where a provider's key comes from, and what is said where it cannot."""

from pathlib import Path
from typing import NoReturn

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.secret_files import generate_sealing_key, provider_key, seal
from rlhf_pipeline.generate.completions import open_backend

KEY = "sk-canary-5a10"


def settings(path: Path | None = None, **more: object) -> Settings:
    return Settings(api_key_file=path, **more)  # type: ignore[arg-type]


def reveal(key: SecretStr | None) -> str | None:
    return None if key is None else key.get_secret_value()


def test_a_key_is_read_from_the_settings_a_file_or_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f" {KEY}\n")
    assert reveal(provider_key(settings())) is None
    assert reveal(provider_key(settings(path))) == KEY
    assert reveal(provider_key(settings(path, api_key=SecretStr("other")))) == "other"


def no_policy() -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize("backend", ["openai_compatible", "anthropic"])
def test_a_sealed_key_opens_a_provider_and_is_not_in_its_file(tmp_path: Path, backend: str) -> None:
    path, sealing_key = tmp_path / "key", generate_sealing_key()
    path.write_text(seal(SecretStr(KEY + "\n"), sealing_key) + "\n")
    assert KEY not in path.read_text()
    provider = open_backend(
        settings(path, sealing_key=sealing_key, completion_backend=backend), no_policy
    )
    assert reveal(provider.api_key) == KEY  # type: ignore[union-attr]
    assert KEY not in repr(provider) + repr(settings(path, sealing_key=sealing_key))


def test_unreadable_key_names_cause_and_cure_without_the_secret(tmp_path: Path) -> None:
    sealed, two, empty, odd = (tmp_path / name for name in ("sealed", "two", "empty", "odd"))
    sealed.write_text(seal(SecretStr(KEY), generate_sealing_key()))
    two.write_text(f"{KEY}\n{KEY}\n")
    empty.write_text("\n")
    odd.write_bytes(KEY.encode() + b"\xff")
    refused = {
        "cannot be read": settings(tmp_path / "missing"),
        "Is a directory": settings(tmp_path),
        "no sealing key is set": settings(sealed),
        "another sealing key": settings(sealed, sealing_key=generate_sealing_key()),
        "is not a sealing key": settings(sealed, sealing_key=SecretStr("short")),
        "not hold one key": settings(two),
        "hold a secret": settings(empty),
        "the secret alone": settings(odd),
    }
    for cure, arguments in refused.items():
        with pytest.raises(ConfigurationError, match=cure) as error:
            provider_key(arguments)
        assert KEY not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__ or error.value.__context__ is None, (
            "a traceback would show what was read"
        )


def test_sealing_needs_a_key_and_a_sealing_key() -> None:
    with pytest.raises(ConfigurationError, match="rlhf keys new"):
        seal(SecretStr(KEY), None)
    with pytest.raises(ConfigurationError, match="empty"):
        seal(SecretStr(" \n"), generate_sealing_key())
